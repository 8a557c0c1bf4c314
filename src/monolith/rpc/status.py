"""Status codes of gRPC and HTTP, and the one table that maps errors to them.

Every server and client of Monolith uses this table. It needs no gRPC: codes are plain numbers.
"""

from __future__ import annotations

from enum import IntEnum

from monolith.core import errors

__all__ = ["Code", "client_text", "code_of", "error_class", "error_name", "http_status", "text_of"]


class Code(IntEnum):
    """Status codes of gRPC, which TensorFlow shares."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


# The first match wins; a class comes before its base classes.
_CODES: tuple[tuple[type[BaseException], Code], ...] = (
    (errors.InvalidRequest, Code.INVALID_ARGUMENT),
    (errors.NotPermitted, Code.PERMISSION_DENIED),
    (errors.ModelNotFound, Code.NOT_FOUND),
    (errors.ModelNotReady, Code.UNAVAILABLE),
    (errors.CutRefused, Code.FAILED_PRECONDITION),
    (errors.Overloaded, Code.RESOURCE_EXHAUSTED),
    (errors.SchemaMismatch, Code.FAILED_PRECONDITION),
    (errors.ExpiryRefused, Code.FAILED_PRECONDITION),
    (errors.DataError, Code.INVALID_ARGUMENT),
    (errors.ConfigError, Code.INVALID_ARGUMENT),
    (errors.DimensionMismatch, Code.INVALID_ARGUMENT),
    (errors.CapacityExceeded, Code.RESOURCE_EXHAUSTED),
    (errors.SnapshotCorrupt, Code.DATA_LOSS),
    (errors.ManifestInvalid, Code.DATA_LOSS),
    (errors.DeltaLogBroken, Code.DATA_LOSS),
    (errors.CheckpointMissing, Code.NOT_FOUND),
    (errors.ArtifactError, Code.FAILED_PRECONDITION),
    (errors.RpcTimeout, Code.DEADLINE_EXCEEDED),
    (errors.ShardUnavailable, Code.UNAVAILABLE),
    (errors.ClusterError, Code.UNAVAILABLE),
    (FileNotFoundError, Code.NOT_FOUND),
    (MemoryError, Code.RESOURCE_EXHAUSTED),
)
_HTTP = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 503,
    Code.FAILED_PRECONDITION: 412,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.UNAUTHENTICATED: 401,
}


# The text travels in a header of HTTP/2, whose size clients bound.
_MAX_TEXT = 1000


def code_of(error: BaseException) -> Code:
    """Return the code of an error; INTERNAL for an unforeseen class."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.INTERNAL)


def text_of(error: BaseException) -> str:
    """Return the text that a client gets: the message of an error of ours, class and message of any other."""
    name = type(error).__name__
    text = (str(error) or name) if isinstance(error, errors.MonolithError | OSError) else f"{name}: {error}"
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


def client_text(error: BaseException) -> str:
    """Return the text of a failed request for its client: of an unforeseen error only the class.

    The message of such an error may contain paths or data of others; the log of the server has it.

    >>> client_text(KeyError("secret"))
    'internal error (KeyError); see the log of the server'
    """
    if code_of(error) == Code.INTERNAL and not isinstance(error, errors.MonolithError):
        return f"internal error ({type(error).__name__}); see the log of the server"
    return text_of(error)


def http_status(code: Code) -> int:
    """Return the HTTP status of a code.

    >>> http_status(code_of(errors.ModelNotFound("no model 'ctr'")))
    404
    """
    return _HTTP.get(code, 500)


def error_name(error: errors.MonolithError) -> str:
    """Return the name under which the class of ``error``, or its nearest public base, travels over the wire."""
    return next(kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__))


def error_class(name: str) -> type[errors.MonolithError] | None:
    """Return the error class with this name; None for an unknown name.

    >>> error_class("SchemaMismatch").__name__, error_class("KeyError")
    ('SchemaMismatch', None)
    """
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, errors.MonolithError) else None

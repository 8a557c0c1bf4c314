"""How an answer went, in the numbers of gRPC and of HTTP. Knows neither of them beyond their numbers."""

from __future__ import annotations

from enum import IntEnum

from monolith.core import errors

__all__ = ["Code", "code_of", "http_status", "text_of"]


class Code(IntEnum):
    """gRPC's status codes, which are TensorFlow's too."""

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


# The first that fits; a class comes before those it is derived from.
_CODES: tuple[tuple[type[BaseException], Code], ...] = (
    (errors.InvalidRequest, Code.INVALID_ARGUMENT),
    (errors.NotPermitted, Code.PERMISSION_DENIED),
    (errors.ModelNotFound, Code.NOT_FOUND),
    (errors.ModelNotReady, Code.UNAVAILABLE),
    (errors.CutRefused, Code.FAILED_PRECONDITION),
    (errors.Overloaded, Code.RESOURCE_EXHAUSTED),
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
    """Return the code of an error; INTERNAL for what nobody foresaw."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.INTERNAL)


def text_of(error: BaseException) -> str:
    """Return what a client is told: our own text, or no more than the class of an error that nobody foresaw."""
    name = type(error).__name__
    text = (str(error) or name) if isinstance(error, errors.MonolithError | OSError) else f"{name}: {error}"
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


def http_status(code: Code) -> int:
    """Return the HTTP status of a code."""
    return _HTTP.get(code, 500)

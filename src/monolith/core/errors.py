"""Every exception that Monolith raises on purpose.

Two questions decide a class: *may the caller retry?* and *whose fault is it?*

::

    MonolithError
    ├─ ConfigError                 the caller's settings are wrong; never retried; also a ValueError
    ├─ DataError                   RecordCorrupt · SchemaMismatch · AppendRefused
    ├─ EngineError                 DimensionMismatch · CapacityExceeded · SnapshotCorrupt · ExpiryRefused
    ├─ ClusterError   .retryable   NoSuchService · AlreadyRegistered · ConnectionFailed · SessionLost
    │                              ShardUnavailable · RpcTimeout · RetriesExhausted
    ├─ ArtifactError               CheckpointMissing · VersionConflict · ManifestInvalid · DeltaLogBroken
    ├─ TrainingDiverged            a loss or a prediction is not finite; the last checkpoint is sound
    └─ ServingError   .at_fault    InvalidRequest · NotPermitted · ModelNotFound · Overloaded · ModelNotReady
                                   CutRefused

A message names the thing, its value, the rule and the remedy, for example
``table 'user_id' has dim 16, gradient has dim 32; check FeatureSpec.dim``.

The gRPC and HTTP status of a class is decided where requests are answered.
"""

from __future__ import annotations

from typing import ClassVar, Literal

__all__ = [
    "MonolithError",
    "ConfigError",
    "DataError",
    "RecordCorrupt",
    "SchemaMismatch",
    "AppendRefused",
    "EngineError",
    "DimensionMismatch",
    "CapacityExceeded",
    "SnapshotCorrupt",
    "ExpiryRefused",
    "ClusterError",
    "NoSuchService",
    "AlreadyRegistered",
    "ConnectionFailed",
    "SessionLost",
    "ShardUnavailable",
    "RpcTimeout",
    "RetriesExhausted",
    "ArtifactError",
    "CheckpointMissing",
    "VersionConflict",
    "ManifestInvalid",
    "DeltaLogBroken",
    "TrainingDiverged",
    "ServingError",
    "InvalidRequest",
    "NotPermitted",
    "ModelNotFound",
    "Overloaded",
    "ModelNotReady",
    "CutRefused",
]


class MonolithError(Exception):
    """The root: ``except MonolithError`` catches every error that Monolith raises on purpose, and no other."""


class ConfigError(MonolithError, ValueError):
    """The caller's settings or arguments are wrong; the same call can never succeed.

    It is a ``ValueError`` too, so that code which validates configuration (pydantic above all) reports it at the
    field where it happened, and callers of plain Python functions can catch the usual type.
    """


class DataError(MonolithError):
    """The input data is at fault: fix or skip the record, a retry reads the same bytes."""


class RecordCorrupt(DataError):
    """A record cannot be decoded: torn, truncated, or of another format. The text names source and offset."""


class SchemaMismatch(DataError):
    """A well-formed record does not fit the declared features. The text names the feature."""


class AppendRefused(DataError):
    """The disk refused an append, mostly because it is full. The log is unchanged, and a retry may succeed."""


class EngineError(MonolithError):
    """The native engine refused a call; the table is unchanged."""


class DimensionMismatch(EngineError):
    """An array's width or length does not fit the table."""


class CapacityExceeded(EngineError):
    """The table's byte budget does not allow the new rows."""


class SnapshotCorrupt(EngineError):
    """A snapshot file is torn, truncated or altered. The text names file, offset and reason."""


class ExpiryRefused(EngineError):
    """A save or an eviction would drop most rows of a table, for example because an event time was ahead."""


class ClusterError(MonolithError):
    """Another process, or the way to it, failed.

    Attributes:
        retryable: Whether the same call may succeed later. Each class has a default; one error may override it.
    """

    _retryable_default: ClassVar[bool] = False

    def __init__(self, message: str, *, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.retryable: bool = self._retryable_default if retryable is None else retryable


class NoSuchService(ClusterError):
    """Discovery answered, and no such service is registered."""


class AlreadyRegistered(ClusterError):
    """Another service holds this id in discovery, and may not be replaced."""


class ConnectionFailed(ClusterError):
    """The discovery service cannot be reached; its state is probably unchanged."""

    _retryable_default = True


class SessionLost(ClusterError):
    """The session with the coordination service ended; ephemeral registrations are gone until it is renewed."""

    _retryable_default = True


class ShardUnavailable(ClusterError):
    """The shard's server cannot be reached, or is recovering."""

    _retryable_default = True


class RpcTimeout(ClusterError):
    """The call's deadline passed. The other side may or may not have acted."""

    _retryable_default = True


class RetriesExhausted(ClusterError):
    """Every attempt that the policy allowed has failed; ``__cause__`` is the last error.

    Attributes:
        attempts: How many calls were made.
    """

    def __init__(self, message: str, *, attempts: int = 0) -> None:
        super().__init__(message)
        self.attempts: int = attempts


class ArtifactError(MonolithError):
    """An artifact on disk (checkpoint, delta, export) is absent or invalid."""


class CheckpointMissing(ArtifactError):
    """The path contains no complete checkpoint."""


class VersionConflict(ArtifactError):
    """The version exists already, or was written by a format this release does not read."""


class ManifestInvalid(ArtifactError):
    """A manifest cannot be read, or contradicts the files beside it."""


class DeltaLogBroken(ArtifactError):
    """A delta log has a gap, or a segment of it is cut off or altered.

    Attributes:
        last_good: The sequence that can still be reached.
    """

    def __init__(self, message: str, *, last_good: int = 0) -> None:
        super().__init__(message)
        self.last_good: int = last_good


class TrainingDiverged(MonolithError):
    """A loss is not finite. The step was not applied; continue with other settings or other data."""


class ServingError(MonolithError):
    """A request could not be answered.

    Attributes:
        at_fault: ``"client"`` when another request is needed, ``"server"`` when the same one may succeed elsewhere
            or later.
    """

    at_fault: ClassVar[Literal["client", "server"]] = "server"


class InvalidRequest(ServingError):
    """The request does not fit the model's signature."""

    at_fault = "client"


class NotPermitted(ServingError):
    """The caller may not do this: it needs another token, or the server does not allow it."""

    at_fault = "client"


class ModelNotFound(ServingError):
    """No such model or version is configured here."""

    at_fault = "client"


class Overloaded(ServingError):
    """The queue is full; retry later, or call another replica."""


class ModelNotReady(ServingError):
    """No version of the model is loaded yet, the server stops, or no server answers."""


class CutRefused(ServingError):
    """A published state or a new version scores a sample of requests too differently; the server keeps the old one."""

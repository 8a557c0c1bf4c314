# mypy: disable-error-code="type-arg"
from monolith._proto import ps_training_pb2 as _ps_training_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConnectRequest(_message.Message):
    __slots__ = ("tables", "shards")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedScalarFieldContainer[str]
    shards: int
    def __init__(self, tables: _Optional[_Iterable[str]] = ..., shards: _Optional[int] = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("instance", "index", "shards", "data_plane", "data_plane_token", "rows")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    DATA_PLANE_FIELD_NUMBER: _ClassVar[int]
    DATA_PLANE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    instance: int
    index: int
    shards: int
    data_plane: _containers.RepeatedScalarFieldContainer[str]
    data_plane_token: bytes
    rows: int
    def __init__(self, instance: _Optional[int] = ..., index: _Optional[int] = ..., shards: _Optional[int] = ..., data_plane: _Optional[_Iterable[str]] = ..., data_plane_token: _Optional[bytes] = ..., rows: _Optional[int] = ...) -> None: ...

class FusedRequest(_message.Message):
    __slots__ = ("payload", "half", "timeout_ms", "instance")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    half: bool
    timeout_ms: int
    instance: int
    def __init__(self, payload: _Optional[bytes] = ..., half: _Optional[bool] = ..., timeout_ms: _Optional[int] = ..., instance: _Optional[int] = ...) -> None: ...

class FusedResponse(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...

class PushName(_message.Message):
    __slots__ = ("client", "sequence")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    client: int
    sequence: int
    def __init__(self, client: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class WorkerEntry(_message.Message):
    __slots__ = ("phase", "session", "steps")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    phase: int
    session: int
    steps: int
    def __init__(self, phase: _Optional[int] = ..., session: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class Rendezvous(_message.Message):
    __slots__ = ("session", "generation", "port", "is_over")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    session: int
    generation: int
    port: int
    is_over: bool
    def __init__(self, session: _Optional[int] = ..., generation: _Optional[int] = ..., port: _Optional[int] = ..., is_over: _Optional[bool] = ...) -> None: ...

class JobState(_message.Message):
    __slots__ = ("workers", "paused_session", "rendezvous")
    class WorkersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: WorkerEntry
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[WorkerEntry, _Mapping]] = ...) -> None: ...
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_SESSION_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.MessageMap[int, WorkerEntry]
    paused_session: int
    rendezvous: Rendezvous
    def __init__(self, workers: _Optional[_Mapping[int, WorkerEntry]] = ..., paused_session: _Optional[int] = ..., rendezvous: _Optional[_Union[Rendezvous, _Mapping]] = ...) -> None: ...

class WorkerChange(_message.Message):
    __slots__ = ("index", "entry")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    index: int
    entry: WorkerEntry
    def __init__(self, index: _Optional[int] = ..., entry: _Optional[_Union[WorkerEntry, _Mapping]] = ...) -> None: ...

class JobChange(_message.Message):
    __slots__ = ("worker", "paused_session", "rendezvous")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PAUSED_SESSION_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerChange
    paused_session: int
    rendezvous: Rendezvous
    def __init__(self, worker: _Optional[_Union[WorkerChange, _Mapping]] = ..., paused_session: _Optional[int] = ..., rendezvous: _Optional[_Union[Rendezvous, _Mapping]] = ...) -> None: ...

class JobRecord(_message.Message):
    __slots__ = ("change", "client", "revision")
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    change: JobChange
    client: int
    revision: int
    def __init__(self, change: _Optional[_Union[JobChange, _Mapping]] = ..., client: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class LoggedState(_message.Message):
    __slots__ = ("marks", "records")
    MARKS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    marks: bytes
    records: _containers.RepeatedCompositeFieldContainer[JobRecord]
    def __init__(self, marks: _Optional[bytes] = ..., records: _Optional[_Iterable[_Union[JobRecord, _Mapping]]] = ...) -> None: ...

class GetJobStateRequest(_message.Message):
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: int
    def __init__(self, instance: _Optional[int] = ...) -> None: ...

class GetJobStateResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: JobState
    def __init__(self, state: _Optional[_Union[JobState, _Mapping]] = ...) -> None: ...

class UpdateJobStateRequest(_message.Message):
    __slots__ = ("instance", "change", "client", "revision")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    instance: int
    change: JobChange
    client: int
    revision: int
    def __init__(self, instance: _Optional[int] = ..., change: _Optional[_Union[JobChange, _Mapping]] = ..., client: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class UpdateJobStateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("instance", "hold", "keeps_cut")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    KEEPS_CUT_FIELD_NUMBER: _ClassVar[int]
    instance: int
    hold: int
    keeps_cut: bool
    def __init__(self, instance: _Optional[int] = ..., hold: _Optional[int] = ..., keeps_cut: _Optional[bool] = ...) -> None: ...

class HoldResponse(_message.Message):
    __slots__ = ("marks",)
    MARKS_FIELD_NUMBER: _ClassVar[int]
    marks: bytes
    def __init__(self, marks: _Optional[bytes] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("hold",)
    HOLD_FIELD_NUMBER: _ClassVar[int]
    hold: int
    def __init__(self, hold: _Optional[int] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CutRequest(_message.Message):
    __slots__ = ("instance", "hold", "awaited", "timeout_ms")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    instance: int
    hold: int
    awaited: _containers.RepeatedCompositeFieldContainer[PushName]
    timeout_ms: int
    def __init__(self, instance: _Optional[int] = ..., hold: _Optional[int] = ..., awaited: _Optional[_Iterable[_Union[PushName, _Mapping]]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class CutResponse(_message.Message):
    __slots__ = ("cut",)
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: int
    def __init__(self, cut: _Optional[int] = ...) -> None: ...

class DropCutRequest(_message.Message):
    __slots__ = ("cut",)
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: int
    def __init__(self, cut: _Optional[int] = ...) -> None: ...

class DropCutResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("cut", "path", "generation")
    CUT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    cut: int
    path: str
    generation: int
    def __init__(self, cut: _Optional[int] = ..., path: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class SaveResponse(_message.Message):
    __slots__ = ("tables", "job_state")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    JOB_STATE_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedScalarFieldContainer[str]
    job_state: JobState
    def __init__(self, tables: _Optional[_Iterable[str]] = ..., job_state: _Optional[_Union[JobState, _Mapping]] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class RestoreResponse(_message.Message):
    __slots__ = ("restored", "skipped", "missing")
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    restored: _containers.RepeatedScalarFieldContainer[str]
    skipped: _containers.RepeatedScalarFieldContainer[str]
    missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, restored: _Optional[_Iterable[str]] = ..., skipped: _Optional[_Iterable[str]] = ..., missing: _Optional[_Iterable[str]] = ...) -> None: ...

class FlushDeltasRequest(_message.Message):
    __slots__ = ("instance", "hold", "awaited", "timeout_ms", "table")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    instance: int
    hold: int
    awaited: _containers.RepeatedCompositeFieldContainer[PushName]
    timeout_ms: int
    table: str
    def __init__(self, instance: _Optional[int] = ..., hold: _Optional[int] = ..., awaited: _Optional[_Iterable[_Union[PushName, _Mapping]]] = ..., timeout_ms: _Optional[int] = ..., table: _Optional[str] = ...) -> None: ...

class FlushDeltasResponse(_message.Message):
    __slots__ = ("sequence", "log", "is_late", "ids", "rows")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    IS_LATE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    log: int
    is_late: bool
    ids: bytes
    rows: bytes
    def __init__(self, sequence: _Optional[int] = ..., log: _Optional[int] = ..., is_late: _Optional[bool] = ..., ids: _Optional[bytes] = ..., rows: _Optional[bytes] = ...) -> None: ...

class CompactDeltasRequest(_message.Message):
    __slots__ = ("log", "sequence")
    LOG_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    log: int
    sequence: int
    def __init__(self, log: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class CompactDeltasResponse(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: int
    def __init__(self, segments: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("table", "fid")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    FID_FIELD_NUMBER: _ClassVar[int]
    table: str
    fid: int
    def __init__(self, table: _Optional[str] = ..., fid: _Optional[int] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("now_s",)
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    now_s: int
    def __init__(self, now_s: _Optional[int] = ...) -> None: ...

class EvictResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    def __init__(self, rows: _Optional[int] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("table", "fids")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    FIDS_FIELD_NUMBER: _ClassVar[int]
    table: str
    fids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, table: _Optional[str] = ..., fids: _Optional[_Iterable[int]] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("existed",)
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    existed: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, existed: _Optional[_Iterable[bool]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    def __init__(self, rows: _Optional[int] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ShutdownResponse(_message.Message):
    __slots__ = ("is_accepted",)
    IS_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    is_accepted: bool
    def __init__(self, is_accepted: _Optional[bool] = ...) -> None: ...

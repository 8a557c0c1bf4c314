# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StopTrainingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopTrainingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeTrainingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeTrainingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBlockStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBlockStatusResponse(_message.Message):
    __slots__ = ("blocked_indices", "unblocked_indices")
    BLOCKED_INDICES_FIELD_NUMBER: _ClassVar[int]
    UNBLOCKED_INDICES_FIELD_NUMBER: _ClassVar[int]
    blocked_indices: _containers.RepeatedScalarFieldContainer[int]
    unblocked_indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, blocked_indices: _Optional[_Iterable[int]] = ..., unblocked_indices: _Optional[_Iterable[int]] = ...) -> None: ...

class SaveCheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveCheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTrainingStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("index", "step", "state")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    index: int
    step: int
    state: str
    def __init__(self, index: _Optional[int] = ..., step: _Optional[int] = ..., state: _Optional[str] = ...) -> None: ...

class GetTrainingStatusResponse(_message.Message):
    __slots__ = ("global_step", "workers")
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    global_step: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    def __init__(self, global_step: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("values", "features", "tables", "block", "drop_checkpoints", "checkpoint_wait_s")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    DROP_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    features: _containers.RepeatedScalarFieldContainer[str]
    tables: _containers.RepeatedScalarFieldContainer[str]
    block: bool
    drop_checkpoints: bool
    checkpoint_wait_s: float
    def __init__(self, values: _Optional[_Iterable[str]] = ..., features: _Optional[_Iterable[str]] = ..., tables: _Optional[_Iterable[str]] = ..., block: _Optional[bool] = ..., drop_checkpoints: _Optional[bool] = ..., checkpoint_wait_s: _Optional[float] = ...) -> None: ...

class ForgetResponse(_message.Message):
    __slots__ = ("receipt",)
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    receipt: str
    def __init__(self, receipt: _Optional[str] = ...) -> None: ...

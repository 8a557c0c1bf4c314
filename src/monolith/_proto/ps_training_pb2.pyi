# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LookupRequest(_message.Message):
    __slots__ = ("table_name", "fids", "dim_size", "create_if_missing", "timeout_ms")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    FIDS_FIELD_NUMBER: _ClassVar[int]
    DIM_SIZE_FIELD_NUMBER: _ClassVar[int]
    CREATE_IF_MISSING_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    fids: _containers.RepeatedScalarFieldContainer[int]
    dim_size: int
    create_if_missing: bool
    timeout_ms: int
    def __init__(
        self,
        table_name: _Optional[str] = ...,
        fids: _Optional[_Iterable[int]] = ...,
        dim_size: _Optional[int] = ...,
        create_if_missing: _Optional[bool] = ...,
        timeout_ms: _Optional[int] = ...,
    ) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("status_code", "error_message", "embeddings", "found", "num_found", "num_initialized")
    STATUS_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    NUM_FOUND_FIELD_NUMBER: _ClassVar[int]
    NUM_INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    status_code: int
    error_message: str
    embeddings: _containers.RepeatedScalarFieldContainer[float]
    found: _containers.RepeatedScalarFieldContainer[bool]
    num_found: int
    num_initialized: int
    def __init__(
        self,
        status_code: _Optional[int] = ...,
        error_message: _Optional[str] = ...,
        embeddings: _Optional[_Iterable[float]] = ...,
        found: _Optional[_Iterable[bool]] = ...,
        num_found: _Optional[int] = ...,
        num_initialized: _Optional[int] = ...,
    ) -> None: ...

class ApplyGradientsRequest(_message.Message):
    __slots__ = ("table_name", "fids", "gradients", "dim_size", "learning_rate", "global_step", "timeout_ms")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    FIDS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    DIM_SIZE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    fids: _containers.RepeatedScalarFieldContainer[int]
    gradients: _containers.RepeatedScalarFieldContainer[float]
    dim_size: int
    learning_rate: float
    global_step: int
    timeout_ms: int
    def __init__(
        self,
        table_name: _Optional[str] = ...,
        fids: _Optional[_Iterable[int]] = ...,
        gradients: _Optional[_Iterable[float]] = ...,
        dim_size: _Optional[int] = ...,
        learning_rate: _Optional[float] = ...,
        global_step: _Optional[int] = ...,
        timeout_ms: _Optional[int] = ...,
    ) -> None: ...

class ApplyGradientsResponse(_message.Message):
    __slots__ = ("status_code", "error_message", "num_updated", "num_not_found")
    STATUS_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_UPDATED_FIELD_NUMBER: _ClassVar[int]
    NUM_NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    status_code: int
    error_message: str
    num_updated: int
    num_not_found: int
    def __init__(
        self,
        status_code: _Optional[int] = ...,
        error_message: _Optional[str] = ...,
        num_updated: _Optional[int] = ...,
        num_not_found: _Optional[int] = ...,
    ) -> None: ...

class BarrierRequest(_message.Message):
    __slots__ = ("barrier_id", "worker_id", "num_workers", "timeout_ms")
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    barrier_id: str
    worker_id: int
    num_workers: int
    timeout_ms: int
    def __init__(
        self,
        barrier_id: _Optional[str] = ...,
        worker_id: _Optional[int] = ...,
        num_workers: _Optional[int] = ...,
        timeout_ms: _Optional[int] = ...,
    ) -> None: ...

class BarrierResponse(_message.Message):
    __slots__ = ("status_code", "error_message", "num_arrived")
    STATUS_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_ARRIVED_FIELD_NUMBER: _ClassVar[int]
    status_code: int
    error_message: str
    num_arrived: int
    def __init__(
        self, status_code: _Optional[int] = ..., error_message: _Optional[str] = ..., num_arrived: _Optional[int] = ...
    ) -> None: ...

class HealthCheckRequest(_message.Message):
    __slots__ = ("component",)
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    component: str
    def __init__(self, component: _Optional[str] = ...) -> None: ...

class HealthCheckResponse(_message.Message):
    __slots__ = ("status", "message", "uptime_seconds")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[HealthCheckResponse.Status]
        HEALTHY: _ClassVar[HealthCheckResponse.Status]
        UNHEALTHY: _ClassVar[HealthCheckResponse.Status]
        DEGRADED: _ClassVar[HealthCheckResponse.Status]

    UNKNOWN: HealthCheckResponse.Status
    HEALTHY: HealthCheckResponse.Status
    UNHEALTHY: HealthCheckResponse.Status
    DEGRADED: HealthCheckResponse.Status
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    status: HealthCheckResponse.Status
    message: str
    uptime_seconds: int
    def __init__(
        self,
        status: _Optional[_Union[HealthCheckResponse.Status, str]] = ...,
        message: _Optional[str] = ...,
        uptime_seconds: _Optional[int] = ...,
    ) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ("include_table_stats",)
    INCLUDE_TABLE_STATS_FIELD_NUMBER: _ClassVar[int]
    include_table_stats: bool
    def __init__(self, include_table_stats: _Optional[bool] = ...) -> None: ...

class TableStats(_message.Message):
    __slots__ = ("name", "num_embeddings", "dim_size", "memory_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    DIM_SIZE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_embeddings: int
    dim_size: int
    memory_bytes: int
    def __init__(
        self,
        name: _Optional[str] = ...,
        num_embeddings: _Optional[int] = ...,
        dim_size: _Optional[int] = ...,
        memory_bytes: _Optional[int] = ...,
    ) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = (
        "shard_id",
        "total_embeddings",
        "memory_bytes",
        "table_stats",
        "lookup_count",
        "apply_gradients_count",
        "avg_lookup_latency_us",
        "avg_apply_latency_us",
        "delta_sequence",
    )
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLE_STATS_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_COUNT_FIELD_NUMBER: _ClassVar[int]
    APPLY_GRADIENTS_COUNT_FIELD_NUMBER: _ClassVar[int]
    AVG_LOOKUP_LATENCY_US_FIELD_NUMBER: _ClassVar[int]
    AVG_APPLY_LATENCY_US_FIELD_NUMBER: _ClassVar[int]
    DELTA_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    shard_id: int
    total_embeddings: int
    memory_bytes: int
    table_stats: _containers.RepeatedCompositeFieldContainer[TableStats]
    lookup_count: int
    apply_gradients_count: int
    avg_lookup_latency_us: int
    avg_apply_latency_us: int
    delta_sequence: int
    def __init__(
        self,
        shard_id: _Optional[int] = ...,
        total_embeddings: _Optional[int] = ...,
        memory_bytes: _Optional[int] = ...,
        table_stats: _Optional[_Iterable[_Union[TableStats, _Mapping]]] = ...,
        lookup_count: _Optional[int] = ...,
        apply_gradients_count: _Optional[int] = ...,
        avg_lookup_latency_us: _Optional[int] = ...,
        avg_apply_latency_us: _Optional[int] = ...,
        delta_sequence: _Optional[int] = ...,
    ) -> None: ...

class BatchLookupRequest(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[LookupRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[LookupRequest, _Mapping]]] = ...) -> None: ...

class BatchLookupResponse(_message.Message):
    __slots__ = ("responses",)
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[LookupResponse]
    def __init__(self, responses: _Optional[_Iterable[_Union[LookupResponse, _Mapping]]] = ...) -> None: ...

class BatchApplyGradientsRequest(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[ApplyGradientsRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[ApplyGradientsRequest, _Mapping]]] = ...) -> None: ...

class BatchApplyGradientsResponse(_message.Message):
    __slots__ = ("responses",)
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[ApplyGradientsResponse]
    def __init__(self, responses: _Optional[_Iterable[_Union[ApplyGradientsResponse, _Mapping]]] = ...) -> None: ...

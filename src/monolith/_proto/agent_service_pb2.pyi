# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServerType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PS: _ClassVar[ServerType]
    ENTRY: _ClassVar[ServerType]
    DENSE: _ClassVar[ServerType]
PS: ServerType
ENTRY: ServerType
DENSE: ServerType

class AddressList(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, address: _Optional[_Iterable[str]] = ...) -> None: ...

class GetReplicasRequest(_message.Message):
    __slots__ = ("server_type", "task", "model_name")
    SERVER_TYPE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    server_type: ServerType
    task: int
    model_name: str
    def __init__(self, server_type: _Optional[_Union[ServerType, str]] = ..., task: _Optional[int] = ..., model_name: _Optional[str] = ...) -> None: ...

class GetReplicasResponse(_message.Message):
    __slots__ = ("address_list",)
    ADDRESS_LIST_FIELD_NUMBER: _ClassVar[int]
    address_list: AddressList
    def __init__(self, address_list: _Optional[_Union[AddressList, _Mapping]] = ...) -> None: ...

class GetResourceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetResourceResponse(_message.Message):
    __slots__ = ("address", "shard_id", "replica_id", "memory", "cpu", "network", "work_load")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    WORK_LOAD_FIELD_NUMBER: _ClassVar[int]
    address: str
    shard_id: int
    replica_id: int
    memory: int
    cpu: float
    network: float
    work_load: float
    def __init__(self, address: _Optional[str] = ..., shard_id: _Optional[int] = ..., replica_id: _Optional[int] = ..., memory: _Optional[int] = ..., cpu: _Optional[float] = ..., network: _Optional[float] = ..., work_load: _Optional[float] = ...) -> None: ...

class HeartBeatRequest(_message.Message):
    __slots__ = ("server_type",)
    SERVER_TYPE_FIELD_NUMBER: _ClassVar[int]
    server_type: ServerType
    def __init__(self, server_type: _Optional[_Union[ServerType, str]] = ...) -> None: ...

class HeartBeatResponse(_message.Message):
    __slots__ = ("addresses",)
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: AddressList
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[AddressList, _Mapping]] = ...) -> None: ...
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.MessageMap[str, AddressList]
    def __init__(self, addresses: _Optional[_Mapping[str, AddressList]] = ...) -> None: ...

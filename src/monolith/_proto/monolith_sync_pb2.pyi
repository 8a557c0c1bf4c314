# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Position(_message.Message):
    __slots__ = ("log", "sequence")
    LOG_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    log: int
    sequence: int
    def __init__(self, log: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[Position]
    def __init__(self, shards: _Optional[_Iterable[_Union[Position, _Mapping]]] = ...) -> None: ...

class FollowResponse(_message.Message):
    __slots__ = ("path", "offset", "size", "content", "crc32c", "is_anew", "has_newer_base")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    IS_ANEW_FIELD_NUMBER: _ClassVar[int]
    HAS_NEWER_BASE_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    size: int
    content: bytes
    crc32c: int
    is_anew: bool
    has_newer_base: bool
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., content: _Optional[bytes] = ..., crc32c: _Optional[int] = ..., is_anew: _Optional[bool] = ..., has_newer_base: _Optional[bool] = ...) -> None: ...

"""Descriptor pools with a LineId of chosen fields, and questions about the schema of messages.

The pools are private: the process-wide pool may hold the original's messages, or TensorFlow's, under the same names.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from google.protobuf import descriptor_pb2, unknown_fields
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from monolith._proto.descriptors import DESCRIPTOR_SET
from monolith.core.errors import ConfigError
from monolith.data.records.line_id import LineIdField, LineIdFields

__all__ = [
    "Descriptor",
    "DescriptorPool",
    "FieldDescriptor",
    "ScalarKind",
    "build_pool",
    "descriptor_of",
    "enum_type",
    "is_map",
    "map_entry",
    "scalar_kind",
    "unknown_bytes",
]

ScalarKind: TypeAlias = Literal["message", "enum", "string", "bytes", "bool", "float", "double", "int", "long"]
"""What a value is in JSON terms: a ``long`` needs more than 53 bits, an ``int`` does not."""

_Proto = descriptor_pb2.FieldDescriptorProto
_SCALAR_KINDS: dict[int, ScalarKind] = {
    FieldDescriptor.CPPTYPE_MESSAGE: "message",
    FieldDescriptor.CPPTYPE_ENUM: "enum",
    FieldDescriptor.CPPTYPE_BOOL: "bool",
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_DOUBLE: "double",
    FieldDescriptor.CPPTYPE_INT32: "int",
    FieldDescriptor.CPPTYPE_UINT32: "int",
    FieldDescriptor.CPPTYPE_INT64: "long",
    FieldDescriptor.CPPTYPE_UINT64: "long",
}


def build_pool(fields: LineIdFields) -> DescriptorPool:
    """Return a pool with every message of ``proto/``, in which LineId has these fields.

    Raises:
        ConfigError: protobuf refuses the fields.
    """
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET)
    pool = DescriptorPool()
    for file in files.file:
        if file.name == "line_id.proto":
            line_id = next(message for message in file.message_type if message.name == "LineId")
            del line_id.field[:]
            line_id.field.extend(_field_proto(field) for field in fields)
        try:
            pool.Add(file)
        except TypeError as exc:
            raise ConfigError(f"protobuf refuses the fields of LineId: {exc}") from exc
    return pool


def scalar_kind(field: FieldDescriptor) -> ScalarKind:
    """Return what one value of ``field`` is."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        return "bytes"
    return _SCALAR_KINDS.get(field.cpp_type, "string")


def descriptor_of(message: Message) -> Descriptor:
    """Return the schema of ``message``."""
    found: Any = message.DESCRIPTOR
    return found  # type: ignore[no-any-return]


def is_map(field: FieldDescriptor) -> bool:
    """Say whether ``field`` is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def map_entry(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """Return the key and the value of a map."""
    entry: Any = field.message_type
    return entry.fields_by_name["key"], entry.fields_by_name["value"]


def enum_type(field: FieldDescriptor) -> EnumDescriptor:
    """Return the enum of an enum field."""
    found: Any = field.enum_type
    return found  # type: ignore[no-any-return]


def unknown_bytes(message: Message) -> bytes:
    """Return the wire form of the fields of ``message`` itself that its schema does not know."""
    if not len(unknown_fields.UnknownFieldSet(message)):
        return b""
    rest = type(message)()
    rest.CopyFrom(message)
    for field, _ in message.ListFields():
        rest.ClearField(field.name)
    return rest.SerializePartialToString()


def _field_proto(field: LineIdField) -> descriptor_pb2.FieldDescriptorProto:
    proto = _Proto(
        name=field.name,
        number=field.number,
        type=_Proto.Type.Value(f"TYPE_{field.type.upper()}"),
        label=_Proto.LABEL_REPEATED if field.is_repeated else _Proto.LABEL_OPTIONAL,
    )
    if field.is_packed:
        proto.options.packed = True
    if field.default:
        is_real = field.kind in ("float", "double")
        proto.default_value = (
            "true" if field.type == "bool" else repr(float(field.default) if is_real else int(field.default))
        )
    return proto

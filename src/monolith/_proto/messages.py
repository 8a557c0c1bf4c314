"""Protobuf messages made from descriptors: classes, wire form, text form, JSON form.

Classes come from private descriptor pools: the process-wide pool may hold the original's messages, or TensorFlow's,
under the same names.
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf import json_format, message_factory, text_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from monolith.core.errors import RecordCorrupt

__all__ = [
    "Message",
    "message_class",
    "missing_fields",
    "parse_bytes",
    "parse_json",
    "parse_text",
    "write_json",
    "write_text",
]

M = TypeVar("M", bound=Message)


def message_class(pool: DescriptorPool, full_name: str) -> type[Message]:
    """Return the class of a message; every call returns the same class."""
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))


def parse_bytes(kind: type[M], payload: bytes, source: str) -> M:
    """Return the message with the wire form ``payload``.

    Args:
        kind: Class of the message.
        payload: The wire form.
        source: Name of the payload, for the error.

    Raises:
        RecordCorrupt: ``payload`` does not parse.
    """
    message = kind()
    try:
        message.ParseFromString(payload)
    except DecodeError as exc:
        raise RecordCorrupt(
            f"{source}: {len(payload)} bytes are no {kind.DESCRIPTOR.name} ({exc}); "
            "check the record kind and the framing"
        ) from exc
    return message


def parse_text(text: str, message: Message, source: str) -> None:
    """Fill ``message`` from protobuf text format.

    Raises:
        RecordCorrupt: ``text`` does not parse; the error names the line.
    """
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as exc:
        place = f"line {exc.GetLine()}" if exc.GetLine() is not None else "text"
        raise RecordCorrupt(f"{source}: {place}: no text of {message.DESCRIPTOR.name}: {exc}") from exc
    except ValueError as exc:
        raise RecordCorrupt(f"{source}: no text of {message.DESCRIPTOR.name}: {exc}") from exc


def write_text(message: Message) -> str:
    """Return the protobuf text format of ``message``, without its unknown fields."""
    return text_format.MessageToString(message, as_utf8=True)


def parse_json(kind: type[M], value: dict[str, Any], source: str) -> M:
    """Return the message with the JSON form ``value``.

    Raises:
        RecordCorrupt: ``value`` does not parse; the error names the field.
    """
    try:
        return json_format.ParseDict(value, kind())
    except json_format.ParseError as exc:
        raise RecordCorrupt(f"{source} is corrupt: {exc}; expected JSON of {kind.DESCRIPTOR.name}") from exc


def write_json(message: Message) -> dict[str, Any]:
    """Return the JSON form of ``message``, with the names of the fields in its file."""
    form: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return form


def missing_fields(message: Message) -> list[str]:
    """Return the paths of required fields that are not set."""
    paths: list[str] = message.FindInitializationErrors()  # type: ignore[attr-defined]
    return paths

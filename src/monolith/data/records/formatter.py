"""Records as text, and back: JSON, protobuf text, and the key dump.

Every style gives back an equal message, unknown fields included. ``readable=True`` is for people only: ids show their
slot and signature, and the serialized LineIds of a batch are opened. Files and framing are handled elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from monolith._proto.messages import Message, missing_fields, parse_bytes, parse_text, write_text
from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.records._protobuf import is_map, map_entry, scalar_kind, unknown_bytes
from monolith.data.records.key_dump import looks_like_dump, parse_dump, write_dump
from monolith.data.records.message_tree import Misfit, fill, to_readable_tree, to_tree
from monolith.data.records.messages import STANDARD, Messages

if TYPE_CHECKING:
    from monolith.data.sources.base import RecordKind

__all__ = ["Style", "detect_style", "format_record", "parse_record"]

Style: TypeAlias = Literal["json", "pbtxt", "dump"]
"""``json``; ``pbtxt``, protobuf's text format; ``dump``, one key per line."""

# Text format has no place for unknown fields, so they go into comments that we read again.
_UNKNOWN_COMMENT = "# unknown fields of "
_UNKNOWN_LINE = re.compile(r"^# unknown fields of (\S+): (\S*)\s*$", re.MULTILINE)
_STEP = re.compile(r"(?:^|\.)(\w+)|\[(\d+)\]|\[([A-Za-z0-9+/=]*)=key\]")
_ROOT = "record"


def format_record(message: Message, style: Style = "json", *, readable: bool = False) -> str:
    """Return ``message`` as text.

    Args:
        message: Any message of `monolith.data.records.messages`.
        style: How to write it.
        readable: For people: ids as ``value(v1|slot=..|sig=..)``, LineIds opened. Not for ``pbtxt``; it cannot be read
            back.

    Raises:
        ConfigError: No such style.
    """
    if style == "pbtxt":
        if readable:
            raise ConfigError("style 'pbtxt' has no readable form; use 'json' or 'dump'")
        comments = [
            f"{_UNKNOWN_COMMENT}{path}: {base64.b64encode(unknown).decode()}\n"
            for path, unknown in _unknowns(message, _ROOT)
        ]
        return write_text(message) + "".join(comments)
    tree = to_readable_tree(message) if readable else to_tree(message)
    if style == "json":
        return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"
    if style == "dump":
        return write_dump(tree)
    raise ConfigError(f"style {style!r} is not known; use 'json', 'pbtxt' or 'dump'")


def parse_record(
    text: str,
    record: RecordKind | type[Message],
    style: Style | None = None,
    *,
    messages: Messages = STANDARD,
    source: str = "text",
) -> Any:
    """Return the message that ``text`` describes.

    Args:
        text: One record.
        record: Which record it is, or the class of the message.
        style: How it is written; None to see from the text.
        messages: The family to take the class from, when ``record`` is a kind.
        source: Name of the text in errors.

    Raises:
        RecordCorrupt: The text is not such a record; the error names the line or the field.
        ConfigError: No such style or record.
    """
    message = (messages.record_class(record) if isinstance(record, str) else record)()
    style = style or detect_style(text, source)
    if style == "json":
        _parse_json(text, message, source)
    elif style == "pbtxt":
        parse_text(text, message, source)
        _restore_unknowns(text, message, source)
    elif style == "dump":
        parse_dump(text, message, source)
    else:
        raise ConfigError(f"style {style!r} is not known; use 'json', 'pbtxt' or 'dump'")
    if missing := missing_fields(message):
        raise RecordCorrupt(f"{source}: required fields are missing: {', '.join(missing)}")
    return message


def detect_style(text: str, source: str = "text") -> Style:
    """Return the style that ``text`` is written in, by how it begins.

    Raises:
        RecordCorrupt: The text is empty.
    """
    if not text.strip():
        raise RecordCorrupt(f"{source}: the text is empty, expected a record; pass style= for an empty record")
    if text.lstrip()[0] in "{[":
        return "json"
    return "dump" if looks_like_dump(text) else "pbtxt"


def _parse_json(text: str, message: Message, source: str) -> None:
    try:
        tree = json.loads(text, object_pairs_hook=_without_doubles)
    except json.JSONDecodeError as exc:
        raise RecordCorrupt(f"{source}: line {exc.lineno}: not JSON ({exc.msg})") from exc
    except (ValueError, RecursionError) as exc:
        raise RecordCorrupt(f"{source}: not JSON that can be read ({exc})") from exc
    try:
        fill(message, tree)
    except Misfit as exc:
        raise RecordCorrupt(f"{source}: {exc}") from exc


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return tree


# --- the unknown fields of text format --------------------------------------------------------------------------------


def _unknowns(message: Message, path: str) -> Iterator[tuple[str, bytes]]:
    if unknown := unknown_bytes(message):
        yield path, unknown
    for field, value in message.ListFields():
        here = f"{path}.{field.name}"
        if is_map(field):
            if scalar_kind(map_entry(field)[1]) == "message":
                for key in sorted(value):
                    encoded = base64.b64encode(str(key).encode()).decode()
                    yield from _unknowns(value[key], f"{here}[{encoded}=key]")
        elif scalar_kind(field) == "message":
            for index, one in enumerate(value) if field.is_repeated else [(None, value)]:
                yield from _unknowns(one, here if index is None else f"{here}[{index}]")


def _restore_unknowns(text: str, message: Message, source: str) -> None:
    if _UNKNOWN_COMMENT not in text:
        return
    for matched in _UNKNOWN_LINE.finditer(text):
        line = text.count("\n", 0, matched.start()) + 1
        try:
            target = _at(message, matched[1])
            unknown = base64.b64decode(matched[2], validate=True)
        except (AttributeError, IndexError, KeyError, TypeError, binascii.Error, ValueError) as exc:
            raise RecordCorrupt(
                f"{source}: line {line}: the record has no {matched[1]}, or its bytes are damaged"
            ) from exc
        target.MergeFrom(parse_bytes(type(target), unknown, f"{source}: line {line}"))


def _at(message: Message, path: str) -> Any:
    at: Any = message
    for name, index, key in _STEP.findall(path.removeprefix(_ROOT)):
        if name:
            at = getattr(at, name)
        elif index:
            at = at[int(index)]
        else:
            at = at[base64.b64decode(key).decode()]
    if not isinstance(at, Message):
        raise TypeError(f"{path} is not a message")
    return at

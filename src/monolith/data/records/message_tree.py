"""Messages as plain trees of dicts, lists and scalars, and back: the common form behind JSON and the key dump.

The mapping is that of protobuf's JSON: 64-bit numbers are text, bytes are base64, enums are names, NaN and the
infinities are text. Keys are the names of the .proto files; camel case is read too. Fields that a message does not know
are kept as base64 under ``@unknown``, so that a tree gives back the whole message.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from monolith._proto.messages import Message, parse_bytes
from monolith.core import fid
from monolith.core.errors import RecordCorrupt
from monolith.data.records._protobuf import (
    Descriptor,
    FieldDescriptor,
    descriptor_of,
    enum_type,
    is_map,
    map_entry,
    scalar_kind,
    unknown_bytes,
)
from monolith.data.records.messages import LINE_ID, STANDARD, family_of

__all__ = ["UNKNOWN", "Misfit", "Tree", "fill", "find_field", "to_readable_tree", "to_tree"]

Tree: TypeAlias = Any
"""A dict, list, text, number, bool or None, nested."""

UNKNOWN = "@unknown"
"""The key of a message's unknown fields."""

_U64_RANGE = 1 << 64


class Misfit(Exception):
    """A tree does not fit the message: where (such as ``feature[2].fid[0]``), and why."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'the record'}: {problem}")
        self.path = path
        self.problem = problem


def to_tree(message: Message) -> dict[str, Tree]:
    """Return the tree of ``message``; `fill` makes an equal message of it."""
    return _Writer().tree(message)


def to_readable_tree(message: Message) -> dict[str, Tree]:
    """Return a tree for people: ids show their slot and signature, and serialized LineIds are opened.

    It cannot be read back.
    """
    return _ReadableWriter(message).tree(message)


def fill(message: Message, tree: Tree, path: str = "") -> None:
    """Add the fields of ``tree`` to ``message``.

    Raises:
        Misfit: A key or value does not fit.
    """
    if not isinstance(tree, Mapping):
        raise Misfit(path, f"a group of keys is expected ({message.DESCRIPTOR.name}), not {_show(tree)}")
    given: set[int] = set()
    for key, value in tree.items():
        here = f"{path}.{key}" if path else str(key)
        if key == UNKNOWN:
            _fill_unknown(message, value, here)
            continue
        field = find_field(descriptor_of(message), key)
        if field is None:
            known = ", ".join(known.name for known in message.DESCRIPTOR.fields)
            raise Misfit(here, f"{message.DESCRIPTOR.name} has no such field; known: {known}")
        if field.number in given:  # in both spellings
            raise Misfit(here, f"{field.name!r} is given twice")
        given.add(field.number)
        if value is None:
            continue
        oneof = field.containing_oneof
        if oneof is not None and (other := message.WhichOneof(oneof.name)) is not None:
            raise Misfit(here, f"{other!r} is given already, and only one of them can be")
        _fill_field(message, field, value, here)


def find_field(descriptor: Descriptor, key: str) -> FieldDescriptor | None:
    """Return the field of that name, in the spelling of the .proto file or in camel case."""
    field: FieldDescriptor | None = descriptor.fields_by_name.get(key)
    return field if field is not None else descriptor.fields_by_camelcase_name.get(key)


# --- writing ----------------------------------------------------------------------------------------------------------


class _Writer:
    def tree(self, message: Message) -> dict[str, Tree]:
        tree = {field.name: self.field(field, value) for field, value in message.ListFields()}
        if unknown := unknown_bytes(message):
            tree[UNKNOWN] = base64.b64encode(unknown).decode()
        return tree

    def field(self, field: FieldDescriptor, value: Any) -> Tree:
        if is_map(field):
            _, value_field = map_entry(field)
            return {str(key): self.one(value_field, value[key]) for key in sorted(value)}
        if field.is_repeated:
            return [self.one(field, one) for one in value]
        return self.one(field, value)

    def one(self, field: FieldDescriptor, value: Any) -> Tree:
        kind = scalar_kind(field)
        if kind == "message":
            return self.tree(value)
        if kind in ("float", "double"):
            return _real_to_tree(value, kind == "float")
        if kind == "long":
            return str(value)
        if kind == "bytes":
            return base64.b64encode(value).decode()
        if kind == "enum":
            named = enum_type(field).values_by_number.get(value)
            return value if named is None else named.name
        return value


def _real_to_tree(value: float, is_float32: bool) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    # The shortest text that gives the same float32: 0.1, not 0.10000000149011612.
    return float(str(np.float32(value))) if is_float32 else value


# Fields that hold ids, and the version of these.
_FID_VERSIONS = {
    "parser.proto.Instance.fid": 1,
    "parser.proto.Instance.next_fid": 1,
    "idl.matrix.proto.Feature.fid": 2,
    "idl.matrix.proto.Feature.fid_list": 2,
    "monolith.io.proto.Feature.fid_v1_list": 1,
    "monolith.io.proto.Feature.fid_v1_lists": 1,
    "monolith.io.proto.Feature.fid_v2_list": 2,
    "monolith.io.proto.Feature.fid_v2_lists": 2,
}
_NAMED_COLUMNS = {"monolith.io.proto.NamedFeature", "monolith.io.proto.NamedFeatureList"}


class _ReadableWriter(_Writer):
    def __init__(self, message: Message) -> None:
        try:
            self._line_id = family_of(message).LineId
        except ValueError:
            self._line_id = STANDARD.LineId
        self._version = 0  # of the ids in the field being written; 0 outside such a field
        self._in_line_ids = False

    def tree(self, message: Message) -> dict[str, Tree]:
        if message.DESCRIPTOR.full_name not in _NAMED_COLUMNS:
            return super().tree(message)
        self._in_line_ids = getattr(message, "name", "") == LINE_ID
        tree = super().tree(message)
        self._in_line_ids = False
        return tree

    def field(self, field: FieldDescriptor, value: Any) -> Tree:
        version = _FID_VERSIONS.get(field.full_name)
        if version is None:
            return super().field(field, value)
        self._version = version
        tree = super().field(field, value)
        self._version = 0
        return tree

    def one(self, field: FieldDescriptor, value: Any) -> Tree:
        kind = scalar_kind(field)
        if self._version and kind == "long":
            return _describe_fid(value, self._version)
        if self._in_line_ids and kind == "bytes":
            try:
                line_id = parse_bytes(self._line_id, value, LINE_ID)
            except RecordCorrupt:
                return super().one(field, value)
            return super().tree(line_id)
        return super().one(field, value)


def _describe_fid(value: int, version: int) -> str:
    slot, signature = (
        (fid.slot_v1(value), fid.signature_v1(value)) if version == 1 else (fid.slot_v2(value), fid.signature_v2(value))
    )
    return f"{value}(v{version}|slot={slot}|sig={signature})"


# --- reading ----------------------------------------------------------------------------------------------------------


def _fill_unknown(message: Message, value: Tree, path: str) -> None:
    try:
        message.MergeFrom(parse_bytes(type(message), _bytes_from_tree(value, path), path))
    except RecordCorrupt as exc:
        raise Misfit(path, str(exc)) from exc


def _fill_field(message: Message, field: FieldDescriptor, value: Tree, path: str) -> None:
    target: Any = getattr(message, field.name)
    is_message = scalar_kind(field) == "message"
    if is_map(field):
        _fill_map(target, field, value, path)
    elif field.is_repeated:
        if not isinstance(value, list):
            raise Misfit(path, f"a list is expected, not {_show(value)}")
        for index, one in enumerate(value):
            here = f"{path}[{index}]"
            if is_message:
                fill(target.add(), one, here)
            else:
                _guarded(target.append, field, one, here)
    elif is_message:
        target.SetInParent()
        fill(target, value, path)
    else:
        _guarded(lambda scalar: setattr(message, field.name, scalar), field, value, path)


def _fill_map(target: Any, field: FieldDescriptor, value: Tree, path: str) -> None:
    if not isinstance(value, Mapping):
        raise Misfit(path, f"a group of keys is expected, not {_show(value)}")
    key_field, value_field = map_entry(field)
    for key, one in value.items():
        here = f"{path}[{key!r}]"
        map_key = _scalar_from_tree(key_field, key, here)
        if scalar_kind(value_field) == "message":
            fill(target[map_key], one, here)
        else:
            _guarded(lambda scalar, at=map_key: target.__setitem__(at, scalar), value_field, one, here)


def _guarded(store: Any, field: FieldDescriptor, value: Tree, path: str) -> None:
    scalar = _scalar_from_tree(field, value, path)
    try:
        store(scalar)
    except (TypeError, ValueError) as exc:
        raise Misfit(path, f"{_show(value)} does not fit ({exc})") from exc


def _scalar_from_tree(field: FieldDescriptor, value: Tree, path: str) -> Any:
    kind = scalar_kind(field)
    if kind in ("int", "long"):
        return _int_from_tree(field, value, path)
    if kind in ("float", "double"):
        return _real_from_tree(value, path)
    if kind == "bytes":
        return _bytes_from_tree(value, path)
    if kind == "enum":
        return _enum_from_tree(field, value, path)
    expected: type = bool if kind == "bool" else str
    if not isinstance(value, expected):
        raise Misfit(path, f"{'true or false' if kind == 'bool' else 'text'} is expected, not {_show(value)}")
    return value


def _int_from_tree(field: FieldDescriptor, value: Tree, path: str) -> int:
    try:
        number = int(value)  # of text, too: 64-bit numbers are text in JSON
        whole = not isinstance(value, bool) and (isinstance(value, str) or number == value)
    except (TypeError, ValueError, OverflowError):
        whole = False
    if not whole:
        raise Misfit(path, f"a whole number is expected, not {_show(value)}")
    # Tables carry ids as signed numbers; a fixed64 has the same bits.
    if field.type == FieldDescriptor.TYPE_FIXED64 and -(_U64_RANGE >> 1) <= number < 0:
        number += _U64_RANGE
    return number


def _real_from_tree(value: Tree, path: str) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise Misfit(path, f"a number is expected, not {_show(value)}")


def _bytes_from_tree(value: Tree, path: str) -> bytes:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, altchars=b"-_" if set("-_") & set(value) else None, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise Misfit(path, f"base64 text is expected, not {_show(value)}")


def _enum_from_tree(field: FieldDescriptor, value: Tree, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    named = enum_type(field).values_by_name.get(value) if isinstance(value, str) else None
    if named is None:
        known = ", ".join(enum_type(field).values_by_name)
        raise Misfit(path, f"one of {known} is expected, not {_show(value)}")
    number: int = named.number
    return number


def _show(value: Tree) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."

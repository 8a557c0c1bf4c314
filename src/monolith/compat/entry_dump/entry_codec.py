"""Converts one ``EntryDump`` record to and from an ``Entry``, without its table.

For tools and tests, one record at a time. Whole tables go through the native codec, which works on rows and a schema;
a parity test keeps the two equal. Opens no file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.embedding.entry import Entry, SliceState

__all__ = ["STATE_FIELDS", "decode_entry", "encode_entry"]

_NUMBERS = {
    "adagrad": 1,
    "sgd": 2,
    "ftrl": 3,
    "dynamic_wd_adagrad": 4,
    "adadelta": 6,
    "adam": 7,
    "amsgrad": 8,
    "momentum": 9,
    "rmsprop": 11,
    "rmspropv2": 12,
    "group_ftrl": 13,
    "batch_softmax": 14,
    "group_adagrad": 15,
}
_KINDS = {number: kind for kind, number in _NUMBERS.items()}

STATE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "adagrad": ("norm",),
    "sgd": (),
    "ftrl": ("zero", "norm"),
    "dynamic_wd_adagrad": ("norm", "last_update_step"),
    "adadelta": ("accum", "accum_update"),
    "adam": ("m", "v", "beta1_power", "beta2_power"),
    "amsgrad": ("m", "v", "vhat", "beta1_power", "beta2_power"),
    "momentum": ("n",),
    "rmsprop": ("n",),
    "rmspropv2": ("n",),
    "group_ftrl": ("zero", "norm"),
    "batch_softmax": ("global_step",),
    "group_adagrad": ("grad_square_sum",),
    "moving_average": (),
}
"""State fields of every optimizer; a field's number in its message is its place here, counted from 1."""

_INT64_FIELDS = frozenset({"last_update_step", "global_step"})
_WITHOUT_ELEMENT = "moving_average"

_VARINT, _FIXED64, _BLOCK, _FIXED32 = 0, 1, 2, 5


class _Malformed(Exception):
    """Why a message cannot be read; the caller adds the place."""


def decode_entry(record: bytes, where: str = "entry") -> Entry:
    """Return the row of one record, with the optimizer state that the record holds.

    Raises:
        RecordCorrupt: the bytes are not an ``EntryDump``; the text begins with ``where``.
    """
    try:
        return _decode_entry(record)
    except _Malformed as exc:
        raise RecordCorrupt(f"{where}: {exc}") from exc


def _decode_entry(record: bytes) -> Entry:
    row_id: int | None = None
    values: list[NDArray[np.float32]] = []
    state: list[SliceState] = []
    time_s = 0
    for number, wire, value in _fields(record):
        match number:
            case 1:
                row_id = int.from_bytes(_expect(wire, _FIXED64, "id", value), "little", signed=True)
            case 2:
                values.append(_floats(wire, value, "num"))
            case 3:
                for inner, inner_wire, element in _fields(_expect(wire, _BLOCK, "opt", value)):
                    if inner == 1:
                        state.append(_decode_state(_expect(inner_wire, _BLOCK, "opt.dump", element)))
            case 4:
                time_s = _signed(_expect(wire, _VARINT, "last_update_ts_sec", value))
    if row_id is None:
        raise _Malformed("field 'id' is missing; is this an EntryDump file?")
    return Entry(row_id, _join(values), tuple(state), time_s)


def _decode_state(element: bytes) -> SliceState:
    members = [(number, wire, value) for number, wire, value in _fields(element)]
    if len(members) != 1 or members[0][0] not in _KINDS:
        numbers = [number for number, _, _ in members]
        raise _Malformed(f"an element of 'opt' holds the members {numbers}; one known optimizer is expected")
    number, wire, message = members[0]
    kind = _KINDS[number]
    names = STATE_FIELDS[kind]
    found: dict[str, list[NDArray[Any]]] = {}
    for position, inner_wire, value in _fields(_expect(wire, _BLOCK, kind, message)):
        if not 1 <= position <= len(names):
            continue
        name = names[position - 1]
        if name in _INT64_FIELDS:
            found[name] = [np.array([_signed(_expect(inner_wire, _VARINT, name, value))], np.int64)]
        else:
            found.setdefault(name, []).append(_floats(inner_wire, value, name))
    return SliceState(kind, {name: np.concatenate(parts) for name, parts in found.items()})


def _join(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


def _expect(wire: int, expected: int, name: str, value: Any) -> Any:
    if wire != expected:
        raise _Malformed(f"field {name!r} has wire type {wire}, not {expected}")
    return value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _floats(wire: int, value: Any, name: str) -> NDArray[np.float32]:
    if wire == _FIXED32:
        return value  # type: ignore[no-any-return]
    packed = _expect(wire, _BLOCK, name, value)
    if len(packed) % 4:
        raise _Malformed(f"field {name!r} has {len(packed)} bytes of packed floats")
    return np.frombuffer(packed, "<f4").astype(np.float32)


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield (number, wire type, value); 32-bit fields that follow each other come as one array."""
    at = 0
    while at < len(data):
        key, after = _varint(data, at)
        number, wire = key >> 3, key & 7
        if number == 0 or key >> 32:
            raise _Malformed(f"field number {number} is not possible")
        value: Any
        match wire:
            case 0:
                value, at = _varint(data, after)
            case 1:
                value, at = _slice(data, after, 8)
            case 2:
                size, after = _varint(data, after)
                value, at = _slice(data, after, size)
            case 5:
                value, at = _float_run(data, at, after)
            case _:
                raise _Malformed(f"field {number} has wire type {wire}")
        yield number, wire, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise _Malformed("the message ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, at
    raise _Malformed("a number is longer than 64 bits")


def _slice(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size > len(data) - at:
        raise _Malformed(f"a field needs {size} bytes, the message has {len(data) - at} left")
    return data[at : at + size], at + size


def _float_run(data: bytes, at: int, after: int) -> tuple[NDArray[np.float32], int]:
    if len(data) - after < 4:
        raise _Malformed(f"a field needs 4 bytes, the message has {len(data) - after} left")
    if after - at != 1:
        return np.frombuffer(data, "<f4", 1, after).astype(np.float32), after + 4
    steps = (len(data) - at) // 5
    run = np.frombuffer(data, np.uint8, steps * 5, at).reshape(steps, 5)
    others = np.flatnonzero(run[:, 0] != data[at])
    count = int(others[0]) if others.size else steps
    return run[:count, 1:].copy().view("<f4").reshape(count).astype(np.float32), at + 5 * count


def encode_entry(entry: Entry, optimizers: Sequence[str] | None = None) -> bytes:
    """Return the record of one row, byte for byte as the original writes it.

    Args:
        entry: The row. Without state it becomes a record without ``opt``.
        optimizers: The kind of every slice's optimizer, needed where ``entry.state`` does not name it.

    Raises:
        ConfigError: the id or time is not an int64, or the state does not fit its optimizer.
    """
    for name, value in (("id", entry.id), ("time_s", entry.time_s)):
        if not -(1 << 63) <= value < 1 << 63:
            raise ConfigError(f"Entry.{name} is {value}, which is not a 64-bit signed number")
    out = b"\x09" + struct.pack("<q", entry.id) + _encode_floats(2, entry.values)
    if entry.state:
        out += _encode_block(3, b"".join(_encode_states(entry.state, optimizers)))
    return out + b"\x20" + _encode_varint(entry.time_s)


def _encode_states(state: Sequence[Mapping[str, Any]], optimizers: Sequence[str] | None) -> Iterator[bytes]:
    if optimizers is not None and len(optimizers) != len(state):
        raise ConfigError(f"Entry.state has {len(state)} slices, optimizers names {len(optimizers)}; give one for each")
    for position, fields in enumerate(state):
        kind = optimizers[position] if optimizers is not None else _kind_of(fields, position)
        if kind not in STATE_FIELDS or set(fields) != set(STATE_FIELDS[kind]):
            raise ConfigError(f"Entry.state[{position}] has the fields {sorted(fields)}, which is not {kind!r} state")
        if kind != _WITHOUT_ELEMENT:
            yield _encode_block(1, _encode_block(_NUMBERS[kind], _encode_state(kind, fields)))


def _kind_of(fields: Mapping[str, Any], position: int) -> str:
    if isinstance(fields, SliceState):
        return fields.kind
    kinds = [kind for kind, names in STATE_FIELDS.items() if set(names) == set(fields)]
    if len(kinds) != 1:
        raise ConfigError(
            f"Entry.state[{position}] has the fields {sorted(fields)}, which fit {kinds or 'no optimizer'}; "
            "name the optimizers, or use SliceState"
        )
    return kinds[0]


def _encode_state(kind: str, fields: Mapping[str, Any]) -> bytes:
    out = b""
    for number, name in enumerate(STATE_FIELDS[kind], 1):
        if name in _INT64_FIELDS:
            out += bytes([number << 3 | _VARINT]) + _encode_varint(int(np.asarray(fields[name]).reshape(())))
        else:
            out += _encode_floats(number, np.atleast_1d(np.asarray(fields[name], np.float32)))
    return out


def _encode_varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _encode_block(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _BLOCK]) + _encode_varint(len(content)) + content


def _encode_floats(number: int, values: NDArray[np.float32]) -> bytes:
    flat = np.ascontiguousarray(values, "<f4").reshape(-1, 1)
    out = np.empty((len(flat), 5), np.uint8)
    out[:, 0] = number << 3 | _FIXED32
    out[:, 1:] = flat.view(np.uint8).reshape(-1, 4)
    return out.tobytes()

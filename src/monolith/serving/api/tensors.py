"""Convert between TensorFlow's TensorProto and numpy arrays.

``read_tensor`` checks a client's tensor before it allocates memory: the shape must fit the values. The one exception is
TensorFlow's rule that the last value fills the rest, up to ``MAX_ELEMENTS``. A string tensor becomes an array of
``bytes`` objects. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import InvalidRequest
from monolith.serving.api.messages import TensorProto

__all__ = [
    "DT_STRING",
    "MAX_ELEMENTS",
    "data_type",
    "dtype_name",
    "encode_outputs",
    "encode_tensor",
    "make_tensor",
    "read_tensor",
    "varint",
]

Array = NDArray[Any]

MAX_ELEMENTS = 1 << 24
"""Largest number of elements of a tensor whose last value fills the rest."""
_MAX_SIZES = 1 << 48
"""Largest product of the other sizes of a shape with a size of 0."""
DT_STRING = 7

# Number of the data type -> name, numpy type, field of the values. numpy has no bfloat16.
_TYPES: dict[int, tuple[str, np.dtype[Any], str]] = {
    1: ("DT_FLOAT", np.dtype(np.float32), "float_val"),
    2: ("DT_DOUBLE", np.dtype(np.float64), "double_val"),
    3: ("DT_INT32", np.dtype(np.int32), "int_val"),
    4: ("DT_UINT8", np.dtype(np.uint8), "int_val"),
    5: ("DT_INT16", np.dtype(np.int16), "int_val"),
    6: ("DT_INT8", np.dtype(np.int8), "int_val"),
    7: ("DT_STRING", np.dtype(object), "string_val"),
    9: ("DT_INT64", np.dtype(np.int64), "int64_val"),
    10: ("DT_BOOL", np.dtype(np.bool_), "bool_val"),
    17: ("DT_UINT16", np.dtype(np.uint16), "int_val"),
    19: ("DT_HALF", np.dtype(np.float16), "half_val"),
    22: ("DT_UINT32", np.dtype(np.uint32), "uint32_val"),
    23: ("DT_UINT64", np.dtype(np.uint64), "uint64_val"),
}
_NUMBERS = {kind: number for number, (_, kind, _) in _TYPES.items()}
# One tag byte each; the packed little-endian values are the wire form.
_RAW_TAGS = {np.dtype(np.float32): b"\x2a", np.dtype(np.float64): b"\x32"}


def data_type(dtype: Any) -> int:
    """Return TensorFlow's number of a numpy type; strings and bytes are DT_STRING.

    Raises:
        InvalidRequest: TensorFlow has no such type.
    """
    kind = np.dtype(object if dtype == "string" else dtype)
    number = DT_STRING if kind.kind in "SUO" else _NUMBERS.get(kind.newbyteorder("="))
    if number is None:
        raise InvalidRequest(f"type of an array is {kind}, expected float32, int64 or bytes")
    return number


def dtype_name(number: int) -> str:
    """Return the name of a data type, such as DT_FLOAT."""
    return _TYPES[number][0] if number in _TYPES else f"data type {number}"


# --- reading ---


def read_tensor(tensor: TensorProto, name: str) -> Array:
    """Return a client's tensor as an array.

    Raises:
        InvalidRequest: Data type, shape and values do not match.
    """
    found = _TYPES.get(tensor.dtype)
    if found is None:
        raise InvalidRequest(f"type of input {name!r} is {dtype_name(tensor.dtype)}, expected a supported type")
    shape = _shape_of(tensor, name)
    if tensor.dtype == DT_STRING:
        return _strings(tensor, shape, name)
    _, kind, field = found
    if tensor.tensor_content:
        expected = math.prod(shape) * kind.itemsize
        if len(tensor.tensor_content) != expected:
            raise InvalidRequest(
                f"tensor_content of input {name!r} has {len(tensor.tensor_content)} bytes, expected {expected} for "
                f"shape {shape} of {kind}"
            )
        return np.frombuffer(tensor.tensor_content, kind.newbyteorder("<")).reshape(shape)
    values = np.array(getattr(tensor, field), np.uint16 if kind == np.float16 else None)
    if kind == np.float16:
        values = values.view(np.float16)
    elif (
        field == "int_val" and values.size and (values.min() < np.iinfo(kind).min or values.max() > np.iinfo(kind).max)
    ):
        raise InvalidRequest(f"input {name!r} has values out of range, expected {kind}")
    return _filled(values.astype(kind, copy=False), shape, name)


def _shape_of(tensor: TensorProto, name: str) -> tuple[int, ...]:
    if tensor.tensor_shape.unknown_rank:
        raise InvalidRequest(f"shape of input {name!r} has unknown rank, expected its dimensions")
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    if len(shape) > 32 or any(size < 0 for size in shape):
        raise InvalidRequest(f"shape of input {name!r} is {shape[:33]}, expected at most 32 sizes from 0")
    if 0 in shape and math.prod(size for size in shape if size) > _MAX_SIZES:  # numpy limits empty arrays too
        raise InvalidRequest(f"shape of input {name!r} is {shape}, expected a product of the sizes up to {_MAX_SIZES}")
    return shape


def _filled(values: Array, shape: tuple[int, ...], name: str) -> Array:
    count = math.prod(shape)
    if len(values) == count:
        return values.reshape(shape)
    if len(values) > count:
        raise InvalidRequest(f"input {name!r} has {len(values)} values, expected {count} for shape {shape}")
    if count > MAX_ELEMENTS:
        raise InvalidRequest(f"input {name!r} has {len(values)} values, expected all {count} of shape {shape}")
    whole = np.zeros(count, values.dtype)
    whole[: len(values)] = values
    if len(values):
        whole[len(values) :] = values[-1]
    return whole.reshape(shape)


def _strings(tensor: TensorProto, shape: tuple[int, ...], name: str) -> Array:
    values = list(tensor.string_val)
    if tensor.tensor_content:
        values = _string_list(tensor.tensor_content, math.prod(shape), name)
    count = math.prod(shape)
    if len(values) != count:
        raise InvalidRequest(f"input {name!r} has {len(values)} strings, expected {count} for shape {shape}")
    array = np.empty(count, object)
    array[:] = values
    return array.reshape(shape)


def _string_list(content: bytes, count: int, name: str) -> list[bytes]:
    """Read ``count`` lengths as varints, then the strings."""
    if count > len(content):
        raise InvalidRequest(f"tensor_content of input {name!r} has {len(content)} bytes, expected {count} strings")
    place, lengths = 0, []
    for _ in range(count):
        length = shift = 0
        while True:
            if place >= len(content) or shift > 28:
                raise InvalidRequest(f"tensor_content of input {name!r} is invalid, expected {count} strings")
            byte = content[place]
            place += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        lengths.append(length)
    if place + sum(lengths) != len(content):
        raise InvalidRequest(f"tensor_content of input {name!r} is invalid, expected {count} strings")
    values = []
    for length in lengths:
        values.append(content[place : place + length])
        place += length
    return values


# --- writing ---


def make_tensor(array: Any) -> TensorProto:
    """Return the tensor of an array, or of a value that numpy can convert to an array.

    >>> make_tensor([[1, 2]]).int64_val
    [1, 2]
    """
    return TensorProto.FromString(encode_tensor(np.asarray(array)))


def encode_tensor(array: Array) -> bytes:
    """Return an encoded tensor. The values are in the field of their type, where old clients read them."""
    number = data_type(array.dtype)
    head = bytes((8, number)) + _delimited(
        b"\x12", b"".join(_delimited(b"\x12", b"\x08" + varint(size)) for size in array.shape)
    )
    kind = array.dtype.newbyteorder("=")
    tag = _RAW_TAGS.get(kind)
    if tag is not None:
        return head + _delimited(tag, np.ascontiguousarray(array, kind.newbyteorder("<")).tobytes())
    rest = TensorProto()
    if number == DT_STRING:
        rest.string_val.extend(_as_bytes(value) for value in array.ravel().tolist())
    elif kind == np.float16:
        rest.half_val.extend(np.ascontiguousarray(array).view(np.uint16).ravel().tolist())
    else:
        getattr(rest, _TYPES[number][2]).extend(array.ravel().tolist())
    return head + rest.SerializeToString()


def encode_outputs(outputs: Mapping[str, Array], model_spec: bytes) -> bytes:
    """Return an encoded PredictResponse."""
    parts = []
    for name, array in outputs.items():
        entry = _delimited(b"\x0a", name.encode()) + _delimited(b"\x12", encode_tensor(array))
        parts.append(_delimited(b"\x0a", entry))
    return b"".join(parts) + _delimited(b"\x12", model_spec)


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _delimited(tag: bytes, payload: bytes) -> bytes:
    return tag + varint(len(payload)) + payload


def varint(number: int) -> bytes:
    """Return the protobuf varint of a number from 0."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)

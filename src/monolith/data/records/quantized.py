"""Float vectors packed into the bytes of a feature: the ``UE_QTZ`` form.

More than four values are spread over 256 levels between their least and greatest; four or fewer are half floats. This
is the readable statement of the format; the native parser has its own decoder, held to this one.

======  ==============================================================================================
values  bytes after ``UE_QTZ``
======  ==============================================================================================
0..4    one little-endian half each, cut towards zero; a reader adds half a unit in the last place back
5..     least: half, greatest: half, then one byte per value: ``least + byte * (greatest - least) / 255``
======  ==============================================================================================

The two cannot be mistaken: the first has 0 to 8 bytes, the second at least 9.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from monolith.core.errors import ConfigError, RecordCorrupt, SchemaMismatch

__all__ = ["PREFIX", "decode_bfloat16", "decode_quantized", "encode_bfloat16", "encode_quantized", "is_quantized"]

PREFIX = b"UE_QTZ"
"""The first bytes of a packed vector."""

_FEW = 4
_LEVELS = 255
_HALF_MAX = 65504.0

FloatArray = npt.NDArray[np.float32]


def is_quantized(data: bytes) -> bool:
    """Return True if ``data`` starts like a packed vector."""
    return data.startswith(PREFIX)


def encode_quantized(values: npt.ArrayLike) -> bytes:
    """Return the packed form of a vector, prefix included.

    Raises:
        ConfigError: It is not a vector of finite numbers within the range of half floats.
    """
    vector = np.asarray(values, np.float64)
    if vector.ndim != 1:
        raise ConfigError(f"values must be one vector, got shape {vector.shape}")
    wrong = ~(np.abs(vector) <= _HALF_MAX)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ConfigError(f"value {at} is {vector[at]}; half floats reach from -65504 to 65504, clip it first")
    if vector.size <= _FEW:
        return PREFIX + _cut_to_half(vector).tobytes()
    least, greatest = vector.min(), vector.max()
    step = (greatest - least) / _LEVELS
    levels = np.zeros(vector.size) if step == 0 else np.minimum((vector - least) / step + 0.5, _LEVELS)
    return PREFIX + np.array([least, greatest], "<f2").tobytes() + levels.astype(np.uint8).tobytes()


def decode_quantized(data: bytes, dim: int | None = None) -> FloatArray:
    """Return the vector that ``data`` is the packed form of.

    Args:
        data: The bytes, prefix included.
        dim: How many values there must be; None takes any number.

    Raises:
        RecordCorrupt: The bytes are not a packed vector.
        SchemaMismatch: It has another number of values.
    """
    if not is_quantized(data):
        raise RecordCorrupt(f"a packed vector begins with {PREFIX!r}, these bytes with {data[: len(PREFIX)]!r}")
    body = data[len(PREFIX) :]
    vector = _decode_halves(body) if len(body) <= 2 * _FEW else _decode_levels(body)
    if dim is not None and vector.size != dim:
        raise SchemaMismatch(f"a packed vector has {vector.size} values, {dim} are declared; check the width")
    return vector


def encode_bfloat16(values: npt.ArrayLike) -> bytes:
    """Return the upper two bytes of each float32, little-endian, no prefix."""
    vector = np.ascontiguousarray(values, np.float32)
    return (vector.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()


def decode_bfloat16(data: bytes) -> FloatArray:
    """Return the floats whose upper two bytes ``data`` has.

    Raises:
        RecordCorrupt: The number of bytes is odd.
    """
    if len(data) % 2:
        raise RecordCorrupt(f"the vector has {len(data)} bytes, expected a whole number of 2-byte floats")
    return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _cut_to_half(vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float16]:
    nearest = vector.astype("<f2")
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(vector)
    # One less in the bits is the next number towards zero, for either sign.
    return np.where(beyond, nearest.view("<u2") - 1, nearest.view("<u2")).astype("<u2").view("<f2")


def _decode_halves(body: bytes) -> FloatArray:
    if len(body) % 2:
        raise RecordCorrupt(f"a packed vector has {len(body)} bytes, which is neither 2 for each value nor 9 or more")
    halves = np.frombuffer(body, "<f2")
    if np.isnan(halves).any():
        raise RecordCorrupt("a packed vector holds a value that is not a number")
    exponents = (halves.view("<u2").astype(np.int64) >> 10) & 0x1F
    values = halves.astype(np.float64)
    restored = values + np.sign(values) * np.exp2(exponents - 26.0)
    return np.where(np.isinf(values), np.copysign(_HALF_MAX, values), restored).astype(np.float32)


def _decode_levels(body: bytes) -> FloatArray:
    least, greatest = (float(end) for end in np.frombuffer(body[:4], "<f2"))
    if not (math.isfinite(least) and math.isfinite(greatest)):
        raise RecordCorrupt(f"a packed vector reaches from {least} to {greatest}")
    levels = np.frombuffer(body[4:], np.uint8)
    return (least + levels * ((greatest - least) / _LEVELS)).astype(np.float32)

"""First values and compressed reads of a slice, as the engine computes them, in plain Python and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import float32 as f32
from numpy.typing import NDArray

from monolith.core.errors import ConfigError
from monolith.embedding.specs import SliceSpec, TableSpec

__all__ = ["gradient_of_stored", "initial_values", "read_values", "scale_at"]

Vector = NDArray[np.float32]

_MASK = (1 << 64) - 1


def scramble(x: int) -> int:
    """Return 64 well-mixed bits: the engine's ``scramble`` of ``hash.h``."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def unit_float(bits: int) -> f32:
    """Return a float in [0, 1) made of the 24 highest of 64 bits."""
    return f32((bits & _MASK) >> 40) * f32(2.0**-24)


def initial_values(spec: TableSpec, fid: int) -> Vector:
    """Return the first values of an id, all slices. Shapes: (D,)."""
    seed = table_seed(spec)
    parts = [_fill(piece, scramble((seed + k) & _MASK), fid) for k, piece in enumerate(spec.slices)]
    return np.concatenate(parts)


def table_seed(spec: TableSpec) -> int:
    """Return the seed of a table: its own, mixed with its name."""
    seed = scramble(spec.seed)
    for byte in spec.name.encode():
        seed = scramble(seed ^ byte)
    return seed


def _fill(piece: SliceSpec, seed: int, fid: int) -> Vector:
    initializer: Any = piece.initializer
    match initializer.kind:
        case "zeros":
            return np.zeros(piece.dim, f32)
        case "ones":
            return np.ones(piece.dim, f32)
        case "constants":
            return np.full(piece.dim, initializer.constant, f32)
        case "random_uniform":
            return _uniform(f32(initializer.minval), f32(initializer.maxval), seed, fid, piece.dim)
    raise ConfigError(f"the plain model has no initializer {initializer.kind!r}; add it here")


def _uniform(minval: f32, maxval: f32, seed: int, fid: int, dim: int) -> Vector:
    draw = scramble(seed ^ scramble(fid & _MASK))
    units = []
    for pair in range((dim + 1) // 2):
        bits = scramble((draw + pair) & _MASK)
        units += [unit_float(bits), unit_float(bits << 24)]
    largest = max(minval, np.nextafter(maxval, minval))
    return np.asarray(np.minimum(minval + np.array(units[:dim], f32) * (maxval - minval), largest), f32)


def read_values(piece: SliceSpec, stored: Vector, scale: float) -> Vector:
    """Return the values of one slice that a training lookup returns."""
    compressor: Any = piece.compressor
    if compressor.kind == "fixed_r8":
        step = f32(compressor.r) / f32(128)
        levels = np.clip((stored + np.copysign(step / f32(2), stored)) / step, f32(-128), f32(127))
        return np.asarray(np.trunc(np.nan_to_num(levels, nan=0.0)) * step, f32)
    if compressor.kind == "one_bit":
        return np.asarray(f32(compressor.amplitude) * np.tanh(f32(scale) * stored), f32)
    return stored.copy()


def gradient_of_stored(piece: SliceSpec, stored: Vector, grad: Vector, scale: float) -> Vector:
    """Return the gradient of the stored values, from the gradient of the looked-up values."""
    compressor: Any = piece.compressor
    if compressor.kind != "one_bit":
        return grad.copy()
    sign = np.tanh(f32(scale) * stored)
    return np.asarray(grad * f32(compressor.amplitude) * f32(scale) * (f32(1) - sign * sign), f32)


def scale_at(piece: SliceSpec, step: int, current: float) -> float:
    """Return the scale of a ``OneBit`` slice from ``step`` on; it moves only at multiples of ``step_size``."""
    compressor: Any = piece.compressor
    if compressor.kind != "one_bit" or step % compressor.step_size:
        return current
    grown = float(f32(compressor.init_scale)) * float(np.sqrt(1.0 + 0.005 * step))
    return float(min(f32(grown), f32(compressor.max_scale)))

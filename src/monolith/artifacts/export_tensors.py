"""Weights file of an export: named arrays in safetensors format, optionally quantized.

An ONNX program refers to each array by its offset. An 8-bit matrix has int8 values and one scale per column of its last
axis; a 16-bit matrix has float16 values. Pure functions on numpy arrays.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError, ManifestInvalid

__all__ = ["SCALE_SUFFIX", "TensorPlace", "is_quantizable", "quantized", "read_tensors", "restored", "write_tensors"]

SCALE_SUFFIX = ".scale"
"""Suffix of the scales of a weight."""

_ALIGNMENT = 64
_LEAST_SIZE = 16  # scales would enlarge smaller arrays
_NAMES = {"F16": "f2", "F32": "f4", "F64": "f8", "I8": "i1", "U8": "u1", "I32": "i4", "I64": "i8", "BOOL": "?"}
_CODES = {np.dtype(kind): name for name, kind in _NAMES.items()}
_MOST_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Position of an array in its file."""

    offset: int
    bytes: int


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, TensorPlace]:
    """Write and sync the arrays; return the position of each."""
    header: dict[str, Any] = {}
    at = 0
    # The format has no padding between arrays; wide types first keeps every array aligned.
    ordered = dict(sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize))
    for name, array in ordered.items():
        code = _CODES.get(array.dtype)
        if code is None:
            raise ConfigError(f"type of weight {name!r} is {array.dtype}, expected a safetensors type; cast it")
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    start = len(text) + 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in ordered.values():
            file.write(np.ascontiguousarray(array).tobytes())
        file.flush()
        os.fsync(file.fileno())
    return {
        name: TensorPlace(start + each["data_offsets"][0], each["data_offsets"][1] - each["data_offsets"][0])
        for name, each in header.items()
    }


def read_tensors(path: Path, content: bytes | None = None) -> dict[str, NDArray[Any]]:
    """Return all arrays of a file.

    Args:
        path: The file.
        content: Its content, if the caller has read it.

    Raises:
        ManifestInvalid: The file is corrupt.
    """
    content = path.read_bytes() if content is None else content
    try:
        length = int.from_bytes(content[:8], "little")
        if length > min(len(content), _MOST_HEADER_BYTES):
            raise ValueError(f"its header has {length} bytes")
        header = json.loads(content[8 : 8 + length])
        return {name: _array(content, 8 + length, each) for name, each in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestInvalid(f"'{path}' is corrupt: {error}") from error


def _array(content: bytes, start: int, entry: Mapping[str, Any]) -> NDArray[Any]:
    begin, end = entry["data_offsets"]
    kind, shape = np.dtype(_NAMES[entry["dtype"]]), tuple(entry["shape"])
    if not 0 <= begin <= end <= len(content) - start or end - begin != math.prod(shape) * kind.itemsize:
        raise ValueError(f"an array of shape {shape} has bytes {begin} to {end} of {len(content) - start}")
    return np.frombuffer(content, kind, count=math.prod(shape), offset=start + begin).reshape(shape)


# --- quantization ---------------------------------------------------------------------------------------------------


def is_quantizable(array: NDArray[Any]) -> bool:
    """Return whether to quantize an array: float matrices only, because biases and norms are small and sensitive."""
    return array.dtype == np.float32 and array.ndim >= 2 and array.size >= _LEAST_SIZE


def quantized(name: str, array: NDArray[np.float32], bits: int) -> dict[str, NDArray[Any]]:
    """Return the stored arrays of a quantized weight by name.

    Raises:
        ConfigError: A value is not finite, or beyond half precision.
    """
    if not np.isfinite(array).all():
        raise ConfigError(f"weight {name!r} has values that are not finite; export an earlier checkpoint")
    if bits == 16:
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        if not np.isfinite(half).all():
            raise ConfigError(
                f"largest value of weight {name!r} is {np.abs(array).max():.6g}, expected at most 65504 (half "
                "precision); export without quantize_bits=16"
            )
        return {name: half}
    axes = tuple(range(array.ndim - 1))
    largest = np.abs(array).max(axis=axes)
    scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    scale = np.maximum(scale, np.float32(np.finfo(np.float32).tiny))
    return {name: np.clip(np.rint(array / scale), -127, 127).astype(np.int8), name + SCALE_SUFFIX: scale}


def restored(name: str, stored: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return the decoded array, as the program computes it."""
    array = stored[name]
    values: NDArray[np.float32] = array.astype(np.float32)
    if name + SCALE_SUFFIX in stored:
        values *= stored[name + SCALE_SUFFIX]
    return values

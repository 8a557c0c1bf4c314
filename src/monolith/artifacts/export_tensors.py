"""The weights of an export: a file of named arrays, some of them stored with fewer bits.

The file has the safetensors format, which any reader of it can open; an ONNX program finds each array by its offset.
With 8 bits a matrix is stored as whole numbers and one scale per column of its last axis, with 16 bits as half
precision. NumPy only.
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

__all__ = ["SCALE_SUFFIX", "Place", "is_quantizable", "quantized", "read_tensors", "restored", "write_tensors"]

SCALE_SUFFIX = ".scale"
"""What the scales of a weight are called: its name and this."""

_ALIGNMENT = 64
_LEAST_SIZE = 16  # smaller arrays would grow by their scales
_NAMES = {"F16": "f2", "F32": "f4", "F64": "f8", "I8": "i1", "U8": "u1", "I32": "i4", "I64": "i8", "BOOL": "?"}
_CODES = {np.dtype(kind): name for name, kind in _NAMES.items()}
_MOST_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array lies in its file."""

    offset: int
    bytes: int


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Place]:
    """Write the arrays, wait until the disk has them, and return where each lies."""
    header: dict[str, Any] = {}
    at = 0
    for name, array in arrays.items():
        at = -(-at // _ALIGNMENT) * _ALIGNMENT
        code = _CODES.get(array.dtype)
        if code is None:
            raise ConfigError(f"weight {name!r} is of type {array.dtype}, which an export cannot hold; cast it")
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    start = len(text) + 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, array in arrays.items():
            file.seek(start + header[name]["data_offsets"][0])
            file.write(np.ascontiguousarray(array).tobytes())
        file.truncate(start + at)
        file.flush()
        os.fsync(file.fileno())
    return {
        name: Place(start + each["data_offsets"][0], each["data_offsets"][1] - each["data_offsets"][0])
        for name, each in header.items()
    }


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of a file.

    Raises:
        ManifestInvalid: It is not what ``write_tensors`` wrote.
    """
    content = path.read_bytes()
    try:
        length = int.from_bytes(content[:8], "little")
        if length > min(len(content), _MOST_HEADER_BYTES):
            raise ValueError(f"its header claims {length} bytes")
        header = json.loads(content[8 : 8 + length])
        return {name: _array(content, 8 + length, each) for name, each in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestInvalid(f"'{path}' cannot be read: {error}") from error


def _array(content: bytes, start: int, entry: Mapping[str, Any]) -> NDArray[Any]:
    begin, end = entry["data_offsets"]
    kind, shape = np.dtype(_NAMES[entry["dtype"]]), tuple(entry["shape"])
    if not 0 <= begin <= end <= len(content) - start or end - begin != math.prod(shape) * kind.itemsize:
        raise ValueError(f"an array of shape {shape} has bytes {begin} to {end} of {len(content) - start}")
    return np.frombuffer(content, kind, count=math.prod(shape), offset=start + begin).reshape(shape)


# --- fewer bits -------------------------------------------------------------------------------------------------------


def is_quantizable(array: NDArray[Any]) -> bool:
    """Whether an array is worth fewer bits: a matrix of floats. Biases, norms and constants are small and touchy."""
    return array.dtype == np.float32 and array.ndim >= 2 and array.size >= _LEAST_SIZE


def quantized(name: str, array: NDArray[np.float32], bits: int) -> dict[str, NDArray[Any]]:
    """Return what is stored of an array, by name.

    Raises:
        ConfigError: It does not fit: a value is not finite, or beyond half precision.
    """
    if not np.isfinite(array).all():
        raise ConfigError(f"weight {name!r} is not finite; train on, or export an earlier checkpoint")
    if bits == 16:
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        if not np.isfinite(half).all():
            raise ConfigError(
                f"weight {name!r} has values up to {np.abs(array).max():.6g}, beyond half precision (65504); "
                "export without quantize_bits=16"
            )
        return {name: half}
    axes = tuple(range(array.ndim - 1))
    largest = np.abs(array).max(axis=axes)
    scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    scale = np.maximum(scale, np.float32(np.finfo(np.float32).tiny))
    return {name: np.clip(np.rint(array / scale), -127, 127).astype(np.int8), name + SCALE_SUFFIX: scale}


def restored(name: str, stored: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return the array that the program computes with."""
    array = stored[name]
    values: NDArray[np.float32] = array.astype(np.float32)
    if name + SCALE_SUFFIX in stored:
        values *= stored[name + SCALE_SUFFIX]
    return values

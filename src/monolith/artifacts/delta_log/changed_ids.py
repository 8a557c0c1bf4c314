"""Read the ids that a segment changes, without its rows."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from os import PathLike

import numpy as np
from numpy.typing import NDArray

__all__ = ["changed_ids", "written_ids"]

_MAGIC_BYTES = 8
_HEADER = struct.Struct("<IIIIQQQqqIQI")
_TABLE = struct.Struct("<IIIQQqQ")
_SLICE = struct.Struct("<IIIIf")
_COUNT = struct.Struct("<I")
_CHECKSUM_BYTES = 4
_ID_BYTES, _TIME_BYTES = 8, 4


def changed_ids(path: str | PathLike[str]) -> dict[str, NDArray[np.int64]]:
    """Return the ids of every table that a segment sets or removes, unique and ascending.

    Args:
        path: The segment, which was verified: nothing is checked here.
    """
    return {name: np.sort(np.concatenate([written, removed])) for name, (written, removed) in _read_ids(path).items()}


def written_ids(path: str | PathLike[str]) -> dict[str, NDArray[np.int64]]:
    """Return the ids of every table whose rows are in a segment, ascending; removed ids are left out.

    Args:
        path: The segment, which was verified: nothing is checked here.
    """
    return {name: written for name, (written, _) in _read_ids(path).items()}


def _read_ids(path: str | PathLike[str]) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return written and removed ids by table."""
    content = np.memmap(path, np.uint8, mode="r").data
    (header_bytes,) = _COUNT.unpack_from(content, _MAGIC_BYTES)
    begin = _MAGIC_BYTES + _COUNT.size
    at = begin + header_bytes + _CHECKSUM_BYTES
    ids: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    for name, blocks, tombstones, row_bytes in _tables(content[begin : begin + header_bytes]):
        parts = [np.empty(0, np.int64)]
        for _ in range(blocks):
            (rows,) = _COUNT.unpack_from(content, at)
            at += _COUNT.size
            parts.append(np.frombuffer(content, "<i8", rows, at))
            at += rows * row_bytes + _CHECKSUM_BYTES
        removed = np.frombuffer(content, "<i8", tombstones, at)
        if tombstones:
            at += tombstones * _ID_BYTES + _CHECKSUM_BYTES
        ids[name] = np.concatenate(parts), removed
    return ids


def _tables(header: memoryview) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, blocks, tombstones and bytes of a row of every table."""
    *_, tables = _HEADER.unpack_from(header)
    at = _HEADER.size
    for _ in range(tables):
        name_bytes, _, blocks, _, tombstones, _, _ = _TABLE.unpack_from(header, at)
        at += _TABLE.size
        name = bytes(header[at : at + name_bytes]).decode()
        at += name_bytes
        (slices,) = _COUNT.unpack_from(header, at)
        at += _COUNT.size
        row_bytes = _ID_BYTES + _TIME_BYTES
        for _ in range(slices):
            _, value_bytes, state_bytes, kind_bytes, _ = _SLICE.unpack_from(header, at)
            row_bytes += value_bytes + state_bytes
            at += _SLICE.size + kind_bytes
        yield name, blocks, tombstones, row_bytes

"""Payloads of fused calls: ids, rows and gradients of all tables of a step, as raw little-endian bytes.

The data plane sends the same bytes, read and written by C++; this module is the Python codec for gRPC. Tables are
numbered, in ascending order. Arrays of a request are padded to 8 bytes; arrays of a reply are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ClusterError
from monolith.embedding.store import Ids, Rows

__all__ = ["PushPart", "PushedRecord", "decode_rows", "encode_pull", "encode_push"]

_HALF_MAX = 65504.0
_JOB_RECORD = int.from_bytes(b"jobrecrd", "little")


@dataclass(frozen=True, slots=True)
class PushPart:
    """Push to one table."""

    number: int
    ids: Ids
    grads: Rows
    counts: NDArray[np.uint32]
    rates: Rows


@dataclass(frozen=True, slots=True)
class PushedRecord:
    """Job record that a push replaces at server 0; see ``job_records``."""

    key: int
    revision: int
    value: bytes


def encode_pull(tables: Sequence[tuple[int, Ids]]) -> bytes:
    """Return the request for the rows of (table number, ids)."""
    head = [len(tables), *(word for number, ids in tables for word in (number, len(ids)))]
    return b"".join(_padded([np.array(head, "<u4"), *(ids.astype("<i8", copy=False) for _, ids in tables)]))


def decode_rows(payload: bytes, shapes: Sequence[tuple[int, int]], *, half: bool) -> list[Rows]:
    """Return the rows of a reply, one array per shape (ids, dim).

    Raises:
        ClusterError: The payload has another length.
    """
    kind = np.dtype("<f2" if half else "<f4")
    needed = sum(count * dim for count, dim in shapes) * kind.itemsize
    if len(payload) != needed:
        raise ClusterError(
            f"a reply has {len(payload)} bytes, expected {needed}; client and server differ in their tables"
        )
    flat = np.frombuffer(payload, kind).astype(np.float32, copy=False)
    bounds = np.cumsum([count * dim for count, dim in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, bounds), shapes, strict=True)]


def encode_push(
    client: int,
    sequence: int,
    time_s: int,
    step: int,
    parts: Sequence[PushPart],
    *,
    half: bool,
    record: PushedRecord | None = None,
) -> bytes:
    """Return the request that applies gradients and replaces a job record; servers apply it once."""
    who = np.array([client, sequence], "<u8"), np.array([time_s, step], "<i8")
    head = [len(parts), *(word for part in parts for word in (part.number, len(part.ids), len(part.rates)))]
    arrays: list[NDArray[np.generic]] = [*who, np.array(head, "<u4")]
    for part in parts:
        grads = np.clip(part.grads, -_HALF_MAX, _HALF_MAX).astype("<f2") if half else part.grads
        arrays += [part.ids.astype("<i8", copy=False), part.counts, part.rates, np.ascontiguousarray(grads)]
    if record is not None:
        head_of_record = np.array([_JOB_RECORD, record.key, record.revision, len(record.value)], "<u8")
        arrays += [head_of_record, np.frombuffer(record.value, np.uint8)]
    return b"".join(_padded(arrays))


def _padded(arrays: Iterable[NDArray[np.generic]]) -> Iterable[bytes]:
    for array in arrays:
        yield array.tobytes()
        yield bytes(-array.nbytes % 8)

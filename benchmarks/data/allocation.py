"""What a batch costs in memory once everything is in place: nothing, if buffers come back to the pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from data.arrays import arrays_of
from data.results import progress
from data.workload import Sizes, draw_rows, example_batch, schema
from measure.process import resident_bytes
from measure.results import Result
from monolith import _native
from monolith.data import BatchParser

__all__ = ["allocation_cases"]


def allocation_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Make many batches, and watch the process and the pool after the first tenth of them."""
    progress(f"allocation: {sizes.allocated_batches:,} batches")
    parse = BatchParser("example_batch", schema(sizes))
    records = [example_batch(draw_rows(sizes, sizes.batch, seed)) for seed in range(sizes.records)]
    resident, pooled = 0, 0
    most_pooled = 0
    for number in range(sizes.allocated_batches):
        if number == sizes.allocated_batches // 10:
            resident, pooled = resident_bytes(), _native.pooled_bytes()
        arrays_of(parse([records[number % len(records)]]))
        most_pooled = max(most_pooled, _native.pooled_bytes())
    grown = resident_bytes() - resident
    pool_grown = most_pooled - pooled
    extra: dict[str, Any] = {
        "peer_name": "one byte, so that the ratio is the figure itself",
        "batches": sizes.allocated_batches,
        "resident_bytes_grown": grown,
        "pool_bytes_grown": pool_grown,
        "pool_bytes": _native.pooled_bytes(),
    }
    bytes_grown = float(max(grown, pool_grown, 0))
    yield Result(case="allocation", ours=bytes_grown, peer=1.0, ratio=bytes_grown, unit="bytes", rounds=1, extra=extra)

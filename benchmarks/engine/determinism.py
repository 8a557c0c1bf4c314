"""The case of determinism: what the same bytes for any number of threads cost while a table grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from engine.peers import OurTable, adagrad_spec
from engine.results import Result, compare, progress
from engine.workload import Batch, Ids, Sizes, Workload
from measure.timing import interleave
from monolith.embedding import NoFilter, SlidingHashFilter

__all__ = ["determinism_cases"]

SLOT = 1
THRESHOLD = 2


def determinism_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Train four empty tables on Zipf ids: with and without a filter, deterministic or not."""
    [case] = cases
    workload = Workload(sizes)
    progress(case)
    drawn = workload.batches("zipf", count=(sizes.steps + 1) * sizes.rounds)
    batches = [Batch(_in_slot(batch.rows), batch.rows) for batch in drawn]
    tables = []
    for admission in (SlidingHashFilter(sizes.rows), NoFilter()):
        for deterministic in (True, False):
            spec = adagrad_spec(
                sizes.dim, admission=admission, slot_thresholds={SLOT: THRESHOLD}, deterministic=deterministic
            )
            tables.append(OurTable(workload, spec))
            tables[-1].use(batches)
    seconds = interleave([table.step for table in tables], rounds=sizes.rounds, steps=sizes.steps)
    extra: dict[str, Any] = {
        "peer_name": "ours, not deterministic",
        "admission": "SlidingHashFilter",
        "ratio_without_filter": float(np.median(seconds[3] / seconds[2])),
    }
    yield compare(case, seconds[0], seconds[1], sizes.ids_per_step / 1e6, **extra)


def _in_slot(rows: Ids) -> Ids:
    """Map row numbers to ids of one slot (the second layout), one to one."""
    signature = (rows.astype(np.uint64) * np.uint64(0x9E3779B97F4B)) & np.uint64((1 << 48) - 1)
    return (signature | np.uint64(SLOT << 48)).view(np.int64)

"""The case about memory: what the whole process grows by, per id, above the row itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from measure.process import resident_bytes
from measure.results import Result
from train.contestants import Ours
from train.results import progress
from train.workload import SPARSE, Sizes, Workload

__all__ = ["memory_cases"]


def memory_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Train on batches that show every id once, and see how the process grows."""
    workload = Workload(sizes)
    ours = Ours(workload, workload.examples(2))
    # Buffers that stay allocated are not taken for rows: the first batch has as many distinct ids as the others.
    ours.estimator.train([workload.coverage(0)], steps=1, resume_data=False)
    ours.steps(0, 4)
    progress(f"training on {sizes.ids:,} ids")
    rows_before, before = ours.rows, resident_bytes()
    number = 1
    while (batch := workload.coverage(number)) is not None:
        ours.estimator.train([batch], steps=1, resume_data=False)
        number += 1
    ours.steps(0, 2)
    rows, grown = ours.rows - rows_before, resident_bytes() - before
    payload = _payload_bytes(ours, int(workload.ids(0)[0]))
    overhead = grown / rows - payload
    extra: dict[str, Any] = {
        "peer_name": "one byte, so that the ratio is the figure itself",
        "rows": rows,
        "payload_bytes": payload,
        "resident_bytes_per_id": grown / rows,
        "tables_bytes_per_id": ours.estimator.store.memory_bytes / ours.rows,  # type: ignore[attr-defined]
    }
    yield Result(
        case="bytes_per_id_overhead", ours=overhead, peer=1.0, ratio=overhead, unit="bytes/id", rounds=1, extra=extra
    )


def _payload_bytes(ours: Ours, fid: int) -> int:
    """Return the bytes of a row that are values or optimizer state."""
    entry = ours.estimator.store[SPARSE[0]].entry(fid)  # type: ignore[index]
    state = sum(np.asarray(numbers).nbytes for piece in entry.state for numbers in piece.values())
    return int(entry.values.nbytes + state)

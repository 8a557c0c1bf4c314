"""The case about size: what one publish adds, of a hundredth of the rows, beside a full export."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from freshness.results import progress
from freshness.workload import DIM, Sizes, export, fids, fill, make_estimator
from measure.results import Result
from monolith.core.clock import SystemClock
from monolith.embedding import MultiTable
from monolith.sync import LocalRowLog, Publisher
from monolith.training.hooks.publish import copied_weights

__all__ = ["bytes_cases"]

_TOUCHED = 100
"""One row of so many is touched."""


def bytes_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Publish everything, touch a hundredth of the rows and all dense weights, and publish that."""
    made = make_estimator()
    tables = made.store
    assert isinstance(tables, MultiTable)
    progress(f"filling {sizes.rows:,} rows")
    fill(tables, sizes)
    with tempfile.TemporaryDirectory() as folder:
        whole = _bytes(export(made, Path(folder) / "exports"))
        root, clock = Path(folder) / "published", SystemClock()
        publisher = Publisher(
            root, LocalRowLog(root, tables, clock=clock), lambda: copied_weights(made.model), clock=clock
        )
        publisher.publish()
        before = _bytes(root)
        touched = 0
        for name, slot in (("user", 1), ("item", 2)):
            ids = fids(slot, np.arange(0, sizes.rows // 2, _TOUCHED))
            tables.apply_gradients({name: ids}, {name: np.ones((len(ids), DIM), np.float32)}, time_s=1_700_000_000)
            touched += len(ids)
        for weight in made.model.parameters():
            weight.data += 1
        publisher.publish()
        delta = _bytes(root) - before
        publisher.close()
    yield Result(
        case="delta_bytes_share",
        ours=float(delta),
        peer=float(whole),
        ratio=delta / whole,
        unit="bytes",
        rounds=1,
        extra={"touched_rows": touched, "peer_name": "a full export"},
    )


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

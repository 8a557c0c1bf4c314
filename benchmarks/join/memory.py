"""The case about memory: resident bytes per open impression with ten features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from join.workload import BATCH, INGEST_MS, Sizes, make_batches
from measure.results import Result
from monolith import _native
from monolith.stream import JoinBatch, JoinSettings, NativeJoiner

__all__ = ["memory_cases"]


def memory_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Fill a core with windows that do not close."""
    core = NativeJoiner(JoinSettings(window_ms=10**9))
    ingest = np.full(BATCH, INGEST_MS, np.int64)
    before = 0
    for number, batch in enumerate(make_batches(sizes.impressions)):
        if number == 1:
            before = _resident()  # the first batch loads parsers and pools
        assert core.join(JoinBatch(_native.Records(batch), ingest)) == BATCH
    used, opened = _resident() - before, core.open_impressions - BATCH
    yield Result(
        case="bytes_per_impression",
        ours=used / opened,
        peer=float("nan"),
        ratio=used / opened,
        unit="bytes",
        rounds=1,
        extra={"open_impressions": core.open_impressions, "estimate": round(core.memory_bytes / core.open_impressions)},
    )


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

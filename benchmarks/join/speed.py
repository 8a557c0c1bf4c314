"""The case about speed: records in, examples out, in processor time of one thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from join.dict_join import DictJoin
from join.results import progress
from join.workload import INGEST_MS, OUT_OF_ORDER_MS, WINDOW_MS, Sizes, make_batches
from measure.results import Result
from monolith import _native
from monolith.stream import JoinBatch, JoinSettings, NativeJoiner

__all__ = ["NativeJoin", "speed_cases"]


def speed_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Join the same batches by both, turn by turn."""
    progress(f"making {sizes.events:,} events")
    batches = list(make_batches(sizes.events))
    chunks = [_native.Records(batch) for batch in batches]
    ours, peer = [], []
    for _ in range(sizes.rounds):
        native, plain = NativeJoin(), DictJoin(WINDOW_MS, OUT_OF_ORDER_MS)
        seconds = np.zeros(2)
        rows = [0, 0]
        for batch, chunk in zip(batches, chunks, strict=True):
            started_s = time.process_time()
            rows[0] += native.join(chunk)
            between_s = time.process_time()
            rows[1] += len(plain.join(batch))
            seconds += (between_s - started_s, time.process_time() - between_s)
        assert rows[0] == rows[1] > 0, rows
        ours.append(sizes.events / seconds[0])
        peer.append(sizes.events / seconds[1])
    ratios = [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]
    yield Result(
        case="join_python",
        ours=float(np.median(ours)),
        peer=float(np.median(peer)),
        ratio=float(np.median(ratios)),
        unit="events/s",
        rounds=sizes.rounds,
        extra={"events": sizes.events, "peer_name": "plain Python dicts"},
    )


class NativeJoin:
    """Joins batches by the native core."""

    def __init__(self) -> None:
        self._core = NativeJoiner(JoinSettings(window_ms=WINDOW_MS, out_of_order_ms=OUT_OF_ORDER_MS))

    def join(self, chunk: _native.Records) -> int:
        """Join a batch and return the number of rows."""
        core = self._core
        assert core.join(JoinBatch(chunk, np.full(len(chunk), INGEST_MS, np.int64))) == len(chunk)
        largest_ms = core.take_largest_time()
        assert largest_ms is not None
        core.advance(max(core.watermark_ms or 0, largest_ms - OUT_OF_ORDER_MS))
        return len(core.take_examples(1)[0])

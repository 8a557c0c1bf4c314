"""Cases about our table and the machine: its share of the memory's speed, threads, bytes per row."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from engine.native import RandomLines, arithmetic_per_s
from engine.peers import OurTable, PeerMissing
from engine.results import Result, compare, progress, skipped
from engine.workload import Batch, Sizes, Workload, scatter
from measure.process import resident_bytes
from measure.timing import interleave
from monolith.embedding import Table, set_threads

__all__ = ["LINES_PER_ID", "own_cases", "payload_bytes"]

MANY_THREADS = 16
LINES_PER_ID = 4
"""Cache lines that a step must move for each distinct id: two of values and two of squared sums."""


def own_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Fill one table and measure it."""
    workload = Workload(sizes)
    progress(f"filling {sizes.rows:,} rows")
    _fill(workload, sizes.ids_per_step)  # so that buffers which stay allocated are not taken for rows
    before = resident_bytes()
    ours = _fill(workload, sizes.rows)
    grown = resident_bytes() - before
    if "bytes_per_row_overhead" in cases:
        yield _bytes_per_row(ours.table, grown)
    uniform = workload.batches("uniform")
    if "line_share" in cases:
        progress("line_share")
        yield _line_share(ours, uniform, sizes)
    if "threads_2_over_1" in cases:
        progress("threads_2_over_1")
        yield _threads("threads_2_over_1", (sizes.threads, 1), ours, workload)
    if "threads_16_over_2" in cases:
        progress("threads_16_over_2")
        yield _many_threads(ours, workload)


def _fill(workload: Workload, count: int) -> OurTable:
    ours = OurTable(workload)
    for rows, values in workload.first_values(count):
        ours.fill(rows, values)
    return ours


def payload_bytes(table: Table, fid: int) -> int:
    """Return the bytes of a row that are values or optimizer state, the rest being index and bookkeeping."""
    entry = table.entry(fid)
    if entry is None:
        raise RuntimeError(f"id {fid} has no row")
    state = sum(np.asarray(numbers).nbytes for piece in entry.state for numbers in piece.values())
    return int(entry.values.nbytes + state)


def _bytes_per_row(table: Table, grown: int) -> Result:
    rows = len(table)
    payload = payload_bytes(table, int(scatter(np.zeros(1, np.int64))[0]))
    overhead = table.memory_bytes / rows - payload
    extra: dict[str, Any] = {
        "peer_name": "one byte, so that the ratio is the figure itself",
        "payload_bytes": payload,
        "resident_bytes_per_row": grown / rows,
        "memory_bytes_over_resident": table.memory_bytes / grown,
    }
    return Result(
        case="bytes_per_row_overhead", ours=overhead, peer=1.0, ratio=overhead, unit="bytes/row", rounds=1, extra=extra
    )


def _line_share(ours: OurTable, batches: Sequence[Batch], sizes: Sizes) -> Result:
    try:
        reads = RandomLines(ours.table.memory_bytes, sizes.threads, sizes.rows // 5)
    except PeerMissing as error:
        return skipped("line_share", error)
    ours.use(batches)
    speeds: list[float] = []
    turns = [ours.step, lambda _: speeds.append(reads.reads_per_s())]
    seconds = interleave(turns, rounds=sizes.rounds, steps=sizes.steps)
    lines = LINES_PER_ID * float(np.mean([len(np.unique(batch.rows)) for batch in batches])) / 1e6
    ceiling = np.reshape(speeds, (sizes.rounds, sizes.steps + 1))[:, 1:].mean(axis=1) / 1e6
    extra: dict[str, Any] = {
        "peer_name": "random reads",
        "prefetch_distance": reads.distance,
        "lines_per_step": lines * 1e6,
    }
    return compare("line_share", seconds[0], lines / ceiling, lines, "M lines/s", **extra)


def _threads(
    case: str, counts: tuple[int, int], ours: OurTable, workload: Workload, *, steps_per_call: int = 1, **extra: Any
) -> Result:
    def with_threads(threads: int, call: int) -> None:
        set_threads(threads)
        for step in range(steps_per_call):
            ours.step(call * steps_per_call + step)

    sizes = workload.sizes
    turns = [lambda call: with_threads(counts[0], call), lambda call: with_threads(counts[1], call)]
    ours.use(workload.batches("zipf"))
    zipf = interleave(turns, rounds=sizes.rounds, steps=sizes.steps)
    ours.use(workload.batches("uniform"))
    seconds = interleave(turns, rounds=sizes.rounds, steps=sizes.steps)
    set_threads(sizes.threads)
    extra |= {"peer_name": f"ours, threads={counts[1]}", "zipf_ratio": float(np.median(zipf[1] / zipf[0]))}
    return compare(case, seconds[0], seconds[1], steps_per_call * sizes.ids_per_step / 1e6, **extra)


def _many_threads(ours: OurTable, workload: Workload) -> Result:
    """Measure the same ratio for steps, arithmetic, random reads and random updates: the machine itself is a limit."""
    case, few = "threads_16_over_2", workload.sizes.threads
    cores = len(os.sched_getaffinity(0))
    if cores < MANY_THREADS:
        return skipped(case, f"the machine has {cores} cores, expected at least {MANY_THREADS}")
    try:
        lines = RandomLines(ours.table.memory_bytes, MANY_THREADS, workload.sizes.rows // 5)
    except PeerMissing as error:
        return skipped(case, error)
    rounds = range(workload.sizes.rounds)
    arithmetic = [arithmetic_per_s(MANY_THREADS) / arithmetic_per_s(few) for _ in rounds]
    reads = [lines.reads_per_s() / lines.reads_per_s(few) for _ in rounds]
    updates = [lines.updates_per_s() / lines.updates_per_s(few) for _ in rounds]
    ratios = {"arithmetic_ratio": arithmetic, "reads_ratio": reads, "updates_ratio": updates}
    extra = {name: float(np.median(values)) for name, values in ratios.items()}
    # New threads take memory for their first steps; those of a training job stay.
    return _threads(case, (MANY_THREADS, few), ours, workload, steps_per_call=8, **extra)

"""Cases of the engine on the processor beside the GPU, with 2 threads and with all cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from engine import workload as engine_workload
from engine.peers import OurTable, TorchTable
from engine.workload import Workload
from gpu.results import progress
from gpu.workload import Sizes
from measure.results import Result, compare
from measure.timing import interleave
from monolith.embedding import set_threads

__all__ = ["engine_cases"]

THREADS = 2


def engine_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Measure steps beside torch on the same threads, and lookups, of a table in host memory."""
    cores = os.cpu_count() or 1
    chosen = replace(engine_workload.QUICK, rows=sizes.cpu_rows, ids_per_step=262_144, rounds=sizes.rounds)
    work = Workload(chosen)
    ours, peer = OurTable(work), TorchTable(work)
    progress(f"filling {chosen.rows:,} rows in host memory")
    for rows, values in work.first_values():
        ours.fill(rows, values)
        peer.fill(rows, values)
    millions = chosen.ids_per_step / 1e6
    for case in cases:
        progress(case)
        action, kind = case.split("_")[1:3]
        batches = work.batches(kind)
        ours.use(batches)
        peer.use(batches)
        turn = getattr(ours, action)
        set_threads(cores)
        (all_cores,) = interleave([turn], rounds=chosen.rounds, steps=chosen.steps)
        set_threads(THREADS)
        extra = {"threads": THREADS, "cores": cores, "all_cores": millions / float(np.median(all_cores))}
        if action == "step":
            seconds = interleave([turn, peer.step], rounds=chosen.rounds, steps=chosen.steps)
            yield compare(case, seconds[0], seconds[1], millions, peer_name=peer.name, **extra)
        else:
            (seconds,) = interleave([turn], rounds=chosen.rounds, steps=chosen.steps)
            ours_figure = millions / float(np.median(seconds))
            yield Result(case=case, ours=ours_figure, unit="M ids/s", rounds=chosen.rounds, extra=extra)

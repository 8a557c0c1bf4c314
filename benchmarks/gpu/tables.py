"""Cases of the table alone: find and insert beside the speed of HierarchicalKV, growth, and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch

import monolith as mt
from gpu.results import HKV, progress
from gpu.timing import capture, no_gpu, seconds_of, time_graph
from gpu.workload import Sizes
from measure.results import Result
from measure.timing import Seconds
from monolith.nn.gpu import GpuTable

__all__ = ["find_cases", "growth_cases", "scattered"]

DIM = 32
_LOAD_OF_INDEX = 0.875
"""Keys per slot at which the index grows."""


def scattered(first: int, last: int) -> torch.Tensor:
    """Return distinct 64-bit ids for the numbers from ``first`` to ``last``."""
    return torch.arange(first, last, device="cuda") * -7046029254386353131  # an odd number: one to one


def find_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Measure find with values and inserts of new keys, in a table of fixed slots at two loads."""
    if not torch.cuda.is_available():
        yield from no_gpu(list(cases))
        return
    spec = mt.TableSpec("find", [mt.SliceSpec(DIM, optimizer=mt.Sgd(0.1), initializer=mt.Zeros())])
    table = GpuTable(spec)
    table.reserve(int(sizes.find_slots * _LOAD_OF_INDEX))
    filled = 0
    for percent in (50, 75):
        wanted = table.slots * percent // 100
        progress(f"filling to {wanted:,} of {table.slots:,} slots")
        # The new keys of the insert case end at the load.
        new = sizes.calls * sizes.ids
        while filled < wanted - new:
            last = min(filled + sizes.ids, wanted - new)
            table.find_or_insert(scattered(filled, last))
            filled = last
        yield from _measure_inserts(table, cases, f"insert_hkv_{percent}", filled, sizes)
        filled += new
        yield from _measure_find(table, cases, f"find_hkv_{percent}", filled, sizes)


def _measure_inserts(table: GpuTable, cases: Sequence[str], case: str, filled: int, sizes: Sizes) -> Iterator[Result]:
    progress(case)
    batches = [scattered(filled + k * sizes.ids, filled + (k + 1) * sizes.ids) for k in range(sizes.calls)]
    before = len(table)
    graph = capture(lambda: [table.find_or_insert(batch) for batch in batches])
    seconds = np.array([seconds_of(graph.replay) / sizes.calls])
    added = len(table) - before
    if added != sizes.calls * sizes.ids:
        raise RuntimeError(f"{added} rows were added, expected {sizes.calls * sizes.ids}")
    again = time_graph(graph, sizes.calls, sizes.rounds)
    if case in cases:
        extra = {"existing_keys": sizes.ids / float(np.median(again)) / 1e9, "rows": len(table), "load": table.load}
        yield _over_hkv(case, seconds, sizes, extra)


def _measure_find(table: GpuTable, cases: Sequence[str], case: str, filled: int, sizes: Sizes) -> Iterator[Result]:
    if case not in cases:
        return
    progress(case)
    keys = scattered(0, filled)
    batches = [keys[torch.randint(filled, (sizes.ids,), device="cuda")] for _ in range(sizes.calls)]
    table.lookup(batches[0])
    values = time_graph(capture(lambda: [table.lookup(batch) for batch in batches]), sizes.calls, sizes.rounds)
    places = time_graph(capture(lambda: [table.find(batch) for batch in batches]), sizes.calls, sizes.rounds)
    extra = {"without_values": sizes.ids / float(np.median(places)) / 1e9, "rows": len(table), "load": table.load}
    yield _over_hkv(case, values, sizes, extra)


def _over_hkv(case: str, seconds: Seconds, sizes: Sizes, extra: dict[str, float]) -> Result:
    ours = sizes.ids / float(np.median(seconds)) / 1e9
    return Result(
        case=case,
        ours=ours,
        peer=HKV[case],
        ratio=ours / HKV[case],
        unit="G keys/s",
        rounds=len(seconds),
        extra={"peer_name": "HierarchicalKV, measured in an earlier run", **extra},
    )


def growth_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Grow a table with times of updates from 1 million rows, and measure its longest step and its memory."""
    if not torch.cuda.is_available():
        yield from no_gpu(list(cases))
        return
    dim = 16
    piece = mt.SliceSpec(dim, optimizer=mt.Adagrad(0.1), initializer=mt.Zeros())
    table = GpuTable(mt.TableSpec("growing", [piece], expire_days=30))
    grads = torch.ones((sizes.ids, dim), device="cuda")
    table.apply_gradients(scattered(0, sizes.ids), grads, time_s=1)
    seconds = []
    progress(f"growing to {sizes.grown_rows:,} rows")
    for first in range(sizes.ids, sizes.grown_rows, sizes.ids):
        step = partial(table.apply_gradients, scattered(first, first + sizes.ids), grads, time_s=first)
        torch.cuda.synchronize()
        seconds.append(seconds_of(step))
    rows = len(table)
    median, longest = float(np.median(seconds)), float(np.max(seconds))
    if "growth_longest_step" in cases:
        yield Result(
            case="growth_longest_step",
            ours=longest * 1e3,
            peer=median * 1e3,
            ratio=longest / median,
            unit="ms/step",
            rounds=len(seconds),
            extra={"peer_name": "the median step", "rows": rows, "all_s": float(np.sum(seconds))},
        )
    if "bytes_per_row_overhead" in cases:
        payload = dim * 4 * 2
        overhead = table.memory_bytes / rows - payload
        yield Result(
            case="bytes_per_row_overhead",
            ours=overhead,
            peer=1.0,
            ratio=overhead,
            unit="bytes/row",
            rounds=1,
            extra={"payload_bytes": payload, "rows": rows, "load": table.load},
        )

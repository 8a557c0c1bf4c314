"""Our table in other shapes: speed and memory by row width, optimizer and number of slices. No peer, no bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.own import payload_bytes
from engine.peers import OurTable
from engine.results import Result, progress
from engine.workload import Batch, Sizes, Workload, scatter
from measure.timing import interleave
from monolith.embedding import Adagrad, Adam, Ftrl, Sgd, SliceSpec, TableSpec
from monolith.embedding.optimizers import Optimizer

__all__ = ["matrix_cases"]

DIMS = (1, 8, 16, 64, 128)
OPTIMIZERS: dict[str, Optimizer] = {"sgd": Sgd(0.05), "adagrad": Adagrad(0.05), "adam": Adam(0.01), "ftrl": Ftrl(0.05)}
SLICES = (1, 2, 4)
SLICED_DIM = 16


def matrix_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Measure every shape, one table at a time."""
    del cases
    workload = Workload(sizes)
    batches = {kind: workload.batches(kind, rows=sizes.matrix_rows) for kind in ("zipf", "uniform")}
    for name, spec in _specs().items():
        progress(name)
        yield _measure(name, spec, workload, batches)


def _specs() -> dict[str, TableSpec]:
    specs = {
        f"matrix_dim{dim}_{name}": TableSpec("bench", [SliceSpec(dim, optimizer=optimizer)])
        for dim in DIMS
        for name, optimizer in OPTIMIZERS.items()
    }
    for count in SLICES:
        pieces = [SliceSpec(SLICED_DIM // count, optimizer=OPTIMIZERS["adagrad"]) for _ in range(count)]
        specs[f"matrix_slices{count}_adagrad"] = TableSpec("bench", pieces)
    return specs


def _measure(name: str, spec: TableSpec, workload: Workload, batches: dict[str, list[Batch]]) -> Result:
    sizes = workload.sizes
    ours = OurTable(workload, spec)
    for rows, values in workload.first_values(sizes.matrix_rows, spec.dim):
        ours.fill(rows, values)
    speeds: dict[str, float] = {}
    for kind, each in batches.items():
        ours.use(each)
        seconds = np.median(interleave([ours.step, ours.lookup], rounds=sizes.rounds, steps=sizes.steps), axis=1)
        for action, took in zip(("step", "lookup"), seconds, strict=True):
            speeds[f"{action}_{kind}"] = sizes.ids_per_step / 1e6 / float(took)
    payload = payload_bytes(ours.table, int(scatter(np.zeros(1, np.int64))[0]))
    per_row = ours.table.memory_bytes / len(ours.table)
    extra = {
        "dim": spec.dim,
        "slices": len(spec.slices),
        "optimizer": spec.slices[0].optimizer.base.kind,
        "matrix_rows": len(ours.table),
        **speeds,
        "payload_bytes": payload,
        "bytes_per_row": per_row,
    }
    return Result(case=name, ours=speeds["step_uniform"], unit="M ids/s", rounds=sizes.rounds, extra=extra)

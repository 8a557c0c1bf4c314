"""The cases of ``mt.nn.EmbeddingBag``: a training step beside torch's module, and beside bare calls of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

import monolith as mt
from engine.peers import OurTable, TorchTable, adagrad_spec, check_agreement
from engine.workload import Batch, Ids, Rows, Sizes, Workload, scatter
from measure.results import Result, compare
from measure.timing import Seconds, interleave
from monolith.embedding import set_threads
from nn.results import progress

__all__ = ["OurModule", "overhead_cases", "torch_cases"]


class OurModule:
    """``mt.nn.EmbeddingBag``, whose backward pass updates the rows."""

    name = "mt.nn.EmbeddingBag"

    def __init__(self, workload: Workload) -> None:
        set_threads(workload.sizes.threads)
        torch.set_num_threads(workload.sizes.threads)
        self.module = mt.nn.EmbeddingBag(spec=adagrad_spec(workload.sizes.dim), mode="sum", include_last_offset=True)
        self._offsets = torch.from_numpy(workload.offsets)
        self._gradients = torch.from_numpy(workload.gradients())
        self._ids: list[torch.Tensor] = []

    def fill(self, rows: Ids, values: Rows) -> None:
        """Set the values of row numbers."""
        self.module.table.assign(scatter(rows), values)

    def use(self, batches: Sequence[Batch]) -> None:
        """Take the ids of the batches."""
        self._ids = [torch.from_numpy(batch.ids) for batch in batches]

    def lookup(self, call: int) -> Rows:
        """Return the pooled rows of a batch."""
        with torch.no_grad():
            pooled: Rows = self.module(self._ids[call % len(self._ids)], self._offsets).numpy()
        return pooled

    def step(self, call: int) -> None:
        """Run forward and backward."""
        self.module(self._ids[call % len(self._ids)], self._offsets).backward(self._gradients)


def torch_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Measure a step beside ``torch.nn.EmbeddingBag(sparse=True)`` with Adagrad, on Zipf ids."""
    [case] = cases
    workload = Workload(sizes)
    seconds = _race(OurModule(workload), TorchTable(workload), workload, case)
    yield compare(case, *seconds, sizes.ids_per_step / 1e6, peer_name=f"torch {torch.__version__}")


def overhead_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Measure the seconds of a step over those of ``lookup_pooled`` and ``apply_pooled_gradients``."""
    [case] = cases
    workload = Workload(sizes)
    ours, bare = _race(OurModule(workload), OurTable(workload), workload, case)
    shares = ours / bare
    yield Result(
        case=case,
        ours=float(np.median(ours)) * 1e3,
        peer=float(np.median(bare)) * 1e3,
        ratio=float(np.median(shares)),
        unit="ms/step",
        rounds=len(ours),
        extra={
            "ratio_low": float(shares.min()),
            "ratio_high": float(shares.max()),
            "peer_name": "the calls of Table",
        },
    )


def _race(ours: OurModule, peer: TorchTable | OurTable, workload: Workload, case: str) -> tuple[Seconds, Seconds]:
    sizes = workload.sizes
    progress(f"{case}: filling {sizes.rows:,} rows of {ours.name} and {peer.name}")
    for rows, values in workload.first_values():
        ours.fill(rows, values)
        peer.fill(rows, values)
    batches = workload.batches("zipf")
    ours.use(batches)
    peer.use(batches)
    check_agreement(ours, peer)
    progress(case)
    first, second = interleave([ours.step, peer.step], rounds=sizes.rounds, steps=sizes.steps)
    return first, second

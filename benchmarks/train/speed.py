"""Cases about the speed of a step: beside plain PyTorch, and what it costs besides dense math and engine."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from measure.results import Result, compare
from measure.timing import interleave
from train.contestants import DENSE_RATE, Network, Ours, PlainTorch, check_agreement
from train.results import progress
from train.stopwatch import PARTS, engine_timed
from train.workload import DIM, Example, Sizes, Workload

__all__ = ["BareNetwork", "speed_cases"]


def speed_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Fill the tables once and measure."""
    workload = Workload(sizes)
    examples = workload.examples()
    progress(f"filling {sizes.ids:,} rows")
    ours = Ours(workload, examples)
    ours.fill(workload)
    if "deepfm_torch" in cases:
        yield _beside_torch(ours, workload, examples)
    if "overhead_share" in cases:
        progress("overhead_share")
        yield _overhead(ours, examples, sizes)
    if sizes.profile is not None:  # last: its steps would part our rows from those of the peers
        _write_trace(ours, sizes.profile)


def _write_trace(ours: Ours, path: str) -> None:
    """Write ten steps as a trace of Chrome: the calls of torch, and the engine's parts of a step as spans."""
    ours.steps(0, 10)
    with (
        engine_timed(ours.model.embedder, torch.profiler.record_function),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace,
    ):
        ours.steps(10, 10)
    trace.export_chrome_trace(path)
    progress(f"wrote a trace to {path}")


def _beside_torch(ours: Ours, workload: Workload, examples: Sequence[Example]) -> Result:
    """Time four trainers in turns; the ratio is to the one with a bag of vectors and a bag of biases."""
    sizes = workload.sizes
    peers = [
        PlainTorch(workload, examples),
        PlainTorch(workload, examples, widths=(DIM + 1,)),
        PlainTorch(workload, examples, widths=(DIM + 1,), network=Network),
    ]
    for peer in peers:
        peer.fill(workload)
        peer.copy_dense(ours.model.network)
    check_agreement(ours, peers)
    progress("deepfm_torch")
    turns = [lambda call, side=side: side.steps(call * sizes.steps, sizes.steps) for side in (ours, *peers)]
    seconds = interleave(turns, rounds=sizes.rounds, steps=1) / sizes.steps
    extra: dict[str, Any] = {
        "peer_name": peers[0].name,
        "step_ms": 1e3 * float(np.median(seconds[0])),
        "peer_step_ms": 1e3 * float(np.median(seconds[1])),
        "packed_step_ms": 1e3 * float(np.median(seconds[2])),
        "packed_ratio": float(np.median(seconds[2] / seconds[0])),
        "packed_same_network_ratio": float(np.median(seconds[3] / seconds[0])),
        "unique_ids": float(np.mean([len(np.unique(each.rows)) for each in examples])),
    }
    return compare("deepfm_torch", seconds[0], seconds[1], sizes.batch, "samples/s", **extra)


class BareNetwork:
    """The dense part alone, on tensors that are there already: forward, backward, optimizer."""

    def __init__(self, ours: Ours, examples: Sequence[Example]) -> None:
        self._network: Network = copy.deepcopy(ours.model.network)
        self._rule = torch.optim.Adam(self._network.parameters(), DENSE_RATE)
        self._inputs = [self._input(ours, each) for each in examples]

    @staticmethod
    def _input(ours: Ours, example: Example) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        from monolith.features.autograd import embed

        embedder = ours.model.embedder
        batch = embed(embedder, embedder.pull(example.ours), needs_grad=False).batch
        vectors, bias = ours.model.vectors(batch), ours.model.bias(batch)
        return vectors.requires_grad_(), bias.requires_grad_(), batch.dense["numbers"], batch.label[:, 0]

    def steps(self, first: int, count: int) -> None:
        """Take ``count`` steps from batch ``first`` on."""
        for number in range(first, first + count):
            vectors, bias, dense, label = self._inputs[number % len(self._inputs)]
            vectors.grad = bias.grad = None
            self._rule.zero_grad()
            logits = self._network(vectors, bias.squeeze(1), dense)
            nn.functional.binary_cross_entropy_with_logits(logits, label, reduction="sum").backward()
            self._rule.step()


def _overhead(ours: Ours, examples: Sequence[Example], sizes: Sizes) -> Result:
    """Time whole steps with the engine's part of them, and beside them the dense part alone.

    The share is 1 − (engine + dense) / whole step. The engine's part is the native calls that find unique ids, look
    rows up, fill the layouts, sum the gradients and apply them; the dense part is what the same network costs in a
    bare PyTorch loop on tensors that are there.
    """
    bare = BareNetwork(ours, examples)
    engine: list[list[float]] = []

    def whole(call: int) -> None:
        with engine_timed(ours.model.embedder) as watch:
            ours.steps(call * sizes.steps, sizes.steps)
        engine.append([watch.seconds[part] / sizes.steps for part in PARTS])

    turns = [whole, lambda call: bare.steps(call * sizes.steps, sizes.steps)]
    total, dense = interleave(turns, rounds=sizes.rounds, steps=1) / sizes.steps
    parts = np.array(engine[1::2])  # every other call was not timed
    shares = 1 - (parts.sum(axis=1) + dense) / total
    share = float(np.median(shares))
    millis = {f"{part}_ms": 1e3 * float(np.median(parts[:, place])) for place, part in enumerate(PARTS)}
    extra: dict[str, Any] = {
        "peer_name": "the whole step, so that the ratio is the share",
        "ratio_low": float(shares.min()),
        "ratio_high": float(shares.max()),
        "step_ms": 1e3 * float(np.median(total)),
        "dense_ms": 1e3 * float(np.median(dense)),
        **millis,
    }
    return Result(
        case="overhead_share",
        ours=share,
        peer=1.0,
        ratio=share,
        unit="share of a step",
        rounds=sizes.rounds,
        extra=extra,
    )

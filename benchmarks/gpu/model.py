"""The case of ``mt.Model``: DeepFM of Criteo's shape trained by ``Estimator`` from batches in host memory.

The peer is torch's ``EmbeddingBag`` on the GPU in a plain loop, with ready-made row numbers. Its batches are in pinned
memory, and their copies are asynchronous. Both have the same dense part, as in ``deepfm_torch``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import monolith as mt
from gpu.deepfm import DENSE, DIM, FIELDS, DeepFm
from gpu.results import progress
from gpu.timing import no_gpu
from gpu.workload import Sizes
from measure.results import Result, compare
from measure.timing import Seconds

__all__ = ["model_cases"]

NAMES = [f"c{number:02d}" for number in range(FIELDS)]
RULE = mt.Adagrad(0.05, initial_accumulator_value=0.1)


@dataclass(frozen=True, slots=True)
class Example:
    """One batch in both forms."""

    ours: mt.Batch
    theirs: tuple[Tensor, Tensor, Tensor]
    """Row numbers, dense numbers and labels, pinned."""


class Ranker(mt.Model):
    """The network of ``deepfm`` over a table per field, with a vector and a bias in each row."""

    def __init__(self) -> None:
        super().__init__()
        for number, name in enumerate(NAMES):
            self.embedding_feature(name, slot=number + 1)
        self.dense_feature("numbers", DENSE)
        self.rows = self.embedding_slice(NAMES, "row", 1 + DIM, optimizer=RULE, out="stack")
        self.network = DeepFm(lambda rows: rows)

    def forward(self, batch: Any) -> mt.Output:
        logits = self.network(self.rows(batch), batch.dense["numbers"])
        return mt.Output(logits=logits, label=batch.label[:, 0])


def model_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Measure training steps of both, on Zipf ids of 26 fields."""
    [case] = cases
    if not torch.cuda.is_available():
        yield from no_gpu(list(cases))
        return
    progress(case)
    torch.set_float32_matmul_precision("high")
    examples = _draw(sizes)
    ours = _time_ours(examples, sizes)
    ahead = _time_ours(examples, sizes, embedding_prefetch_capacity=1)
    step = _make_peer(sizes)
    peer = _time_rounds(lambda: [step(*each.theirs) for each in examples], examples, sizes)
    extra = {"peer_name": f"torch {torch.__version__}", "batch": sizes.deepfm_batch, "rows": sizes.deepfm_rows}
    steps = {"step_ms": ours, "prefetch_step_ms": ahead, "peer_step_ms": peer}
    extra |= {name: 1e3 * float(np.median(each)) for name, each in steps.items()}
    yield compare(case, ours, peer, sizes.deepfm_batch / 1e6, "M examples/s", **extra)


def _time_ours(examples: Sequence[Example], sizes: Sizes, **options: Any) -> Seconds:
    """Time ``Estimator`` without clipping and metrics, which the peer has not."""
    quiet = {"clip_type": "none", "progressive_validation": False, "progress": False, "log_step_count_steps": 0}
    config = mt.RunConfig(accelerator="cuda", dense_optimizer="adam", dense_learning_rate=0.001, **quiet, **options)
    estimator = mt.Estimator(Ranker, config, store=mt.nn.GpuStore)
    batches = [each.ours for each in examples]
    return _time_rounds(lambda: estimator.train(batches, steps=len(batches), resume_data=False), examples, sizes)


def _time_rounds(train: Callable[[], object], examples: Sequence[Example], sizes: Sizes) -> Seconds:
    """Return the seconds of a step in each round; the first round is not timed."""
    seconds = []
    for _ in range(sizes.rounds + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        train()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - begin) / len(examples))
    return np.array(seconds[1:])


def _make_peer(sizes: Sizes) -> Callable[[Tensor, Tensor, Tensor], None]:
    bags = nn.EmbeddingBag(sizes.deepfm_rows, 1 + DIM, mode="sum", sparse=True, device="cuda")

    def read(ids: Tensor) -> Tensor:
        rows: Tensor = bags(ids.reshape(-1, 1))
        return rows.reshape(-1, FIELDS, 1 + DIM)

    model = DeepFm(read).cuda()
    optimizers = [
        torch.optim.Adam(model.tower.parameters(), 0.001),
        torch.optim.Adagrad(bags.parameters(), 0.05, initial_accumulator_value=0.1, eps=1e-10),
    ]

    def step(*batch: Tensor) -> None:
        ids, numbers, labels = (each.to("cuda", non_blocking=True) for each in batch)
        for each in optimizers:
            each.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids, numbers), labels, reduction="sum")
        loss.backward()
        for each in optimizers:
            each.step()

    return step


def _draw(sizes: Sizes) -> list[Example]:
    """Draw batches of Zipf ranks per field. The ids of a field are its ranks; the peer has their row numbers."""
    random = np.random.default_rng(3)
    per_field, size = sizes.deepfm_rows // FIELDS, sizes.deepfm_batch
    cumulative = np.cumsum(np.arange(1, per_field + 1, dtype=np.float64) ** -1.05)
    bounds = np.arange(size + 1, dtype=np.int64)
    examples = []
    for _ in range(sizes.calls):
        draws = random.random((size, FIELDS)) * cumulative[-1]
        ranks = np.searchsorted(cumulative, draws).clip(max=per_field - 1)
        numbers = random.standard_normal((size, DENSE), np.float32)
        label = (random.random(size) < 0.25).astype(np.float32)
        ids = {
            name: mt.data.Ragged(np.ascontiguousarray(ranks[:, number]), bounds) for number, name in enumerate(NAMES)
        }
        ours = mt.Batch.from_arrays(ids=ids, dense={"numbers": numbers}, label=label)
        rows = torch.from_numpy(ranks + np.arange(FIELDS) * per_field)
        theirs = tuple(each.pin_memory() for each in (rows, torch.from_numpy(numbers), torch.from_numpy(label)))
        examples.append(Example(ours, theirs))  # type: ignore[arg-type]
    return examples

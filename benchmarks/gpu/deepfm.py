"""The case of a whole model: DeepFM of Criteo's shape through ``mt.nn``, against torch's ``EmbeddingBag``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

import monolith as mt
from gpu.results import progress
from gpu.timing import no_gpu, seconds_of
from gpu.workload import Sizes
from measure.results import Result, compare
from measure.timing import Seconds

__all__ = ["deepfm_cases"]

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Ids, dense numbers and labels."""

FIELDS = 26
DENSE = 13
DIM = 16


class DeepFm(nn.Module):
    """Factorization machine and tower over the rows of all fields; ``read`` returns (batch, fields, 1 + dim)."""

    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._read = read
        self.tower = nn.Sequential(
            nn.Linear(FIELDS * DIM + DENSE, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1)
        )

        self._score = torch.compile(self._score_rows)  # the same dense part in both contestants

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self._score(self._read(ids), dense)
        return logits

    def _score_rows(self, rows: Tensor, dense: Tensor) -> Tensor:
        bias, vectors = rows[:, :, 0], rows[:, :, 1:]
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
        return bias.sum(1) + pairs + self.tower(torch.cat([vectors.flatten(1), dense], dim=1)).squeeze(1)


def deepfm_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Measure training steps of both, on Zipf ids of 26 fields."""
    [case] = cases
    if not torch.cuda.is_available():
        yield from no_gpu(list(cases))
        return
    rows = sizes.deepfm_rows
    optimizer = mt.Adagrad(0.05, initial_accumulator_value=0.1)
    ours = mt.nn.Embedding(1 + DIM, optimizer=optimizer, device="cuda")
    theirs = nn.EmbeddingBag(rows, 1 + DIM, mode="sum", sparse=True, device="cuda")
    sparse = torch.optim.Adagrad(theirs.parameters(), 0.05, initial_accumulator_value=0.1, eps=1e-10)
    batches = _make_batches(rows, sizes)

    def read_bags(ids: Tensor) -> Tensor:
        rows: Tensor = theirs(ids.reshape(-1, 1))
        return rows.reshape(-1, FIELDS, 1 + DIM)

    step = _make_step(DeepFm(ours).cuda(), [])
    step_torch = _make_step(DeepFm(read_bags).cuda(), [sparse])
    torch.set_float32_matmul_precision("high")
    progress(case)
    seconds = [_time_steps(each, batches, sizes.rounds) for each in (step, step_torch)]
    extra = {"peer_name": f"torch {torch.__version__}", "batch": sizes.deepfm_batch, "rows": rows}
    extra |= {"matmul": "TF32", "dense": "torch.compile"}
    yield compare(case, *seconds, sizes.deepfm_batch / 1e6, "M examples/s", **extra)


def _time_steps(step: Callable[[Tensor, Tensor, Tensor], None], batches: Sequence[Batch], rounds: int) -> Seconds:
    """Return the seconds of a step in each round; the steps of a round follow each other, as in a training loop."""

    def train() -> None:
        for batch in batches:
            step(*batch)

    train()
    torch.cuda.synchronize()
    return np.array([seconds_of(train) / len(batches) for _ in range(rounds)])


def _make_step(model: DeepFm, sparse: Sequence[torch.optim.Optimizer]) -> Callable[[Tensor, Tensor, Tensor], None]:
    dense = torch.optim.Adam(model.tower.parameters(), 0.001)
    optimizers = [dense, *sparse]

    def step(ids: Tensor, numbers: Tensor, labels: Tensor) -> None:
        for each in optimizers:
            each.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(ids, numbers), labels).backward()
        for each in optimizers:
            each.step()

    return step


def _make_batches(rows: int, sizes: Sizes) -> list[Batch]:
    """Return ids of Zipf ranks per field, dense numbers and labels."""
    torch.manual_seed(3)
    per_field = rows // FIELDS
    weights = torch.arange(1, per_field + 1, device="cuda", dtype=torch.float64) ** -1.05
    cumulative = weights.cumsum(0)
    first = torch.arange(FIELDS, device="cuda") * per_field
    batches = []
    for _ in range(sizes.calls):
        draws = torch.rand((sizes.deepfm_batch, FIELDS), device="cuda", dtype=torch.float64) * cumulative[-1]
        ids = torch.searchsorted(cumulative, draws).clamp(max=per_field - 1) + first
        numbers = torch.randn((sizes.deepfm_batch, DENSE), device="cuda")
        batches.append((ids, numbers, (torch.rand(sizes.deepfm_batch, device="cuda") < 0.25).float()))
    return batches

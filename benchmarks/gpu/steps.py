"""Cases of a whole training step: our table in bags with Adagrad, against torch's ``EmbeddingBag(sparse=True)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

import monolith as mt
from gpu.results import progress
from gpu.timing import capture, no_gpu, seconds_of, time_graph
from gpu.workload import Sizes
from measure.results import Result, compare
from measure.timing import Seconds

__all__ = ["make_batches", "step_cases"]

ZIPF_EXPONENT = 1.05


def make_batches(kind: str, rows: int, sizes: Sizes) -> list[torch.Tensor]:
    """Return batches of row numbers: "zipf", bounded over all rows with scattered hot rows, or "uniform"."""
    torch.manual_seed(7)
    if kind == "uniform":
        return [torch.randint(rows, (sizes.ids,), device="cuda") for _ in range(sizes.calls)]
    weights = torch.arange(1, rows + 1, device="cuda", dtype=torch.float64) ** -ZIPF_EXPONENT
    cumulative = weights.cumsum(0)
    places = torch.randperm(rows, device="cuda")
    draws = [torch.rand(sizes.ids, device="cuda", dtype=torch.float64) * cumulative[-1] for _ in range(sizes.calls)]
    return [places[torch.searchsorted(cumulative, each).clamp(max=rows - 1)] for each in draws]


def step_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Measure the steps of one dim, on Zipf and on uniform ids."""
    if not torch.cuda.is_available():
        yield from no_gpu(list(cases))
        return
    from monolith.nn.gpu import GpuTable

    dim = int(cases[0].rsplit("_", 1)[1])
    rows = sizes.step_rows_16 if dim == 16 else sizes.step_rows_64
    optimizer = mt.Adagrad(0.05, initial_accumulator_value=0.1)
    table = GpuTable(mt.TableSpec("steps", [mt.SliceSpec(dim, optimizer=optimizer, initializer=mt.Zeros())]))
    progress(f"filling {rows:,} rows of dim {dim}")
    for first in range(0, rows, sizes.ids):
        table.find_or_insert(torch.arange(first, min(first + sizes.ids, rows), device="cuda") * 0x9E3779B1)
    offsets = torch.arange(0, sizes.ids + 1, sizes.bag, device="cuda")
    grads = torch.randn((sizes.ids // sizes.bag, dim), device="cuda") * 0.01
    torch_bag = torch.nn.EmbeddingBag(rows, dim, mode="sum", sparse=True, include_last_offset=True, device="cuda")
    torch.nn.init.zeros_(torch_bag.weight)
    torch_optimizer = torch.optim.Adagrad(torch_bag.parameters(), 0.05, initial_accumulator_value=0.1, eps=1e-10)

    def step(ids: torch.Tensor) -> None:
        found = table.find(ids)
        table.pool(found, offsets)
        table.apply(found, offsets, grads)

    def step_torch(numbers: torch.Tensor) -> None:
        torch_bag(numbers, offsets).backward(grads)
        torch_optimizer.step()
        torch_optimizer.zero_grad()

    for number, case in enumerate(cases):
        progress(case)
        batches = make_batches("zipf" if "zipf" in case else "uniform", rows, sizes)
        ids = [each * 0x9E3779B1 for each in batches]
        step(ids[0])
        step_torch(batches[0])
        # Later cases begin with other rows: contestants take different numbers of steps.
        difference = (table.lookup_pooled(ids[0], offsets) - torch_bag(batches[0], offsets)).abs().max().item()
        if number == 0 and difference > 1e-2:
            raise RuntimeError(f"ours and torch differ by {difference} after a step")
        graph = capture(lambda ids=ids: [step(each) for each in ids])  # type: ignore[misc]
        ours = time_graph(graph, len(ids), sizes.rounds)
        eager = _time_each(step, ids)
        peer = _time_each(step_torch, batches)
        extra = {
            "peer_name": f"torch {torch.__version__}",
            "rows": rows,
            "dim": dim,
            "ours_ms": float(np.median(ours)) * 1e3,
            "peer_ms": float(np.median(peer)) * 1e3,
            "ratio_without_graph": float(np.median(peer) / np.median(eager)),
        }
        yield compare(case, ours, np.full(len(ours), np.median(peer)), sizes.ids / 1e6, **extra)


def _time_each(step: Callable[[torch.Tensor], None], batches: Sequence[torch.Tensor]) -> Seconds:
    for each in batches[:3]:
        step(each)
    torch.cuda.synchronize()
    return np.array([seconds_of(lambda each=each: step(each)) for each in batches])  # type: ignore[misc]

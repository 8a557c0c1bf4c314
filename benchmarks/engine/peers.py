"""The contestants: our table and the two peers, each behind the same small face."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from engine.workload import Batch, Ids, Rows, Workload, scatter
from measure.process import make_pages_huge
from measure.results import PeerMissing
from monolith.embedding import Adagrad, RowPlan, SliceSpec, Table, TableSpec, set_threads

__all__ = ["Contestant", "FbgemmTable", "OurTable", "PeerMissing", "TorchTable", "adagrad_spec", "check_agreement"]

LEARNING_RATE = 0.05
FIRST_SQUARES = 0.1
EPSILON = 1e-10
"""Ours has none; it only keeps the peers from refusing 0, and changes no digit."""


class Contestant(Protocol):
    """A table that can be filled and trained. ``call`` numbers the batches and may exceed their count."""

    name: str

    def fill(self, rows: Ids, values: Rows) -> None:
        """Set the values of row numbers."""

    def use(self, batches: Sequence[Batch]) -> None:
        """Get ready for these batches."""

    def lookup(self, call: int) -> Rows:
        """Return the pooled rows of a batch."""

    def step(self, call: int) -> None:
        """Take a full step: pooled rows, then the update from the gradient of the pooled rows."""


def adagrad_spec(dim: int, **settings: Any) -> TableSpec:
    """Return the spec that all cases but the matrix use."""
    optimizer = Adagrad(LEARNING_RATE, initial_accumulator_value=FIRST_SQUARES)
    return TableSpec("bench", [SliceSpec(dim, optimizer=optimizer)], **settings)


class OurTable:
    """Monolith's table, which looks 64-bit ids up."""

    name = "monolith"

    def __init__(self, workload: Workload, spec: TableSpec | None = None) -> None:
        set_threads(workload.sizes.threads)
        self.table = Table(spec or adagrad_spec(workload.sizes.dim))
        self._offsets = workload.offsets
        self._gradients = workload.gradients(self.table.dim)
        self._ids: list[Ids] = []
        self._plan = RowPlan()

    def fill(self, rows: Ids, values: Rows) -> None:  # noqa: D102
        self.table.assign(scatter(rows), values)

    def use(self, batches: Sequence[Batch]) -> None:  # noqa: D102
        self._ids = [batch.ids for batch in batches]

    def lookup(self, call: int) -> Rows:  # noqa: D102
        return self.table.lookup_pooled(self._ids[call % len(self._ids)], self._offsets)

    def step(self, call: int) -> None:  # noqa: D102
        ids = self._ids[call % len(self._ids)]
        self.table.lookup_pooled(ids, self._offsets, plan=self._plan)
        self.table.apply_planned_gradients(self._plan, self._gradients)


class _TorchBase:
    """What both peers share: row numbers as tensors, and the tensors that hold their rows."""

    def __init__(self, workload: Workload) -> None:
        import torch

        torch.set_num_threads(workload.sizes.threads)
        self._torch = torch
        self._offsets = torch.from_numpy(workload.offsets)
        self._gradients = torch.from_numpy(workload.gradients())
        self._rows: list[Any] = []
        self._weights: Any = None
        self._squares: Any = None

    def fill(self, rows: Ids, values: Rows) -> None:
        self._weights[rows[0] : rows[-1] + 1].copy_(self._torch.from_numpy(values))

    def use(self, batches: Sequence[Batch]) -> None:
        self._rows = [self._torch.from_numpy(batch.rows) for batch in batches]

    def use_huge_pages(self) -> bool:
        """Give rows and squares the page size that ours has, and return whether that worked.

        By default tensors of more than a gigabyte are in small pages wherever huge ones must be asked for.
        """
        tensors = (self._weights, self._squares)
        return all([make_pages_huge(each.data_ptr(), each.numel() * each.element_size()) for each in tensors])


class TorchTable(_TorchBase):
    """``torch.nn.EmbeddingBag(sparse=True)`` with ``torch.optim.Adagrad``."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        torch, sizes = self._torch, workload.sizes
        self.name = f"torch {torch.__version__}"
        torch.sparse.check_sparse_tensor_invariants.disable()  # the default and fastest; said aloud, it does not warn
        self._bag = torch.nn.EmbeddingBag(
            sizes.rows,
            sizes.dim,
            mode="sum",
            sparse=True,
            include_last_offset=True,
            _weight=torch.zeros(sizes.rows, sizes.dim),
        )
        parameters = self._bag.parameters()
        self._optimizer = torch.optim.Adagrad(
            parameters, LEARNING_RATE, initial_accumulator_value=FIRST_SQUARES, eps=EPSILON
        )
        self._weights = self._bag.weight.data
        self._squares = self._optimizer.state[self._bag.weight]["sum"]

    def lookup(self, call: int) -> Rows:  # noqa: D102
        with self._torch.no_grad():
            pooled: Rows = self._bag(self._rows[call % len(self._rows)], self._offsets).numpy()
        return pooled

    def step(self, call: int) -> None:  # noqa: D102
        self._bag(self._rows[call % len(self._rows)], self._offsets).backward(self._gradients)
        self._optimizer.step()
        self._optimizer.zero_grad()


class FbgemmTable(_TorchBase):
    """FBGEMM's table-batched embedding on the CPU; its backward pass updates the rows.

    One feature, 64-bit row numbers and no check of their bounds measured fastest; see docs/guide/benchmarks.md.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        torch, sizes = self._torch, workload.sizes
        logging.getLogger().setLevel(logging.WARNING)
        try:
            import fbgemm_gpu
            from fbgemm_gpu import split_table_batched_embeddings_ops_common as common
            from fbgemm_gpu import split_table_batched_embeddings_ops_training as training
        except (ImportError, OSError) as error:
            raise PeerMissing(f"fbgemm-gpu-cpu does not load ({error}); `make bench` installs it") from error
        self.name = f"fbgemm {getattr(fbgemm_gpu, '__version__', '')}".strip()
        self._tbe = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(sizes.rows, sizes.dim, common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)],
            optimizer=training.OptimType.EXACT_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=EPSILON,
            pooling_mode=common.PoolingMode.SUM,
            bounds_check_mode=common.BoundsCheckMode.NONE,
            stochastic_rounding=False,
            device=torch.device("cpu"),
        )
        self._weights = self._tbe.weights_host.data.view(sizes.rows, sizes.dim)
        self._squares = self._tbe.momentum1_host.data
        self._squares.fill_(FIRST_SQUARES)

    def lookup(self, call: int) -> Rows:  # noqa: D102
        with self._torch.no_grad():
            pooled: Rows = self._tbe(self._rows[call % len(self._rows)], self._offsets).numpy()
        return pooled

    def step(self, call: int) -> None:  # noqa: D102
        self._tbe(self._rows[call % len(self._rows)], self._offsets).backward(self._gradients)


def check_agreement(ours: Contestant, peer: Contestant) -> None:
    """Refuse to time contestants that do not compute the same: lookup, one step, lookup again."""
    for moment in ("before", "after"):
        if not np.allclose(ours.lookup(0), peer.lookup(0), rtol=1e-4, atol=1e-4):
            raise RuntimeError(f"{ours.name} and {peer.name} disagree {moment} a step")
        ours.step(0)
        peer.step(0)

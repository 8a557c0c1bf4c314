"""``GpuLayouts``: fills the layouts of a model on a GPU, and sums their gradients per distinct id.

The host numbers the ids of a batch. A packed plan goes to the GPU by one asynchronous copy. ``layouts.cu`` has the
kernels, and no call waits for the GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from monolith import _native
from monolith.embedding.wiring import Wiring
from monolith.nn.gpu.device import GpuDevice
from monolith.nn.gpu.source import read_source

__all__ = ["GpuLayouts", "GpuPlan"]

_THREADS = 256
_MOST_SQUARE_BLOCKS = 32
"""Blocks that sum the squares of one table, at most."""

_NONE = 0xFFFFFFFF
"""NONE of the kernels."""

_TABLE = np.dtype([("ids", "u8"), ("rows", "u8"), ("sums", "u8"), ("count", "u4"), ("first_row", "u4")])
_FEATURE = np.dtype(
    [("places", "u8"), ("offsets", "u8"), ("count", "u4"), ("first", "u4"), ("is_shared", "u4"), ("unused", "u4")]
)
_OUTPUT = np.dtype([("values", "u8"), ("shared", "u8"), ("width", "u4"), ("first_column", "u4"), ("first_block", "u8")])
"""The structs Table, Feature and Output of the kernels."""


class _PlanArgument(ctypes.Structure):
    _fields_ = (
        ("bytes", ctypes.c_void_p),
        ("tables", ctypes.c_uint32),
        ("features", ctypes.c_uint32),
        ("examples", ctypes.c_uint32),
    )


class _WiringArgument(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("forms", "source_starts", "sources", "target_starts", "targets")
    )


@dataclass(frozen=True, slots=True, eq=False)
class GpuPlan:
    """A plan on a GPU."""

    argument: _PlanArgument
    packed: Tensor
    """The bytes of ``StepPlan.pack``."""
    tables: Sequence[str]
    heads: NDArray[Any]
    """Per table: places of its ids in the bytes, of its rows and sums, and the number of its ids."""
    dims: Sequence[int]
    occurrences: int
    has_shared: bool
    """Whether a feature has one bag for all examples."""

    def ids(self, table: int) -> Tensor:
        """Return the distinct ids of a table."""
        first, count = int(self.heads["ids"][table]), int(self.heads["count"][table])
        return self.packed[first : first + 8 * count].view(torch.int64)

    def make_rows(self) -> tuple[Tensor, list[Tensor]]:
        """Return memory for the rows of all tables, and the rows of each of them, (U, D)."""
        counts, firsts = self.heads["count"].tolist(), self.heads["rows"].tolist()
        sizes = [count * dim for count, dim in zip(counts, self.dims, strict=True)]
        flat = torch.empty(firsts[-1] + sizes[-1] if firsts else 0, device=self.packed.device)
        return flat, [
            flat[first : first + size].view(count, dim)
            for first, size, count, dim in zip(firsts, sizes, counts, self.dims, strict=True)
        ]

    def split_sums(self, flat: Tensor) -> list[Tensor]:
        """Return the gradients of each table, (U, D), each row padded to a multiple of four floats."""
        counts, firsts = self.heads["count"].tolist(), self.heads["sums"].tolist()
        return [
            flat[first : first + count * _pad(dim)].view(count, _pad(dim))[:, :dim]
            for first, count, dim in zip(firsts, counts, self.dims, strict=True)
        ]

    @property
    def sums(self) -> int:
        """Floats of the gradients of all tables."""
        return int((self.heads["count"].astype(np.int64) * [_pad(dim) for dim in self.dims]).sum())

    @property
    def rows(self) -> int:
        """Distinct ids of all tables."""
        return int(self.heads["count"].sum())


class GpuLayouts:
    """The layouts of one model on one GPU.

    Shapes: B = examples, W = width of an output, U = distinct ids of a table, D = width of its rows.

    Args:
        wiring: The tables, features and tensors of the model.
        device: The GPU.
        in_order: Sum gradients in the order of the host, so that equal steps give equal bits.
    """

    def __init__(self, wiring: Wiring, device: GpuDevice, *, in_order: bool) -> None:
        self._wiring, self._device, self._in_order = wiring, device, in_order
        self._kernels = device.compile(read_source("vectors.cuh") + read_source("layouts.cu"))
        self._blocks = 16 * device.processors
        self._dims = device.upload(np.array(wiring.dims, np.int32))
        self._first_columns = np.concatenate([[0], np.cumsum(wiring.widths)])[:-1]
        arrays = list(_describe(wiring))
        self._descriptions = [device.upload(each) for each in arrays]
        self._argument = _WiringArgument(*(each.data_ptr() for each in self._descriptions))

    def upload(self, plan: _native.StepPlan) -> GpuPlan:
        """Return a copy of a plan on the GPU."""
        staging = self._device.make_staging(plan.packed_bytes)
        array = staging.numpy()
        plan.pack(array)
        packed = staging.to(self._device.place, non_blocking=True)
        counts = (len(self._wiring.dims), len(self._wiring.features))
        heads = np.frombuffer(array, _TABLE, counts[0]).copy()
        features = np.frombuffer(array, _FEATURE, counts[1], offset=heads.nbytes)
        argument = _PlanArgument(packed.data_ptr(), *counts, plan.rows)
        is_shared = bool(features["is_shared"].any())
        return GpuPlan(argument, packed, self._wiring.tables, heads, self._wiring.dims, plan.occurrences, is_shared)

    def fill(self, plan: GpuPlan, rows: Tensor) -> list[Tensor]:
        """Return all outputs, (B, W) each, from the rows of all tables."""
        examples = plan.argument.examples
        outputs = [torch.empty((examples, width), device=self._device.place) for width in self._wiring.widths]
        blocks = [-(-examples * width // _THREADS) for width in self._wiring.widths]
        described = self._describe_outputs(outputs)
        described["first_block"] = np.concatenate([[0], np.cumsum(blocks)])[:-1]
        self._kernels.launch(
            "fill_outputs",
            sum(blocks),
            _THREADS,
            plan.argument,
            self._argument,
            self._device.upload(described.view(np.uint8)),
            ctypes.c_uint32(len(outputs)),
            rows,
        )
        return outputs

    def sum(self, plan: GpuPlan, grads: Sequence[Tensor | None]) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of each table, (U, D), and their sums of squares per table.

        Args:
            plan: The plan of the outputs.
            grads: Per output, (B, W); None = zero.
        """
        given = [None if each is None else each.detach().to(torch.float32).contiguous() for each in grads]
        described = self._describe_outputs(given)
        if plan.has_shared:
            totals = [None if each is None else each.sum(0, dtype=torch.float64).float() for each in given]
            described["shared"] = _addresses(totals)
        outputs = self._device.upload(described.view(np.uint8))
        sums = self._sum_in_order(plan, outputs) if self._in_order else self._add(plan, outputs)
        return plan.split_sums(sums), self._sum_squares(plan, sums)

    def _describe_outputs(self, outputs: Sequence[Tensor | None]) -> NDArray[Any]:
        described = np.zeros(len(outputs), _OUTPUT)
        described["values"] = _addresses(outputs)
        described["width"], described["first_column"] = self._wiring.widths, self._first_columns
        return described

    def _add(self, plan: GpuPlan, outputs: Tensor) -> Tensor:
        sums = torch.zeros(plan.sums, device=self._device.place)
        self._launch_over_bags("add_gradients", plan, outputs, sums)
        return sums

    def _sum_in_order(self, plan: GpuPlan, outputs: Tensor) -> Tensor:
        place = self._device.place
        rows, bags = (torch.empty(plan.occurrences, dtype=torch.int32, device=place) for _ in range(2))
        self._launch_over_bags("list_occurrences", plan, rows, bags)
        rows, order = torch.sort(rows, stable=True)
        starts = torch.searchsorted(rows, torch.arange(plan.rows + 1, dtype=torch.int32, device=place))
        sums = torch.empty(plan.sums, device=place)
        self._kernels.launch(
            "sum_in_order",
            -(-plan.sums // _THREADS),
            _THREADS,
            plan.argument,
            self._argument,
            outputs,
            order,
            starts,
            bags,
            ctypes.c_uint64(plan.sums),
            self._dims,
            sums,
        )
        return sums

    def _launch_over_bags(self, name: str, plan: GpuPlan, *tensors: Tensor) -> None:
        features = len(self._wiring.features)
        blocks = features * max(1, self._blocks // max(1, features))
        self._kernels.launch(name, blocks, _THREADS, plan.argument, self._argument, *tensors)

    def _sum_squares(self, plan: GpuPlan, sums: Tensor) -> Tensor:
        tables = len(self._wiring.dims)
        blocks = min(_MOST_SQUARE_BLOCKS, 1 + plan.sums // (16 * _THREADS))
        parts = torch.empty((blocks, tables), dtype=torch.float64, device=self._device.place)
        self._kernels.launch("sum_squares", blocks * tables, _THREADS, plan.argument, self._dims, sums, parts)
        return parts.sum(0)


def _describe(wiring: Wiring) -> Iterator[NDArray[np.uint32]]:
    """Return the arrays of the struct Wiring of the kernels, in its order."""
    parts = sorted(wiring.parts, key=lambda part: part.feature)  # stable: the order in which the host adds
    first_columns = np.concatenate([[0], np.cumsum(wiring.widths)])
    sources: list[list[tuple[int, int, int]]] = [[] for _ in range(int(first_columns[-1]))]
    feature_dims = [wiring.dims[feature.table] for feature in wiring.features]
    feature_columns = np.concatenate([[0], np.cumsum(feature_dims, dtype=np.int64)])
    targets: list[list[tuple[int, int, int]]] = [[] for _ in range(int(feature_columns[-1]))]
    for part in parts:
        feature = wiring.features[part.feature]
        is_first = feature.combiner == "first"
        for column in range(part.width):
            target = (part.output, part.offset + column, part.stride)
            targets[feature_columns[part.feature] + part.column + column].append(target)
            for position in range(feature.length if is_first else 1):
                at = first_columns[part.output] + part.offset + column + position * part.stride
                sources[at].append((part.feature, part.column + column, position if is_first else _NONE))
    yield np.array(
        [
            (feature.table, dim, _pad(dim), feature.combiner == "mean", feature.combiner == "first", first)
            for feature, dim, first in zip(wiring.features, feature_dims, feature_columns, strict=False)
        ],
        np.uint32,
    )
    for lists in (sources, targets):
        yield np.concatenate([[0], np.cumsum([len(each) for each in lists], dtype=np.uint32)]).astype(np.uint32)
        yield np.array([item for each in lists for item in each], np.uint32)


def _addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    return [0 if each is None else each.data_ptr() for each in tensors]


def _pad(dim: int) -> int:
    return -(-dim // 4) * 4

"""``IndexMemory``: the pages of a GPU table's index, and their growth.

``Shape`` has the arithmetic: linear hashing with partial expansions. A sweep over the partitions gives each of them one
page more; a sweep from 32 pages splits each partition into two of 17. Any point of a sweep is a valid index, so growth
spreads over the steps that need it. The fullest partition is at most a sixteenth fuller than the average.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import numpy as np
import torch

from monolith.nn.gpu.device import GpuDevice, Kernels

__all__ = ["MOST_PAGES", "SLOTS", "IndexArgument", "IndexMemory", "Shape"]

SLOTS = 16384
"""Keys of a page; the kernels have the same."""

MOST_PAGES = 32
"""Pages of a partition before it splits; the kernels have the same."""

_SPLIT_PAGES = 17
_FIRST_PAGES = 16
_LOAD = 0.875
"""Keys per slot, of all pages. The fullest partition has at most 0.93."""

_PAGE_BYTES = SLOTS * 12
_PAGES_PER_SLAB = 64
_MOVES_PER_LAUNCH = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """Number and sizes of the partitions.

    Args:
        level: There are 2^level partitions, and those that split in this sweep.
        pages: Pages of a partition that this sweep has not reached.
        reached: Partitions that this sweep has grown.
    """

    level: int = 0
    pages: int = _FIRST_PAGES
    reached: int = 0

    @property
    def all_pages(self) -> int:
        """Pages of all partitions."""
        grown = 2 * _SPLIT_PAGES if self.pages == MOST_PAGES else self.pages + 1
        return ((1 << self.level) - self.reached) * self.pages + self.reached * grown

    @property
    def rows(self) -> int:
        """Keys that fit."""
        return int(self.all_pages * SLOTS * _LOAD)

    @property
    def partitions(self) -> int:
        """Partitions, with those that split."""
        return (1 << self.level) + (self.reached if self.pages == MOST_PAGES else 0)

    def next_grown(self) -> tuple[int, dict[int, int]]:
        """Return the partition that grows next, and the partitions that take its keys, with their pages."""
        if self.pages == MOST_PAGES:
            return self.reached, {self.reached: _SPLIT_PAGES, self.reached + (1 << self.level): _SPLIT_PAGES}
        return self.reached, {self.reached: self.pages + 1}

    def grow(self) -> Shape:
        """Return the shape after the next partition has grown."""
        if self.reached + 1 < 1 << self.level:
            return replace(self, reached=self.reached + 1)
        if self.pages == MOST_PAGES:
            return Shape(self.level + 1, _SPLIT_PAGES, 0)
        return Shape(self.level, self.pages + 1, 0)

    @classmethod
    def for_rows(cls, rows: int) -> Shape:
        """Return a shape without a half-done sweep that holds ``rows`` keys."""
        shape = cls()
        while shape.rows < rows:
            shape = Shape(shape.level, shape.pages, (1 << shape.level) - 1).grow()
        return shape


class IndexArgument(ctypes.Structure):
    """The index as an argument of a kernel."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("level", ctypes.c_uint32),
        ("pages", ctypes.c_uint32),
        ("reached", ctypes.c_uint32),
        ("places", ctypes.c_uint32),
    )


class IndexMemory:
    """Device memory of the pages.

    Args:
        kernels: The kernels.
        device: Device of the memory.
    """

    def __init__(self, kernels: Kernels, device: GpuDevice) -> None:
        self._kernels = kernels
        self._device = device
        self._slabs: list[torch.Tensor] = []
        self._free: list[int] = []
        self._shape = Shape()
        self._pages: dict[int, list[int]] = {}
        self._argument = IndexArgument()
        self._pointers = torch.zeros((2, 1024), dtype=torch.int64, device=device.place)
        self._make(Shape())

    @property
    def shape(self) -> Shape:
        """The partitions now."""
        return self._shape

    @property
    def memory_bytes(self) -> int:
        """Bytes of all pages, and of those kept for growth."""
        return sum(each.numel() for each in self._slabs)

    @property
    def argument(self) -> IndexArgument:
        """The index for a kernel."""
        return self._argument

    def bytes_for(self, rows: int) -> int:
        """Return how many bytes growth to ``rows`` may add, with the pages that keys move to."""
        if rows <= self._shape.rows:
            return 0
        target = int(rows / _LOAD / SLOTS * 1.0625) + 1
        moving = _MOVES_PER_LAUNCH * 2 * _SPLIT_PAGES
        missing = target + min(moving, target) - self._shape.all_pages - len(self._free)
        return -(-max(0, missing) // _PAGES_PER_SLAB) * _PAGES_PER_SLAB * _PAGE_BYTES

    def grow(self, rows: int, *, is_empty: bool = False) -> None:
        """Grow until ``rows`` keys fit, on the current stream."""
        if is_empty and self._shape.rows < rows:
            for pages in self._pages.values():
                self._free.extend(pages)
            self._make(Shape.for_rows(rows))
        while self._shape.rows < rows:
            self._move(rows)

    def clear(self) -> None:
        """Remove all keys, on the current stream; the shape stays."""
        self._clear([page for pages in self._pages.values() for page in pages])

    def _make(self, shape: Shape) -> None:
        self._shape = shape
        self._pages = {number: self._take(shape.pages) for number in range(1 << shape.level)}
        self._clear([page for pages in self._pages.values() for page in pages])
        self._write_pointers()

    def _move(self, rows: int) -> None:
        """Grow the next partitions of this sweep, in one launch."""
        old: list[int] = []
        fresh: list[int] = []
        level, pages = self._shape.level, self._shape.pages
        for _ in range(_MOVES_PER_LAUNCH):
            source, targets = self._shape.next_grown()
            old += self._pages[source]
            for target, count in targets.items():
                self._pages[target] = self._take(count)
                fresh += self._pages[target]
            self._shape = self._shape.grow()
            if self._shape.rows >= rows or (self._shape.level, self._shape.pages) != (level, pages):
                break
        self._clear(fresh)
        self._write_pointers()
        table = np.array(old, np.int64)
        moved = self._device.upload(np.stack([table, table + SLOTS * 8], axis=1))
        self._kernels.launch("move_pages", len(old), 1024, self.argument, moved)
        self._free.extend(old)  # safe: later kernels of the stream run after this one

    def _take(self, count: int) -> list[int]:
        if len(self._free) < count:
            pages = max(_PAGES_PER_SLAB if self._slabs else count, count - len(self._free))
            slab = torch.empty(pages * _PAGE_BYTES, dtype=torch.uint8, device=self._device.place)
            self._slabs.append(slab)
            self._free.extend(slab.data_ptr() + number * _PAGE_BYTES for number in range(pages))
        taken = self._free[-count:]
        del self._free[-count:]
        return taken

    def _clear(self, pages: list[int]) -> None:
        addresses = self._device.upload(np.array(pages, np.int64))
        self._kernels.launch("fill_keys", min(len(pages), 4096), 1024, addresses, ctypes.c_uint32(len(pages)))

    def _write_pointers(self) -> None:
        keys = np.zeros(self._shape.partitions * MOST_PAGES, np.int64)
        for number, pages in self._pages.items():
            keys[number * MOST_PAGES : number * MOST_PAGES + len(pages)] = pages
        if len(keys) > self._pointers.shape[1]:
            self._pointers = torch.zeros((2, 2 * len(keys)), dtype=torch.int64, device=self._device.place)
        rows = np.where(keys == 0, 0, keys + SLOTS * 8)
        self._pointers[:, : len(keys)] = self._device.upload(np.stack([keys, rows]))
        first, apart, shape = self._pointers.data_ptr(), self._pointers.shape[1] * 8, self._shape
        self._argument = IndexArgument(
            first, first + apart, shape.level, shape.pages, shape.reached, shape.partitions * MOST_PAGES
        )

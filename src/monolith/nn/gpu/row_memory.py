"""``RowMemory``: the rows of a GPU table, in slabs that never move, and the marks beside them.

A mark is the stamp of a row's last update, in tables with times, or the bit of a row that changed since the last drain.
"""

from __future__ import annotations

import ctypes

import torch

from monolith.nn.gpu.device import GpuDevice

__all__ = ["RowArgument", "RowMemory"]

_SLAB_BYTES = 64 << 20
_FIRST_SLABS = 1024


class RowArgument(ctypes.Structure):
    """The rows as an argument of a kernel."""

    _fields_ = (
        ("slabs", ctypes.c_void_p),
        ("stamps", ctypes.c_void_p),
        ("touched", ctypes.c_void_p),
        ("shift", ctypes.c_uint32),
    )


class RowMemory:
    """Device memory of the rows.

    Args:
        stride: Words of a row.
        device: Device of the memory.
        has_stamps: Whether rows have the stamps of their last updates.
        max_bytes: Budget of the table; slabs of a small table are small.
    """

    def __init__(self, stride: int, device: GpuDevice, *, has_stamps: bool, max_bytes: int | None = None) -> None:
        self._stride = stride
        self._device = device
        slab_bytes = _SLAB_BYTES if max_bytes is None else min(_SLAB_BYTES, max_bytes // 16)
        self._shift = max(5, (slab_bytes // (stride * 4)).bit_length() - 1)
        self._slabs: list[torch.Tensor] = []
        self._stamps: list[torch.Tensor] | None = [] if has_stamps else None
        self._touched: list[torch.Tensor] | None = None
        self._pointers = torch.zeros((3, _FIRST_SLABS), dtype=torch.int64, device=device.place)
        self._argument = self._make_argument()

    @property
    def has_touched(self) -> bool:
        """Whether rows have a bit for changes."""
        return self._touched is not None

    @property
    def capacity(self) -> int:
        """Rows that fit the slabs."""
        return len(self._slabs) << self._shift

    @property
    def memory_bytes(self) -> int:
        """Bytes of all slabs and marks."""
        return len(self._slabs) * self._bytes_of_slab()

    @property
    def argument(self) -> RowArgument:
        """The rows for a kernel."""
        return self._argument

    def _make_argument(self) -> RowArgument:
        first, apart = self._pointers.data_ptr(), self._pointers.shape[1] * 8
        stamps = None if self._stamps is None else first + apart
        touched = None if self._touched is None else first + 2 * apart
        return RowArgument(first, stamps, touched, self._shift)

    def bytes_for(self, rows: int) -> int:
        """Return how many bytes growth to ``rows`` adds."""
        return max(0, self._slabs_for(rows) - len(self._slabs)) * self._bytes_of_slab()

    def grow(self, rows: int) -> None:
        """Add slabs until ``rows`` rows fit."""
        missing = self._slabs_for(rows) - len(self._slabs)
        if missing <= 0:
            return
        count = 1 << self._shift
        for _ in range(missing):
            self._slabs.append(torch.empty(count * self._stride, device=self._device.place))
            if self._stamps is not None:
                self._stamps.append(torch.zeros(count, dtype=torch.int16, device=self._device.place))
            if self._touched is not None:
                self._touched.append(self._make_bits())
        self._write_pointers()

    def shrink(self, rows: int) -> None:
        """Release the slabs behind ``rows`` rows; the first slab stays."""
        for blocks in (self._slabs, self._stamps, self._touched):
            if blocks is not None:
                del blocks[max(1, self._slabs_for(rows)) :]

    def add_touched(self) -> None:
        """Give every row a bit for changes, not set."""
        self._touched = [self._make_bits() for _ in self._slabs]
        self._write_pointers()

    def clear_touched(self) -> None:
        """Clear the bits of all rows, on the current stream."""
        for bits in self._touched or ():
            bits.zero_()

    def _make_bits(self) -> torch.Tensor:
        return torch.zeros(1 << (self._shift - 5), dtype=torch.int32, device=self._device.place)

    def _slabs_for(self, rows: int) -> int:
        return -(-rows >> self._shift) if rows else 0

    def _bytes_of_slab(self) -> int:
        count = 1 << self._shift
        stamps = 0 if self._stamps is None else 2 * count
        return count * self._stride * 4 + stamps + (0 if self._touched is None else count // 8)

    def _write_pointers(self) -> None:
        count = len(self._slabs)
        if count > self._pointers.shape[1]:
            self._pointers = torch.zeros((3, 2 * count), dtype=torch.int64, device=self._device.place)
        addresses = torch.zeros((3, count), dtype=torch.int64)
        for number, blocks in enumerate((self._slabs, self._stamps, self._touched)):
            for place, block in enumerate(blocks or ()):
                addresses[number, place] = block.data_ptr()
        self._pointers[:, :count] = self._device.upload(addresses.numpy())
        self._argument = self._make_argument()

"""``DeviceCounters``: the counters of a GPU table, and the number of rows that the host knows without waiting.

Until a copy of the counters arrives, every id of an update counts as a new row. A copy follows an update when the
memory of the table has little room left for such updates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from monolith.core.errors import EngineError
from monolith.nn.gpu.device import GpuDevice

__all__ = ["Counters", "DeviceCounters"]

_NONE = -1
"""NONE of the kernels, as int32."""
_UPDATES_AHEAD = 8
"""Updates that must fit the memory without a copy: the host queues some before a copy arrives."""
_WORDS = 8
"""Words of the struct Counters of the kernels."""


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a table at one point of its stream."""

    numbers: int
    """Row numbers in use."""
    dead: int
    """Row numbers without a key."""
    skipped: int
    """Gradients that were not finite."""

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self.numbers - self.dead


class DeviceCounters:
    """Counters on the device, and an upper bound of the row numbers in use.

    Args:
        table: Name of the table, for errors.
        device: The device.
    """

    def __init__(self, table: str, device: GpuDevice) -> None:
        self._table, self._device = table, device
        self.tensor = torch.zeros(_WORDS, dtype=torch.int32, device=device.place)
        """The counters, for kernels."""
        self.tensor[1] = _NONE
        self._copy = device.make_host_tensor(_WORDS, dtype=torch.int32)
        self._event = device.make_event()
        self._is_copying = False
        self._known = Counters(0, 0, 0)
        self._added = 0
        self._added_since_copy = 0

    @property
    def distinct(self) -> Tensor:
        """Number of distinct ids of the step, for kernels."""
        return self.tensor[3:4]

    @property
    def known_dead(self) -> int:
        """Row numbers without a key, of the last copy that arrived."""
        return self._known.dead

    def read(self) -> Counters:
        """Return the counters, after waiting for the device; the bound is exact afterwards."""
        self._device.synchronize()
        self._is_copying = False
        self._known, self._added, self._added_since_copy = self._parse(self.tensor.cpu()), 0, 0
        return self._known

    def write(self, numbers: int, special: int) -> None:
        """Replace the counters of rows, after a table was packed; ``skipped`` stays."""
        if self._is_copying:
            self._event.synchronize()
        self._is_copying = False
        self.tensor[:6] = torch.tensor([numbers, special, 0, 0, 0, numbers], dtype=torch.int32)
        self._known, self._added, self._added_since_copy = Counters(numbers, 0, 0), 0, 0

    def bound(self, new: int) -> int:
        """Return how many row numbers there may be with ``new`` more."""
        if self._is_copying and self._event.query():
            self._known = self._parse(self._copy)
            self._added, self._added_since_copy = self._added_since_copy, 0
            self._is_copying = False
        return self._known.numbers + self._added + self._added_since_copy + new

    def note(self, new: int, capacity: int) -> None:
        """Count the ids of an update as new; start a copy of the counters where ``capacity`` rows may be few."""
        if self._device.is_capturing:
            return
        if self._is_copying:
            self._added_since_copy += new
            return
        self._added += new
        if self._known.numbers + self._added + _UPDATES_AHEAD * new <= capacity:
            return
        self._copy.copy_(self.tensor, non_blocking=True)
        self._event.record()
        self._is_copying = True

    def _parse(self, words: Tensor) -> Counters:
        numbers, _, lost, _, dead, _, skipped, _ = words.tolist()
        if lost:
            raise EngineError(f"table {self._table!r} lost {lost} updates: its index was full; report this defect")
        return Counters(numbers, dead, skipped)

"""``KeyedRows``: rows by id in the memory of a GPU, and the kernels over them: find, pool, insert, update, list, pack.

An index gives the number of a row, and slabs hold the rows. This module queues kernels; ``table`` decides about
budgets, admission, times and expiry. No call waits for the GPU unless its description names it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from monolith.embedding import TableSpec
from monolith.nn.gpu.device import GpuDevice
from monolith.nn.gpu.device_counters import DeviceCounters
from monolith.nn.gpu.index_memory import SLOTS, IndexArgument, IndexMemory, Shape
from monolith.nn.gpu.row_memory import RowArgument, RowMemory
from monolith.nn.gpu.source import RowLayout, first_type, first_values, kernel_text

__all__ = ["COPIED_ROWS", "DistinctPlaces", "Found", "KeyedRows", "PooledGradients"]

Mode: TypeAlias = Literal["sum", "mean"]

COPIED_ROWS = 1 << 20
"""Rows per copy between device and host."""

_SKIPPED = -3
"""SKIPPED of the kernels, as int32."""
_MOST_DEAD = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Places of ids in a table, as ``find`` saw them."""

    ids: Tensor
    rows: Tensor
    """Row number of every id, -1 where it has none."""
    slots: Tensor
    skipped: Tensor | None
    """Ids that count nowhere, (N,) bool; None = no id is skipped."""
    version: tuple[Shape, int]
    """Shape of the index and number of packings; rows and slots are valid as long as both stay."""


@dataclass(frozen=True, slots=True, eq=False)
class DistinctPlaces:
    """Places of distinct ids in a table, as a read saw them."""

    ids: Tensor
    slots: Tensor
    """Slot of every id, -1 where it has no row."""
    version: tuple[Shape, int]
    """As of ``Found``."""

    def pick(self, places: Tensor) -> DistinctPlaces:
        """Return some of the places."""
        return DistinctPlaces(self.ids[places], self.slots[places], self.version)


@dataclass(frozen=True, slots=True, eq=False)
class PooledGradients:
    """Gradients of bags, or of single ids without offsets."""

    grads: Tensor
    offsets: Tensor | None
    mode: Mode


class KeyedRows:
    """Index, rows and counters of one table.

    Args:
        spec: The table.
        device: The GPU.
        has_stamps: Whether rows have the stamps of their last updates.
    """

    def __init__(self, spec: TableSpec, device: GpuDevice, *, has_stamps: bool) -> None:
        self._spec, self._device, self._place = spec, device, device.place
        self.layout = RowLayout.of(spec)
        self._first = first_values(spec)
        self.text = sys.intern(kernel_text(spec))
        """The kernels. Tables with equal text may be called together."""
        self._kernels = device.compile(self.text)
        self._index = IndexMemory(self._kernels, device)
        self._rows = RowMemory(self.layout.stride, device, has_stamps=has_stamps, max_bytes=spec.max_bytes)
        self.counts = DeviceCounters(spec.name, device)
        self._is_empty = True
        self._packings = 0
        self.capacity = 0
        """Rows that fit the memory that is there."""
        self._call_type = _call_type(len(spec.slices))
        self._blank_call = self._call_type(
            counters=self.counts.tensor.data_ptr(),
            seed=spec.seed,
            miss_is_initial=spec.on_miss == "initial",
            first_values=self._first,
        )

    # --- sizes ---

    @property
    def version(self) -> tuple[Shape, int]:
        """Changes when slots or row numbers move."""
        return self._index.shape, self._packings

    @property
    def memory_bytes(self) -> int:
        """Bytes of rows, their marks, and the index."""
        return self._rows.memory_bytes + self._index.memory_bytes

    @property
    def slots(self) -> int:
        """Slots of the index."""
        return self._index.shape.all_pages * SLOTS

    def bytes_for(self, rows: int) -> int:
        """Return how many bytes growth to ``rows`` rows may add."""
        return self._rows.bytes_for(rows) + self._index.bytes_for(rows)

    def grow(self, rows: int) -> None:
        """Take memory for ``rows`` rows."""
        self._index.grow(rows, is_empty=self._is_empty)
        self._is_empty = False
        self._rows.grow(rows)
        self._measure()

    def _measure(self) -> None:
        self.capacity = min(self._rows.capacity, self._index.shape.rows)

    def note(self, ids: int) -> None:
        """Count an update of some ids; see ``DeviceCounters.note``."""
        self.counts.note(ids, self.capacity)

    @property
    def has_many_dead(self) -> bool:
        """Whether keys that lost their rows take a noticeable share of the memory."""
        dead = self.counts.known_dead
        return dead > _MOST_DEAD and dead > self.capacity // 16

    # --- reading ---

    def lookup(self, ids: Tensor) -> Tensor:
        """Return the row of every id, (N, D)."""
        out = torch.empty((len(ids), self._spec.dim), device=self._place)
        self._launch(
            "find_values",
            -(-len(ids) // 2) * 8,
            self._index.argument,
            self._rows.argument,
            self.counts.tensor,
            ids,
            _u32(len(ids)),
            self._miss_is_initial,
            self._first,
            out,
        )
        return out

    def find(self, ids: Tensor, skipped: Tensor | None = None) -> Found:
        """Return the places of ids."""
        rows, slots = (torch.empty(len(ids), dtype=torch.int32, device=self._place) for _ in range(2))
        self._launch(
            "find_rows",
            -(-len(ids) // 2) * 8,
            self._index.argument,
            self.counts.tensor,
            ids,
            _u32(len(ids)),
            rows,
            slots,
        )
        if skipped is not None:
            rows.masked_fill_(skipped, _SKIPPED)
            slots.masked_fill_(skipped, _SKIPPED)
        return Found(ids, rows, slots, skipped, self.version)

    def pool(self, found: Found, offsets: Tensor | None, mode: Mode) -> Tensor:
        """Return one row per bag, or one per id without offsets."""
        bags = len(found.ids) if offsets is None else len(offsets) - 1
        out = torch.empty((bags, self._spec.dim), device=self._place)
        threads, groups = self._group_threads()
        self._kernels.launch(
            "pool_rows",
            -(-bags // groups),
            threads,
            self._rows.argument,
            found.rows,
            found.ids,
            _NULL if offsets is None else offsets,
            _u32(bags),
            ctypes.c_int(mode == "mean"),
            self._miss_is_initial,
            self._first,
            out,
        )
        return out

    @property
    def _miss_is_initial(self) -> ctypes.c_int:
        return ctypes.c_int(self._spec.on_miss == "initial")

    # --- inserting ---

    def begin_step(self, slots: Tensor) -> Tensor:
        """Start a step, and return a copy of its slots; rows that are inserted from here on are its new rows."""
        copy = torch.empty_like(slots)
        self._launch("begin_step", len(slots), self.counts.tensor, slots, _u32(len(slots)), copy)
        return copy

    def insert(self, ids: Tensor, slots: Tensor) -> None:
        """Give a row with first values to every id whose slot is -1, and write its slot."""
        self._insert(ids, slots, None, None)

    def insert_and_read(self, ids: Tensor) -> Tensor:
        """Return the row of every id, (N, D); ids without a row get one."""
        slots = torch.full((len(ids),), -1, dtype=torch.int32, device=self._place)
        is_read = torch.zeros(len(ids), dtype=torch.uint8, device=self._place)
        out = torch.empty((len(ids), self._spec.dim), device=self._place)
        self._insert(ids, slots, out, is_read)
        self._launch(
            "read_slots",
            len(ids) * 8,
            self._index.argument,
            self._rows.argument,
            self.counts.tensor,
            slots,
            _u32(len(ids)),
            is_read,
            out,
        )
        return out

    def _insert(self, ids: Tensor, slots: Tensor, out: Tensor | None, is_read: Tensor | None) -> None:
        self._launch(
            "insert_keys",
            len(ids) * 8,
            self._index.argument,
            self._rows.argument,
            self.counts.tensor,
            ids,
            _u32(len(ids)),
            slots,
            self._first,
            _NULL if out is None else out,
            _NULL if is_read is None else is_read,
        )

    # --- updating ---

    def update(
        self, slots: Tensor, gradients: PooledGradients, rates: Sequence[float], *, stamp: int, step: int
    ) -> None:
        """Take one optimizer step per distinct slot; the gradients of equal slots are summed."""
        sums, distinct_slots = self._sum(slots, gradients)
        self._kernels.launch(
            "update_rows",
            self._grid(8),
            256,
            self._index.argument,
            self._rows.argument,
            self.counts.tensor,
            distinct_slots,
            self.counts.distinct,
            sums,
            (ctypes.c_float * len(rates))(*rates),
            _u32(stamp),
            ctypes.c_int64(step),
            ctypes.c_uint64(self._spec.seed),
        )

    def _sum(self, slots: Tensor, gradients: PooledGradients) -> tuple[Tensor, Tensor]:
        """Return the summed gradient of every distinct slot, and the slots in the same order."""
        count = len(slots)
        capacity = 1 << (2 * count - 1).bit_length()
        scratch = torch.full((capacity,), -1, dtype=torch.int64, device=self._place)
        entries, distinct_slots = (torch.empty(count, dtype=torch.int32, device=self._place) for _ in range(2))
        distinct = self.counts.distinct
        self._launch(
            "place_slots", count, slots, _u32(count), scratch, _u32(capacity - 1), entries, distinct_slots, distinct
        )
        sums = torch.empty((count, self.layout.padded), device=self._place)
        threads, _ = self._group_threads()
        grads, offsets = gradients.grads, gradients.offsets
        bags: Tensor | ctypes.c_void_p = _NULL
        if offsets is not None:
            bags = torch.empty(count, dtype=torch.int32, device=self._place)
            self._launch("number_bags", (len(offsets) - 1) * 8, offsets, _u32(len(offsets) - 1), bags)
        occurrences = [bags, _NULL if offsets is None else offsets]
        mean = ctypes.c_int(gradients.mode == "mean")
        if self._spec.deterministic:
            places = scratch.view(torch.int32).view(-1, 2)[entries.long(), 1]
            places, order = torch.sort(places, stable=True)
            starts = torch.searchsorted(places, torch.arange(count + 1, dtype=torch.int32, device=self._place))
            self._kernels.launch(
                "sum_in_order", self._grid(8), threads, order, starts, *occurrences, distinct, mean, grads, sums
            )
        else:
            self._kernels.launch("clear_sums", self._grid(4), 256, sums, distinct)
            self._kernels.launch(
                "sum_gradients", self._grid(8), threads, scratch, entries, *occurrences, _u32(count), mean, grads, sums
            )
        return sums, distinct_slots

    # --- calls over several tables ---

    def make_call(self, places: DistinctPlaces, values: Tensor, *, rates: Sequence[float] = (), stamp: int = 0) -> Any:
        """Return this table's part of a kernel over several tables: the struct ``Call`` of ``kernels.cu``.

        Args:
            places: Distinct ids and their slots.
            values: Their rows, (U, D), or their gradients, each padded to a multiple of four numbers.
            rates: One learning rate per slice.
            stamp: Stamp of the update's time.
        """
        call = self._call_type.from_buffer_copy(self._blank_call)
        call.index, call.slabs = self._index.argument, self._rows.argument
        call.ids, call.slots, call.values = places.ids.data_ptr(), places.slots.data_ptr(), values.data_ptr()
        call.count, call.stamp = places.ids.shape[0], stamp
        call.rates[: len(rates)] = rates
        return call

    def read_all(self, calls: Sequence[Any]) -> None:
        """Read the rows of ``make_call``'s ids, and write their slots; all calls are of tables with equal kernels."""
        blocks = self._number_blocks(calls, 4)
        self._kernels.launch("find_all", blocks, 256, self._upload(calls), _u32(len(calls)))

    def update_all(self, calls: Sequence[Any], step: int) -> None:
        """Give rows to the ids of ``make_call`` that have none, and take one optimizer step per id."""
        blocks, updates = self._number_blocks(calls, 8), 0
        groups = 256 // self.layout.lanes * 4
        for call in calls:
            call.first_update = updates
            call.updates = min(self._grid(8), -(-call.count // groups))
            updates += call.updates
        given, count = self._upload(calls), _u32(len(calls))
        self._kernels.launch("begin_all", -(-len(calls) // 256), 256, given, count)
        self._kernels.launch("insert_all", blocks, 256, given, count)
        self._kernels.launch("update_all", updates, 256, given, count, ctypes.c_int64(step))

    @staticmethod
    def _number_blocks(calls: Sequence[Any], lanes: int) -> int:
        """Give each call its first block of 256 threads, and return the number of all blocks."""
        blocks = 0
        for call in calls:
            call.first_block = blocks
            blocks += -(-(call.count + 1) * lanes // 256)
        return blocks

    def _upload(self, calls: Sequence[Any]) -> Tensor:
        return self._device.upload(np.frombuffer(b"".join(map(bytes, calls)), np.uint8))

    # --- whole rows ---

    def rows_of(self, slots: Tensor) -> Tensor:
        """Return the row number of every slot."""
        numbers = torch.empty_like(slots)
        self._launch(
            "rows_of_slots", len(slots), self._index.argument, self.counts.tensor, slots, _u32(len(slots)), numbers
        )
        return numbers

    def read(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the words and stamps of rows."""
        flat = torch.empty((len(numbers), self.layout.stride), device=self._place)
        stamps = torch.zeros(len(numbers), dtype=torch.int32, device=self._place)
        self._copy_rows(numbers.contiguous(), flat, stamps, to_rows=False)
        return flat, stamps

    def write(self, numbers: Tensor, flat: Tensor, stamps: Tensor) -> None:
        """Replace the words and stamps of rows."""
        self._copy_rows(numbers.contiguous(), flat, stamps, to_rows=True)

    def _copy_rows(self, numbers: Tensor, flat: Tensor, stamps: Tensor, *, to_rows: bool) -> None:
        rows = self._rows.argument
        self._kernels.launch(
            "copy_rows", self._grid(16), 256, rows, numbers, _u32(len(numbers)), flat, stamps, ctypes.c_int(to_rows)
        )

    def read_stamps(self, numbers: Tensor) -> Tensor:
        """Return the stamps of rows."""
        stamps = torch.empty(len(numbers), dtype=torch.int32, device=self._place)
        self._launch("read_stamps", len(numbers), self._rows.argument, numbers, _u32(len(numbers)), stamps)
        return stamps.long()

    def replace_stamps(self, replacements: Tensor) -> None:
        """Replace each stamp of all rows by ``replacements[stamp]``."""
        self._kernels.launch(
            "replace_stamps", self._grid(32), 256, self._rows.argument, self.counts.tensor, replacements
        )

    # --- listing and packing ---

    def list_keys(self) -> tuple[Tensor, Tensor]:
        """Return all ids and the numbers of their rows. The call waits for the GPU."""
        count = self.counts.read().rows
        ids = torch.empty(count, dtype=torch.int64, device=self._place)
        numbers = torch.empty(count, dtype=torch.int32, device=self._place)
        cursor = torch.zeros(1, dtype=torch.int32, device=self._place)
        index = self._index.argument
        blocks = min(index.places, 4096)
        self._kernels.launch("list_keys", blocks, 1024, index, self.counts.tensor, ids, numbers, cursor)
        return ids, numbers

    def keep_only(self, ids: Tensor, numbers: Tensor) -> None:
        """Make these the only rows: close the gaps, and build the index again. The call waits for the GPU.

        Marks of changed rows are cleared.

        Args:
            ids: Ids of rows.
            numbers: Their row numbers; overwritten.
        """
        count = len(ids)
        is_used = torch.zeros(count, dtype=torch.bool, device=self._place)
        is_used[numbers[numbers < count].long()] = True
        gaps = (~is_used).nonzero().flatten().int()
        late = (numbers >= count).nonzero().flatten()
        for first in range(0, len(late), COPIED_ROWS):
            movers, targets = late[first : first + COPIED_ROWS], gaps[first : first + COPIED_ROWS]
            self.write(targets, *self.read(numbers[movers]))
            numbers[movers] = targets
        special = numbers[ids == -(1 << 63)]
        self._index.clear()
        self._kernels.launch("put_keys", self._grid(32), 256, self._index.argument, ids, numbers, _u32(count))
        self.counts.write(count, int(special[0]) if len(special) else -1)
        self._rows.shrink(count)
        self._measure()
        self._rows.clear_touched()
        self._packings += 1

    # --- changes ---

    @property
    def has_touched(self) -> bool:
        """Whether rows have a mark of changes."""
        return self._rows.has_touched

    def add_touched(self) -> None:
        """Give every row a mark of changes, not set."""
        self._rows.add_touched()

    def clear_touched(self) -> None:
        """Clear the marks of all rows."""
        self._rows.clear_touched()

    def list_touched(self) -> Tensor:
        """Return the ids of rows with a mark of a change. The call waits for the GPU."""
        cursor = torch.zeros(1, dtype=torch.int32, device=self._place)
        self._launch_list_touched(None, cursor)  # counts
        ids = torch.empty(int(cursor), dtype=torch.int64, device=self._place)
        self._launch_list_touched(ids, cursor.zero_())
        return ids

    def _launch_list_touched(self, ids: Tensor | None, cursor: Tensor) -> None:
        index = self._index.argument
        blocks, place = min(index.places, 4096), _NULL if ids is None else ids
        self._kernels.launch(
            "list_touched", blocks, 1024, index, self._rows.argument, self.counts.tensor, place, cursor
        )

    # --- grids ---

    def _launch(self, name: str, threads: int, *arguments: object) -> None:
        self._kernels.launch(name, -(-threads // 256), 256, *arguments)

    def _grid(self, blocks_per_processor: int) -> int:
        return blocks_per_processor * self._device.processors

    def _group_threads(self) -> tuple[int, int]:
        """Return the threads of a block, and the groups in it that take one row each."""
        lanes = self.layout.padded // 4
        groups = max(1, 256 // lanes)
        return groups * lanes, groups


@cache
def _call_type(slices: int) -> type[Any]:
    pointers = ("counters", "ids", "slots", "values")
    numbers = ("count", "stamp", "first_block", "first_update", "updates")
    fields = [
        ("index", IndexArgument),
        ("slabs", RowArgument),
        *((name, ctypes.c_void_p) for name in pointers),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in numbers),
        ("miss_is_initial", ctypes.c_int),
        ("first_values", first_type(slices)),
        ("rates", ctypes.c_float * slices),
    ]
    return type("Call", (ctypes.Structure,), {"_fields_": fields})


_NULL = ctypes.c_void_p(0)


def _u32(number: int) -> ctypes.c_uint32:
    return ctypes.c_uint32(number)

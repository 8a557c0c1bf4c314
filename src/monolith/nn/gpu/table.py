"""``GpuTable``: a collisionless table in the memory of a GPU, with the values and updates of ``Table``.

All calls queue kernels on the current stream of torch and return without waiting, unless the table needs memory. The
host knows the number of rows from a copy that follows each update; until the copy arrives it counts every id as new.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from monolith.core.errors import CapacityExceeded, ConfigError, DimensionMismatch, EngineError, ExpiryRefused
from monolith.embedding import Fp16, Fp32, NoFilter, RandomUniform, Table, TableSpec
from monolith.embedding.initializers import Initializer
from monolith.embedding.specs import NEVER_EXPIRES_DAYS
from monolith.nn.gpu.index_memory import SLOTS, IndexMemory, Shape
from monolith.nn.gpu.program import Program
from monolith.nn.gpu.rules import rule_of

__all__ = ["Found", "GpuTable", "kernel_text"]

Mode: TypeAlias = Literal["sum", "mean"]

_COPIED_ROWS = 1 << 20
"""Rows per copy between device and host."""

_SLAB_BYTES = 64 << 20
_SLOTS_OF_IDS = 1 << 15
_SKIPPED = -3
"""SKIPPED of the kernels, as int32."""
_MOST_COLUMNS = 1024
_GUARDED_ROWS = 1000
_MOST_EXPIRED = 0.8
"""Share of the rows that an eviction may drop without ``force``; the same as on the host."""
_U64 = (1 << 64) - 1


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
    """Shape of the index and number of evictions; rows and slots are valid as long as both stay."""


class _SlabArgument(ctypes.Structure):
    _fields_ = (("slabs", ctypes.c_void_p), ("shift", ctypes.c_uint32))


class GpuTable:
    """A table with one slice on a GPU. Rows of a table without an expiry have no times.

    Args:
        spec: The table, without an admission filter.
        device: The GPU.

    Raises:
        ConfigError: There is no GPU, or the spec needs a part that GPU tables do not have.
    """

    def __init__(self, spec: TableSpec, device: str | torch.device = "cuda") -> None:
        _check_spec(spec)
        if not torch.cuda.is_available():
            raise ConfigError(f"device is {str(device)!r}, and torch finds no GPU; use device='cpu'")
        self.spec = spec
        self.dim = spec.dim
        self.device = torch.device(device)
        piece = spec.slices[0]
        rule = rule_of(piece.optimizer)
        self._padded = -(-self.dim // 4) * 4
        self._states, self._extra = rule.states, rule.extra
        words = self._padded * (1 + rule.states) + rule.extra
        self._stride = -(-words // 4) * 4
        self._slab_words = self._stride + _has_times(spec)
        self._first, _ = _first_values(piece.initializer, spec)
        text = kernel_text(spec)
        with torch.cuda.device(self.device):
            torch.cuda.current_stream()  # makes the context
            torch.zeros(1, device=self.device)
            self._program = Program(text, self.device)
            self._index = IndexMemory(self._program, self.device)
            none = -1  # NONE as int32
            self._counters = torch.tensor([0, none, 0, 0], dtype=torch.int32, device=self.device)
            self._copied = torch.zeros(4, dtype=torch.int32).pin_memory()
            self._copy_event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._is_copying = False
        self._is_empty = True
        self._evictions = 0
        self._known_rows = 0
        self._rows_since = 0
        self._rows_since_copy = 0
        self._slab_shift = max(4, (_SLAB_BYTES // (self._stride * 4)).bit_length() - 1)
        self._slabs: list[Tensor] = []
        self._slab_pointers = torch.zeros(1024, dtype=torch.int64, device=self.device)
        self.step = 0

    # --- reading ---

    def lookup(self, ids: Tensor) -> Tensor:
        """Return the row of every id, (N, D); absent ids follow ``on_miss`` of the spec."""
        ids = self._check_ids(ids)
        out = torch.empty((len(ids), self.dim), device=self.device)
        self._launch(
            "find_values",
            -(-len(ids) // 2) * 8,
            self._index.argument,
            self._slab_argument(),
            self._counters,
            ids,
            _u32(len(ids)),
            ctypes.c_int(self.spec.on_miss == "initial"),
            *self._first,
            out,
        )
        return out

    def lookup_pooled(self, ids: Tensor, offsets: Tensor, mode: Mode = "sum") -> Tensor:
        """Pool ragged bags, (B, D); offsets are B + 1 numbers."""
        return self.pool(self.find(ids), offsets, mode)

    def find(self, ids: Tensor, skipped: Tensor | None = None) -> Found:
        """Return the places of the ids, for ``pool`` and ``apply``; ``skipped`` ids read as zeros and get no row."""
        ids = self._check_ids(ids)
        rows, slots = (torch.empty(len(ids), dtype=torch.int32, device=self.device) for _ in range(2))
        self._launch(
            "find_rows", -(-len(ids) // 2) * 8, self._index.argument, self._counters, ids, _u32(len(ids)), rows, slots
        )
        if skipped is not None:
            rows.masked_fill_(skipped, _SKIPPED)
            slots.masked_fill_(skipped, _SKIPPED)
        return Found(ids, rows, slots, skipped, self._version)

    def pool(self, found: Found, offsets: Tensor | None, mode: Mode = "sum") -> Tensor:
        """Return one row per bag, or one per id without offsets."""
        bags = len(found.ids) if offsets is None else len(offsets) - 1
        out = torch.empty((bags, self.dim), device=self.device)
        threads, groups = _group_threads(self._padded // 4)
        self._program.launch(
            "pool_rows",
            -(-bags // groups),
            threads,
            self._slab_argument(),
            found.rows,
            found.ids,
            ctypes.c_void_p(0) if offsets is None else self._check_ids(offsets),
            _u32(bags),
            ctypes.c_int(mode == "mean"),
            ctypes.c_int(self.spec.on_miss == "initial"),
            *self._first,
            out,
        )
        return out

    # --- writing ---

    def apply_gradients(
        self,
        ids: Tensor,
        grads: Tensor,
        *,
        learning_rate: float | None = None,
        time_s: int = 0,
        step: int | None = None,
    ) -> None:
        """Take one optimizer step per distinct id; the gradients of equal ids are summed."""
        self.apply(self.find(ids), None, grads, learning_rate=learning_rate, time_s=time_s, step=step)

    def apply_pooled_gradients(
        self,
        ids: Tensor,
        offsets: Tensor,
        grads: Tensor,
        mode: Mode = "sum",
        *,
        learning_rate: float | None = None,
        time_s: int = 0,
        step: int | None = None,
    ) -> None:
        """Take one optimizer step per distinct id from the gradients of ``lookup_pooled``'s result."""
        self.apply(self.find(ids), offsets, grads, mode, learning_rate=learning_rate, time_s=time_s, step=step)

    def apply(
        self,
        found: Found,
        offsets: Tensor | None,
        grads: Tensor,
        mode: Mode = "sum",
        *,
        learning_rate: float | None = None,
        time_s: int = 0,
        step: int | None = None,
    ) -> None:
        """Take one optimizer step per distinct id of ``find``, from the gradients of ``pool``'s result.

        Ids without a row get one. Rows that came or moved since ``find`` are looked for again. A gradient with NaN or
        Inf changes nothing, unless ``nan_gradients`` of the spec is "pass".

        Args:
            found: Places of the ids.
            offsets: Bags of the ids; None = one gradient per id.
            grads: Gradients of the bags, or of the ids.
            mode: How the bags were pooled.
            learning_rate: Rate of this step; None = that of the spec.
            time_s: Event time of the rows.
            step: Number of the step for rates and rules; None = the updates so far.
        """
        number = self.step if step is None else step
        ids = found.ids
        count = len(ids)
        if offsets is not None:
            offsets = self._check_ids(offsets)
        expected = (count if offsets is None else len(offsets) - 1, self.dim)
        if tuple(grads.shape) != expected:
            raise DimensionMismatch(f"gradients have shape {tuple(grads.shape)}, expected {expected}; check the ids")
        if count == 0:
            return
        bags = None if offsets is None else self._number_bags(offsets, count)
        grads = grads.detach().to(self.device, torch.float32).contiguous()
        self._reserve(count)
        slots = found.slots if found.version == self._version else self.find(ids, found.skipped).slots
        self._insert(ids, slots)
        capacity = 1 << (2 * count - 1).bit_length()
        scratch = torch.full((capacity,), -1, dtype=torch.int64, device=self.device)
        entries = torch.empty(count, dtype=torch.int32, device=self.device)
        distinct_slots = torch.empty(count, dtype=torch.int32, device=self.device)
        distinct = self._counters[3:4]
        distinct.zero_()
        self._launch(
            "place_slots", count, slots, _u32(count), scratch, _u32(capacity - 1), entries, distinct_slots, distinct
        )
        sums = torch.empty((count, self._padded), device=self.device)
        blocks = 4 * torch.cuda.get_device_properties(self.device).multi_processor_count
        threads, _ = _group_threads(self._padded // 4)
        occurrences = [
            ctypes.c_void_p(0) if bags is None else bags,
            ctypes.c_void_p(0) if offsets is None else offsets,
        ]
        mean = ctypes.c_int(mode == "mean")
        if self.spec.deterministic:
            places = scratch.view(torch.int32).view(-1, 2)[entries.long(), 1]
            places, order = torch.sort(places, stable=True)
            starts = torch.searchsorted(places, torch.arange(count + 1, dtype=torch.int32, device=self.device))
            self._program.launch(
                "sum_in_order", 2 * blocks, threads, order, starts, *occurrences, distinct, mean, grads, sums
            )
        else:
            self._program.launch("clear_sums", blocks, 256, sums, distinct)
            self._program.launch(
                "sum_gradients", 2 * blocks, threads, scratch, entries, *occurrences, _u32(count), mean, grads, sums
            )
        self._program.launch(
            "update_rows",
            2 * blocks,
            256,
            self._index.argument,
            self._slab_argument(),
            self._counters,
            distinct_slots,
            distinct,
            sums,
            ctypes.c_float(float(self.spec.slices[0].rate(number)) if learning_rate is None else learning_rate),
            _u32(time_s),
            ctypes.c_int64(number),
            ctypes.c_uint64(self.spec.seed),
        )
        self.step += 1
        self._note_rows(count)

    def find_or_insert(self, ids: Tensor) -> Tensor:
        """Return the row of every id, (N, D); ids without a row get one with their first values."""
        ids = self._check_ids(ids)
        self._reserve(len(ids))
        slots = torch.full((len(ids),), -1, dtype=torch.int32, device=self.device)
        is_read = torch.zeros(len(ids), dtype=torch.uint8, device=self.device)
        out = torch.empty((len(ids), self.dim), device=self.device)
        self._insert(ids, slots, out, is_read)
        self._launch(
            "read_slots",
            len(ids) * 8,
            self._index.argument,
            self._slab_argument(),
            self._counters,
            slots,
            _u32(len(ids)),
            is_read,
            out,
        )
        self._note_rows(len(ids))
        return out

    def reserve(self, rows: int) -> None:
        """Take memory for ``rows`` rows in all, so that no later call grows the table before it has them."""
        self._reserve(max(0, rows - len(self)))

    def evict(self, now_s: int | None = None, *, force: bool = False) -> int:
        """Remove expired rows and return how many; the clock is the newest time of a row unless given.

        The call waits for the GPU. Rows at the end move into the gaps, and their memory is released.

        Raises:
            ExpiryRefused: It would drop more than 80 % of at least 1,000 rows, and is not forced; nothing was changed.
        """
        if not _has_times(self.spec):
            return 0
        ids, numbers = self._list_keys()
        if not len(ids):
            return 0
        times = torch.empty(len(ids), dtype=torch.int32, device=self.device)
        self._launch("read_times", len(ids), self._slab_argument(), numbers, _u32(len(ids)), times)
        seconds = times.long() & 0xFFFFFFFF
        clock = int(seconds.max()) if now_s is None else now_s
        is_kept = clock - seconds < self._lives_s(ids)
        count = int(is_kept.sum())
        expired = len(ids) - count
        if not force and len(ids) >= _GUARDED_ROWS and expired > _MOST_EXPIRED * len(ids):
            raise ExpiryRefused(
                f"table {self.spec.name!r} would lose {expired} of {len(ids)} rows at clock {clock}; check the event "
                "times, or give force=True"
            )
        if expired:
            self._keep_rows(ids[is_kept], numbers[is_kept])
        return expired

    def _lives_s(self, ids: Tensor) -> Tensor:
        """Return the seconds after its last update that the row of an id expires."""
        days = torch.full((_SLOTS_OF_IDS,), self.spec.expire_days, dtype=torch.int64)
        for slot, special in self.spec.slot_expire_days.items():
            days[slot] = special
        return days.to(self.device)[(ids >> 48) & (_SLOTS_OF_IDS - 1)] * 86400

    def _keep_rows(self, ids: Tensor, numbers: Tensor) -> None:
        """Make these the only rows: close the gaps, and build the index again."""
        count = len(ids)
        is_used = torch.zeros(count, dtype=torch.bool, device=self.device)
        is_used[numbers[numbers < count].long()] = True
        gaps = (~is_used).nonzero().flatten().int()
        late = (numbers >= count).nonzero().flatten()
        for first in range(0, len(late), _COPIED_ROWS):
            movers, targets = late[first : first + _COPIED_ROWS], gaps[first : first + _COPIED_ROWS]
            flat = torch.empty((len(movers), self._stride), device=self.device)
            times = torch.empty(len(movers), dtype=torch.int32, device=self.device)
            self._copy_rows(numbers[movers].contiguous(), flat, times, to_rows=False)
            self._copy_rows(targets.contiguous(), flat, times, to_rows=True)
            numbers[movers] = targets
        special = numbers[ids == -(1 << 63)]
        self._index.clear()
        self._program.launch("put_keys", 4096, 256, self._index.argument, ids, numbers, _u32(count))
        state = [count, int(special[0]) if len(special) else -1, 0, 0]
        self._counters.copy_(torch.tensor(state, dtype=torch.int32))
        if self._is_copying:
            self._copy_event.synchronize()
        self._is_copying = False
        self._known_rows, self._rows_since, self._rows_since_copy = count, 0, 0
        del self._slabs[max(1, -(-count // (1 << self._slab_shift))) :]
        self._evictions += 1

    @property
    def _version(self) -> tuple[Shape, int]:
        return self._index.shape, self._evictions

    def _rows_of(self, slots: Tensor) -> Tensor:
        numbers = torch.empty_like(slots)
        self._launch(
            "rows_of_slots", len(slots), self._index.argument, self._counters, slots, _u32(len(slots)), numbers
        )
        return numbers

    def _insert(self, ids: Tensor, slots: Tensor, out: Tensor | None = None, is_read: Tensor | None = None) -> None:
        self._launch(
            "insert_keys",
            len(ids) * 8,
            self._index.argument,
            self._slab_argument(),
            self._counters,
            ids,
            _u32(len(ids)),
            slots,
            *self._first,
            ctypes.c_void_p(0) if out is None else out,
            ctypes.c_void_p(0) if is_read is None else is_read,
        )

    def _number_bags(self, offsets: Tensor, count: int) -> Tensor:
        bags = torch.empty(count, dtype=torch.int32, device=self.device)
        self._launch("number_bags", (len(offsets) - 1) * 8, offsets, _u32(len(offsets) - 1), bags)
        return bags

    # --- rows in and out ---

    def to_host(self) -> Table:
        """Return a table in host memory with the same rows, state and times."""
        all_ids, numbers = self._list_keys()
        count = len(all_ids)
        host = Table(self.spec)
        for first in range(0, count, _COPIED_ROWS):
            some = numbers[first : first + _COPIED_ROWS]
            flat = torch.empty((len(some), self._stride), device=self.device)
            times = torch.zeros(len(some), dtype=torch.int32, device=self.device)
            self._copy_rows(some, flat, times, to_rows=False)
            rows = np.ascontiguousarray(flat.cpu().numpy()[:, self._columns()])
            keys = all_ids[first : first + _COPIED_ROWS].cpu().numpy()
            host.import_entries(keys, times.cpu().numpy().view(np.uint32), rows)
        return host

    def _list_keys(self) -> tuple[Tensor, Tensor]:
        """Return all ids and the numbers of their rows."""
        count = len(self)
        ids = torch.empty(count, dtype=torch.int64, device=self.device)
        numbers = torch.empty(count, dtype=torch.int32, device=self.device)
        cursor = torch.zeros(1, dtype=torch.int32, device=self.device)
        index = self._index.argument
        self._program.launch("list_keys", min(index.places, 4096), 1024, index, self._counters, ids, numbers, cursor)
        return ids, numbers

    def add_rows_of(self, host: Table) -> None:
        """Store all rows of a table in host memory, with state and times; rows of equal ids are replaced."""
        for ids, times, rows in host.export_entries(_COPIED_ROWS):
            flat = np.zeros((len(ids), self._stride), np.float32)
            flat[:, self._columns()] = rows
            self._reserve(len(ids))
            slots = self.find(torch.from_numpy(ids)).slots
            self._insert(torch.from_numpy(ids).to(self.device), slots)
            numbers = self._rows_of(slots)
            stamps = torch.from_numpy(times.view(np.int32)).to(self.device)
            self._copy_rows(numbers, torch.from_numpy(flat).to(self.device), stamps, to_rows=True)
            self._note_rows(len(ids))

    def _copy_rows(self, numbers: Tensor, flat: Tensor, times: Tensor, *, to_rows: bool) -> None:
        slabs = self._slab_argument()
        self._program.launch(
            "copy_rows", 2048, 256, slabs, numbers, _u32(len(numbers)), flat, times, ctypes.c_int(to_rows)
        )

    def _columns(self) -> NDArray[np.int64]:
        """Return the words of a row on the device that a row of the host has: values, state, then state per row."""
        blocks = [np.arange(self.dim) + self._padded * number for number in range(1 + self._states)]
        return np.concatenate([*blocks, self._padded * (1 + self._states) + np.arange(self._extra)])

    # --- sizes ---

    def __len__(self) -> int:
        torch.cuda.current_stream(self.device).synchronize()
        counters = self._counters.cpu().numpy()
        self._check_lost(int(counters[2]))
        return int(counters[0])

    @property
    def memory_bytes(self) -> int:
        """Bytes of rows, index and counters on the device."""
        return sum(each.numel() * 4 for each in self._slabs) + self._index.memory_bytes

    @property
    def slots(self) -> int:
        """Slots of the index."""
        return self._index.shape.all_pages * SLOTS

    @property
    def load(self) -> float:
        """Keys per slot of the index."""
        return len(self) / self.slots

    # --- memory ---

    def _reserve(self, new: int) -> None:
        """Grow index and rows so that ``new`` more ids fit."""
        if torch.cuda.is_current_stream_capturing():
            return  # a graph replays into the memory that is there
        if self._is_copying and self._copy_event.query():  # type: ignore[no-untyped-call]
            self._check_lost(int(self._copied[2]))
            self._known_rows = int(self._copied[0])
            self._rows_since = self._rows_since_copy
            self._rows_since_copy = 0
            self._is_copying = False
        upper = self._known_rows + self._rows_since + self._rows_since_copy + new
        slab_rows = 1 << self._slab_shift
        missing = max(0, -(-upper // slab_rows) - len(self._slabs))
        budget = self.spec.max_bytes
        added = missing * slab_rows * self._slab_words * 4 + self._index.bytes_for(upper)
        if budget is not None and self.memory_bytes + added > budget:
            raise CapacityExceeded(
                f"table {self.spec.name!r} holds {self.memory_bytes} bytes on {self.device}; {new} more ids may need "
                f"{added} more, and max_bytes is {budget}; raise max_bytes"
            )
        self._index.grow(upper, is_empty=self._is_empty)
        self._is_empty = False
        if missing:
            self._slabs.extend(torch.empty(slab_rows * self._slab_words, device=self.device) for _ in range(missing))
            if len(self._slabs) > len(self._slab_pointers):
                self._slab_pointers = torch.zeros(2 * len(self._slabs), dtype=torch.int64, device=self.device)
            addresses = torch.tensor([each.data_ptr() for each in self._slabs], dtype=torch.int64).pin_memory()
            self._slab_pointers[: len(self._slabs)].copy_(addresses, non_blocking=True)

    def _note_rows(self, new: int) -> None:
        """Start a copy of the counters, or count the ids as new until the copy under way arrives."""
        if torch.cuda.is_current_stream_capturing():
            return
        if self._is_copying:
            self._rows_since_copy += new
            return
        self._rows_since += new
        self._copied.copy_(self._counters, non_blocking=True)
        self._copy_event.record()
        self._is_copying = True

    def _check_lost(self, lost: int) -> None:
        if lost:
            raise EngineError(f"table {self.spec.name!r} lost {lost} updates: its index was full; report this defect")

    # --- small ---

    def _launch(self, name: str, threads: int, *arguments: object) -> None:
        self._program.launch(name, -(-threads // 256), 256, *arguments)

    def _slab_argument(self) -> _SlabArgument:
        return _SlabArgument(self._slab_pointers.data_ptr(), self._slab_shift)

    def _check_ids(self, ids: Tensor) -> Tensor:
        if ids.dtype not in (torch.int64, torch.int32) or ids.dim() != 1:
            raise ConfigError(f"ids are of {ids.dtype} and shape {tuple(ids.shape)}, expected flat int64; use .long()")
        return ids.to(self.device, torch.int64).contiguous()


def kernel_text(spec: TableSpec) -> str:
    """Return the CUDA C++ of a table's kernels."""
    _check_spec(spec)
    piece = spec.slices[0]
    rule = rule_of(piece.optimizer)
    padded = -(-spec.dim // 4) * 4
    _, kind = _first_values(piece.initializer, spec)
    constants = {
        "DIM": spec.dim,
        "DIM4": padded // 4,
        "PADDED": padded,
        "STRIDE": -(-(padded * (1 + rule.states) + rule.extra) // 4) * 4,
        "LANES": min(32, 1 << (padded // 4 - 1).bit_length()),
        "HOT": max(1, min(64, 8192 // padded)),
        "INIT_KIND": kind,
        "HAS_TIMES": int(_has_times(spec)),
        "CHECK_FINITE": int(spec.nan_gradients != "pass"),
        "ROUND_HALF": int(piece.optimizer.stochastic_rounding),
        "DEVICE": "__device__ __forceinline__",
        **rule.constants,
    }
    folder = files("monolith.nn.gpu")
    text = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    return text + (folder / "rules.cuh").read_text() + (folder / "kernels.cu").read_text()


def _has_times(spec: TableSpec) -> bool:
    """Return whether the rows of a table have the times of their last updates: where they can expire."""
    return spec.expire_days < NEVER_EXPIRES_DAYS or bool(spec.slot_expire_days)


def _check_spec(spec: TableSpec) -> None:
    if len(spec.slices) != 1:
        raise ConfigError(f"spec has {len(spec.slices)} slices, expected 1 on a GPU; use device='cpu'")
    if spec.dim > _MOST_COLUMNS:
        raise ConfigError(f"dim is {spec.dim}, expected at most {_MOST_COLUMNS} on a GPU; use device='cpu'")
    if not isinstance(spec.slices[0].compressor, Fp32 | Fp16):
        raise ConfigError(
            f"compressor is {spec.slices[0].compressor!r}, expected Fp32 or Fp16 on a GPU: others change the rows that "
            "training reads; use device='cpu'"
        )
    if not isinstance(spec.admission, NoFilter):
        raise ConfigError(f"admission is {spec.admission!r}, expected NoFilter on a GPU; use device='cpu'")
    if spec.when_full != "refuse":
        raise ConfigError(f"when_full is {spec.when_full!r}, expected 'refuse' on a GPU; use device='cpu'")
    if spec.nan_gradients == "error":
        raise ConfigError(
            "nan_gradients is 'error', expected 'skip' or 'pass' on a GPU: a check would make each step wait; use "
            "device='cpu'"
        )


def _first_values(initializer: Initializer, spec: TableSpec) -> tuple[list[object], int]:
    """Return the seed and the range of first values as arguments of kernels, and the kind of initializer."""
    seed = ctypes.c_uint64(_scramble(_table_seed(spec)))
    if isinstance(initializer, RandomUniform):
        low, high = np.float32(initializer.minval), np.float32(initializer.maxval)
        largest = max(low, np.nextafter(high, low))
        numbers, kind = [low, np.float32(high - low), largest], 1
    else:
        constant = {"zeros": 0.0, "ones": 1.0}.get(initializer.kind)
        value = np.float32(initializer.settings()["constant"] if constant is None else constant)
        numbers, kind = [value, np.float32(0), value], 0
    return [seed, *(ctypes.c_float(float(each)) for each in numbers)], kind


def _table_seed(spec: TableSpec) -> int:
    seed = _scramble(spec.seed)
    for byte in spec.name.encode():
        seed = _scramble(seed ^ byte)
    return seed


def _scramble(number: int) -> int:
    number = (number + 0x9E3779B97F4A7C15) & _U64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _U64
    return number ^ (number >> 31)


def _u32(number: int) -> ctypes.c_uint32:
    return ctypes.c_uint32(number)


def _group_threads(lanes: int) -> tuple[int, int]:
    """Return the threads of a block and the groups in it, for groups of ``lanes``."""
    groups = max(1, 256 // lanes)
    return groups * lanes, groups

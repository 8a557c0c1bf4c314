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

from monolith.core.errors import CapacityExceeded, ConfigError, DimensionMismatch, EngineError
from monolith.embedding import Adagrad, Adam, RandomUniform, Sgd, Table, TableSpec
from monolith.embedding.initializers import Initializer
from monolith.nn.gpu.index_memory import IndexMemory, Shape
from monolith.nn.gpu.program import Program

__all__ = ["Found", "GpuTable"]

Mode: TypeAlias = Literal["sum", "mean"]

_COPIED_ROWS = 1 << 20
"""Rows per copy between device and host."""

_SLAB_BYTES = 64 << 20
_U64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Places of ids in a table, as ``find`` saw them."""

    ids: Tensor
    rows: Tensor
    """Row number of every id, -1 where it has none."""
    slots: Tensor
    shape: Shape
    """Shape of the index; slots are valid as long as it stays."""


class _SlabArgument(ctypes.Structure):
    _fields_ = (("slabs", ctypes.c_void_p), ("shift", ctypes.c_uint32))


class GpuTable:
    """A table with one slice on a GPU.

    Args:
        spec: The table. Optimizers Sgd, Adagrad and Adam; no admission filter, no expiry.
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
        states, extra, rule = _rule_of(piece.optimizer)
        self._padded = -(-self.dim // 4) * 4
        self._states, self._extra = states, extra
        words = self._padded * (1 + states) + extra
        self._stride = -(-words // 4) * 4
        self._lanes = min(32, 1 << (self._padded // 4 - 1).bit_length())
        self._first, kind = _first_values(piece.initializer, spec)
        constants = {
            "DIM": self.dim,
            "DIM4": self._padded // 4,
            "PADDED": self._padded,
            "STRIDE": self._stride,
            "LANES": self._lanes,
            "HOT": max(1, min(64, 8192 // self._padded)),
            "INIT_KIND": kind,
            **rule,
        }
        folder = files("monolith.nn.gpu")
        text = "".join(f"#define {name} {value}\n" for name, value in constants.items())
        text += (folder / "rules.cuh").read_text() + (folder / "kernels.cu").read_text()
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
        return self.pool(self.find(ids), None)

    def lookup_pooled(self, ids: Tensor, offsets: Tensor, mode: Mode = "sum") -> Tensor:
        """Pool ragged bags, (B, D); offsets are B + 1 numbers."""
        return self.pool(self.find(ids), offsets, mode)

    def find(self, ids: Tensor) -> Found:
        """Return the places of the ids, for ``pool`` and ``apply``."""
        ids = self._check_ids(ids)
        rows, slots = (torch.empty(len(ids), dtype=torch.int32, device=self.device) for _ in range(2))
        self._launch("find_rows", len(ids) * 8, self._index.argument, self._counters, ids, _u32(len(ids)), rows, slots)
        return Found(ids, rows, slots, self._index.shape)

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
        self, ids: Tensor, grads: Tensor, *, learning_rate: float | None = None, time_s: int = 0
    ) -> None:
        """Take one optimizer step per distinct id; the gradients of equal ids are summed."""
        self.apply(self.find(ids), None, grads, learning_rate=learning_rate, time_s=time_s)

    def apply_pooled_gradients(
        self,
        ids: Tensor,
        offsets: Tensor,
        grads: Tensor,
        mode: Mode = "sum",
        *,
        learning_rate: float | None = None,
        time_s: int = 0,
    ) -> None:
        """Take one optimizer step per distinct id from the gradients of ``lookup_pooled``'s result."""
        self.apply(self.find(ids), offsets, grads, mode, learning_rate=learning_rate, time_s=time_s)

    def apply(
        self,
        found: Found,
        offsets: Tensor | None,
        grads: Tensor,
        mode: Mode = "sum",
        *,
        learning_rate: float | None = None,
        time_s: int = 0,
    ) -> None:
        """Take one optimizer step per distinct id of ``find``, from the gradients of ``pool``'s result.

        Ids without a row get one. Rows that came or moved since ``find`` are looked for again.
        """
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
        slots = found.slots if found.shape == self._index.shape else self.find(ids).slots
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
        self._program.launch("clear_sums", blocks, 256, sums, distinct)
        threads, _ = _group_threads(self._padded // 4)
        self._program.launch(
            "sum_gradients",
            2 * blocks,
            threads,
            scratch,
            entries,
            ctypes.c_void_p(0) if bags is None else bags,
            ctypes.c_void_p(0) if offsets is None else offsets,
            _u32(count),
            ctypes.c_int(mode == "mean"),
            grads,
            sums,
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
            ctypes.c_float(float(self.spec.slices[0].rate(self.step)) if learning_rate is None else learning_rate),
            _u32(time_s),
        )
        self.step += 1
        self._note_rows(count)

    def _insert(self, ids: Tensor, slots: Tensor) -> None:
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
        )

    def _number_bags(self, offsets: Tensor, count: int) -> Tensor:
        bags = torch.empty(count, dtype=torch.int32, device=self.device)
        self._launch("number_bags", (len(offsets) - 1) * 8, offsets, _u32(len(offsets) - 1), bags)
        return bags

    # --- rows in and out ---

    def to_host(self) -> Table:
        """Return a table in host memory with the same rows, state and times."""
        count = len(self)
        ids = torch.empty(count, dtype=torch.int64, device=self.device)
        numbers = torch.empty(count, dtype=torch.int32, device=self.device)
        cursor = torch.zeros(1, dtype=torch.int32, device=self.device)
        index = self._index.argument
        self._program.launch("list_keys", min(index.places, 4096), 1024, index, self._counters, ids, numbers, cursor)
        host = Table(self.spec)
        for first in range(0, count, _COPIED_ROWS):
            some = numbers[first : first + _COPIED_ROWS]
            flat = torch.empty((len(some), self._stride), device=self.device)
            times = torch.empty(len(some), dtype=torch.int32, device=self.device)
            self._copy_rows(some, flat, times, to_rows=False)
            rows = np.ascontiguousarray(flat.cpu().numpy()[:, self._columns()])
            keys = ids[first : first + _COPIED_ROWS].cpu().numpy()
            host.import_entries(keys, times.cpu().numpy().view(np.uint32), rows)
        return host

    def add_rows_of(self, host: Table) -> None:
        """Store all rows of a table in host memory, with state and times; rows of equal ids are replaced."""
        for ids, times, rows in host.export_entries(_COPIED_ROWS):
            flat = np.zeros((len(ids), self._stride), np.float32)
            flat[:, self._columns()] = rows
            self._reserve(len(ids))
            slots = self.find(torch.from_numpy(ids)).slots
            self._insert(torch.from_numpy(ids).to(self.device), slots)
            numbers = torch.empty_like(slots)
            self._launch(
                "rows_of_slots", len(ids), self._index.argument, self._counters, slots, _u32(len(ids)), numbers
            )
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
        added = missing * slab_rows * (self._stride + 1) * 4 + self._index.bytes_for(upper)
        if budget is not None and self.memory_bytes + added > budget:
            raise CapacityExceeded(
                f"table {self.spec.name!r} holds {self.memory_bytes} bytes on {self.device}; {new} more ids may need "
                f"{added} more, and max_bytes is {budget}; raise max_bytes"
            )
        self._index.grow(upper, is_empty=self._is_empty)
        self._is_empty = False
        if missing:
            self._slabs.extend(torch.empty(slab_rows * (self._stride + 1), device=self.device) for _ in range(missing))
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


def _check_spec(spec: TableSpec) -> None:
    if len(spec.slices) != 1:
        raise ConfigError(f"spec has {len(spec.slices)} slices, expected 1 on a GPU; use device='cpu'")
    plain = TableSpec(spec.name, spec.slices, on_miss=spec.on_miss, max_bytes=spec.max_bytes, seed=spec.seed)
    if spec != plain:
        raise ConfigError(
            f"spec of table {spec.name!r} has expiry, admission, deterministic or other settings that GPU tables do "
            "not have yet; use device='cpu'"
        )


def _rule_of(optimizer: object) -> tuple[int, int, dict[str, object]]:
    """Return words of state per column and per row, and the constants of the rule."""
    match optimizer:
        case Sgd():
            return 0, 0, {"RULE_SGD": 1}
        case Adagrad():
            return (
                1,
                0,
                {
                    "RULE_ADAGRAD": 1,
                    "SETTING_INITIAL": _number(optimizer.initial_accumulator_value),
                    "SETTING_DECAY": _number(optimizer.weight_decay_factor),
                },
            )
        case Adam():
            return (
                2,
                2,
                {
                    "RULE_ADAM": 1,
                    "SETTING_BETA1": _number(optimizer.beta1),
                    "SETTING_BETA2": _number(optimizer.beta2),
                    "SETTING_DECAY": _number(optimizer.weight_decay_factor),
                    "SETTING_EPSILON": _number(optimizer.epsilon),
                    "SETTING_NESTEROV": int(optimizer.use_nesterov),
                },
            )
    raise ConfigError(
        f"optimizer is {type(optimizer).__name__}, expected Sgd, Adagrad or Adam on a GPU; use device='cpu'"
    )


def _number(value: float) -> str:
    """Return a float32 as a literal of C with all its bits."""
    return f"{float(np.float32(value)).hex()}f"


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

"""``GpuTable``: a collisionless table in the memory of a GPU, with the values and updates of ``Table``.

All calls queue kernels on the current stream of torch and return without waiting, unless the table needs memory. The
host knows the number of rows from a copy that follows each update; until the copy arrives it counts every id as new.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from monolith.core.errors import CapacityExceeded, ConfigError, DimensionMismatch, EngineError, ExpiryRefused
from monolith.embedding import NoFilter, Table, TableSpec
from monolith.embedding.expiry import has_expiry
from monolith.nn.gpu.admission import Doorkeeper
from monolith.nn.gpu.event_stamps import EventStamps
from monolith.nn.gpu.host_tier import Entries, HostTier, choose_cold
from monolith.nn.gpu.index_memory import SLOTS, IndexMemory, Shape
from monolith.nn.gpu.program import Program
from monolith.nn.gpu.row_memory import RowMemory
from monolith.nn.gpu.source import RowLayout, check_spec, first_values, kernel_text

__all__ = ["Found", "GpuTable"]

Mode: TypeAlias = Literal["sum", "mean"]

_COPIED_ROWS = 1 << 20
"""Rows per copy between device and host."""

_SLOTS_OF_IDS = 1 << 15
_SKIPPED = -3
"""SKIPPED of the kernels, as int32."""
_MOST_CLOCK_STEP_S = 86400
_GUARDED_ROWS = 1000
_MOST_EXPIRED = 0.8
"""Share of the rows that an eviction may drop without ``force``; the same as on the host."""


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


class GpuTable:
    """A table on a GPU.

    Rows keep their times where they can expire. ``drain_touched`` starts to keep which rows changed. A table with an
    admission filter asks the filter in host memory, so its updates wait for the GPU.

    At ``max_bytes`` of the spec, rows with the oldest updates move to host memory, if ``host_bytes`` gives room there.
    A row moves back when a step reads it, and such a step waits for the GPU. Without room, the table raises.

    Args:
        spec: The table.
        device: The GPU.
        host_bytes: Host memory for rows that have no room on the GPU; None = no rows there.

    Raises:
        ConfigError: There is no GPU, or the spec needs a part that GPU tables do not have.
    """

    def __init__(self, spec: TableSpec, device: str | torch.device = "cuda", *, host_bytes: int | None = None) -> None:
        check_spec(spec)
        if host_bytes is not None and spec.max_bytes is None:
            raise ConfigError(f"host_bytes is {host_bytes} and max_bytes of the spec is None; give a budget of the GPU")
        if not torch.cuda.is_available():
            raise ConfigError(f"device is {str(device)!r}, and torch finds no GPU; use device='cpu'")
        self.spec = spec
        self.dim = spec.dim
        self.device = torch.device(device)
        self._layout = RowLayout.of(spec)
        self._padded, self._stride = self._layout.padded, self._layout.stride
        self._first = first_values(spec)
        self._tier = None if host_bytes is None else HostTier(spec, host_bytes)
        self._has_times = has_expiry(spec)
        self._stamps = EventStamps() if self._has_times or self._tier is not None else None
        """Stamps of rows: times of events; without an expiry, numbers of steps for the host tier."""
        self._doorkeeper = None if isinstance(spec.admission, NoFilter) else Doorkeeper(spec)
        self._processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        with torch.cuda.device(self.device):
            torch.cuda.current_stream()  # makes the context
            torch.zeros(1, device=self.device)
            self._program = Program(kernel_text(spec), self.device)
            self._index = IndexMemory(self._program, self.device)
            none = -1  # NONE as int32
            self._counters = torch.tensor([0, none, 0, 0], dtype=torch.int32, device=self.device)
            self._copied = torch.zeros(4, dtype=torch.int32).pin_memory()
            self._copy_event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._rows = RowMemory(self._stride, self.device, has_stamps=self._stamps is not None, max_bytes=spec.max_bytes)
        self._is_copying = False
        self._is_empty = True
        self._evictions = 0
        self._known_rows = 0
        self._rows_since = 0
        self._rows_since_copy = 0
        self._changed: list[Tensor] = []
        """Ids of changes that the marks of rows do not have: those before an eviction, and removed ids."""
        self._clock_s = 0
        self.step = 0

    # --- reading ---

    def lookup(self, ids: Tensor) -> Tensor:
        """Return the row of every id, (N, D); absent ids follow ``on_miss`` of the spec."""
        ids = self._check_ids(ids)
        self._bring(ids)
        out = torch.empty((len(ids), self.dim), device=self.device)
        self._launch(
            "find_values",
            -(-len(ids) // 2) * 8,
            self._index.argument,
            self._rows.argument,
            self._counters,
            ids,
            _u32(len(ids)),
            ctypes.c_int(self.spec.on_miss == "initial"),
            self._first,
            out,
        )
        return out

    def lookup_pooled(self, ids: Tensor, offsets: Tensor, mode: Mode = "sum") -> Tensor:
        """Pool ragged bags, (B, D); offsets are B + 1 numbers."""
        return self.pool(self.find(ids), offsets, mode)

    def find(self, ids: Tensor, skipped: Tensor | None = None) -> Found:
        """Return the places of the ids, for ``pool`` and ``apply``; ``skipped`` ids read as zeros and get no row."""
        ids = self._check_ids(ids)
        self._bring(ids)
        return self._find(ids, skipped)

    def _find(self, ids: Tensor, skipped: Tensor | None = None) -> Found:
        """Find ids on the GPU."""
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
            self._rows.argument,
            found.rows,
            found.ids,
            ctypes.c_void_p(0) if offsets is None else self._check_ids(offsets),
            _u32(bags),
            ctypes.c_int(mode == "mean"),
            ctypes.c_int(self.spec.on_miss == "initial"),
            self._first,
            out,
        )
        return out

    def contains(self, ids: Tensor) -> Tensor:
        """Return for every id whether it has a row, (N,) bool."""
        return self.find(ids).rows != -1

    # --- writing ---

    def apply_gradients(
        self,
        ids: Tensor,
        grads: Tensor,
        *,
        learning_rates: ArrayLike | None = None,
        time_s: int = 0,
        step: int | None = None,
        counts: Tensor | None = None,
    ) -> None:
        """Take one optimizer step per distinct id; the gradients of equal ids are summed. See ``apply``."""
        self.apply(self.find(ids), None, grads, learning_rates=learning_rates, time_s=time_s, step=step, counts=counts)

    def apply_pooled_gradients(
        self,
        ids: Tensor,
        offsets: Tensor,
        grads: Tensor,
        mode: Mode = "sum",
        *,
        learning_rates: ArrayLike | None = None,
        time_s: int = 0,
        step: int | None = None,
    ) -> None:
        """Take one optimizer step per distinct id from the gradients of ``lookup_pooled``'s result."""
        self.apply(self.find(ids), offsets, grads, mode, learning_rates=learning_rates, time_s=time_s, step=step)

    def apply(
        self,
        found: Found,
        offsets: Tensor | None,
        grads: Tensor,
        mode: Mode = "sum",
        *,
        learning_rates: ArrayLike | None = None,
        time_s: int = 0,
        step: int | None = None,
        counts: Tensor | None = None,
    ) -> None:
        """Take one optimizer step per distinct id of ``find``, from the gradients of ``pool``'s result.

        Ids without a row get one, if the admission filter of the table lets them in. Rows that came or moved since
        ``find`` are looked for again. A gradient with NaN or Inf changes nothing, unless ``nan_gradients`` of the spec
        is "pass".

        Args:
            found: Places of the ids.
            offsets: Bags of the ids; None = one gradient per id.
            grads: Gradients of the bags, or of the ids.
            mode: How the bags were pooled.
            learning_rates: One rate per slice; None = those of the spec.
            time_s: Event time of the rows.
            step: Number of the step for rates and rules; None = the updates so far.
            counts: Sightings behind each id, for admission; None = one each.
        """
        number = self.step if step is None else step
        ids = found.ids
        count = len(ids)
        if offsets is not None:
            offsets = self._check_ids(offsets)
        expected = (count if offsets is None else len(offsets) - 1, self.dim)
        if tuple(grads.shape) != expected:
            raise DimensionMismatch(
                f"gradients of table {self.spec.name!r} have shape {tuple(grads.shape)}, expected {expected}"
            )
        if count == 0:
            return
        bags = None if offsets is None else self._number_bags(offsets, count)
        grads = grads.detach().to(self.device, torch.float32).contiguous()
        self._reserve(count, needed=ids)
        slots = found.slots if found.version == self._version else self.find(ids, found.skipped).slots
        if self._doorkeeper is not None:
            self._refuse_new(self._doorkeeper, ids, slots, counts)
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
        blocks = 4 * self._processors
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
            self._rows.argument,
            self._counters,
            distinct_slots,
            distinct,
            sums,
            self._rates(learning_rates, number),
            _u32(self._stamp(time_s, number)),
            ctypes.c_int64(number),
            ctypes.c_uint64(self.spec.seed),
        )
        self.step += 1
        self._note_rows(count)

    def _refuse_new(self, doorkeeper: Doorkeeper, ids: Tensor, slots: Tensor, counts: Tensor | None) -> None:
        """Skip the ids without a row that the admission filter refuses. The call waits for the GPU."""
        absent = (slots == -1).nonzero().flatten()
        if not len(absent):
            return
        sightings = None if counts is None else counts.to(self.device)[absent].cpu().numpy()
        is_admitted = doorkeeper.admit(ids[absent].cpu().numpy(), sightings)
        slots[absent[torch.from_numpy(~is_admitted).to(self.device)]] = _SKIPPED

    def _rates(self, learning_rates: ArrayLike | None, step: int) -> ctypes.Array[ctypes.c_float]:
        rates = self.spec.learning_rates_at(step) if learning_rates is None else np.ravel(learning_rates)
        if len(rates) != len(self.spec.slices):
            raise DimensionMismatch(
                f"learning_rates has {len(rates)} numbers, expected {len(self.spec.slices)}, one per slice of table "
                f"{self.spec.name!r}"
            )
        return (ctypes.c_float * len(rates))(*map(float, rates))

    def _stamp(self, time_s: int, step: int) -> int:
        """Return the stamp of an update; 0 in a table without stamps."""
        if self._clock_s:
            self._clock_s = max(self._clock_s, min(time_s, self._clock_s + _MOST_CLOCK_STEP_S))
        else:
            self._clock_s = time_s
        if self._stamps is None:
            return 0
        stamp, replacements = self._stamps.stamp(time_s if self._has_times else step + 1)
        self._replace_stamps(replacements)
        return stamp

    def _replace_stamps(self, replacements: NDArray[np.int32] | None) -> None:
        if replacements is not None:
            moved = torch.from_numpy(replacements).to(self.device)
            self._program.launch("replace_stamps", 4096, 256, self._rows.argument, self._counters, moved)

    def find_or_insert(self, ids: Tensor) -> Tensor:
        """Return the row of every id, (N, D); ids without a row get one with their first values."""
        ids = self._check_ids(ids)
        self._bring(ids)
        self._reserve(len(ids), needed=ids)
        slots = torch.full((len(ids),), -1, dtype=torch.int32, device=self.device)
        is_read = torch.zeros(len(ids), dtype=torch.uint8, device=self.device)
        out = torch.empty((len(ids), self.dim), device=self.device)
        self._insert(ids, slots, out, is_read)
        self._launch(
            "read_slots",
            len(ids) * 8,
            self._index.argument,
            self._rows.argument,
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
        self._reserve(max(0, rows - self._count_rows()))

    def evict(self, now_s: int | None = None, *, force: bool = False) -> int:
        """Remove expired rows and return how many; the clock is ``max_time_s`` unless given.

        The call waits for the GPU. Rows at the end move into the gaps, and their memory is released.

        Raises:
            ExpiryRefused: It would drop more than 80 % of at least 1,000 rows, and is not forced; nothing was changed.
        """
        if self._stamps is None or not self._has_times:
            return 0
        ids, numbers = self._list_keys()
        if not len(ids):
            return 0
        seconds = torch.from_numpy(self._stamps.seconds).to(self.device)[self._read_stamps(numbers)]
        clock = self._clock_s if now_s is None else now_s
        is_kept = clock - seconds < self._lives_s(ids)
        count = int(is_kept.sum())
        expired = len(ids) - count
        if not force and len(ids) >= _GUARDED_ROWS and expired > _MOST_EXPIRED * len(ids):
            raise ExpiryRefused(
                f"table {self.spec.name!r} would lose {expired} of {len(ids)} rows at clock {clock}; check the event "
                "times, or give force=True"
            )
        if expired:
            self._keep_rows(ids[is_kept], numbers[is_kept], removed=ids[~is_kept])
        if self._tier is not None:
            expired += self._note_removed(self._tier.evict(clock))
        return expired

    def _read_stamps(self, numbers: Tensor) -> Tensor:
        stamps = torch.empty(len(numbers), dtype=torch.int32, device=self.device)
        self._launch("read_stamps", len(numbers), self._rows.argument, numbers, _u32(len(numbers)), stamps)
        return stamps.long()

    def _note_removed(self, ids: NDArray[np.int64]) -> int:
        if self._rows.has_touched:
            self._changed.append(torch.from_numpy(ids).to(self.device))
        return len(ids)

    def delete(self, ids: Tensor) -> int:
        """Remove the rows of the ids and return how many there were. The call waits for the GPU, as ``evict``."""
        present, numbers = self._list_keys()
        is_kept = ~torch.isin(present, self._check_ids(ids))
        count = len(present) - int(is_kept.sum())
        if count:
            self._keep_rows(present[is_kept], numbers[is_kept], removed=present[~is_kept])
        if self._tier is not None:
            count += self._note_removed(self._tier.remove(ids.cpu().numpy()))
        return count

    def drain_touched(self) -> Tensor:
        """Return the sorted ids changed or removed since the last call, on the device.

        The first call returns all present ids and starts the marks of rows. The call waits for the GPU.
        """
        if not self._rows.has_touched:
            ids, _ = self._list_keys()
            self._rows.add_touched()
            if self._tier is not None:
                ids = torch.cat([ids, torch.from_numpy(self._tier.ids()).to(self.device)])
            return ids.sort().values
        changed = torch.cat([*self._changed, self._list_touched()])
        self._changed.clear()
        self._rows.clear_touched()
        distinct: Tensor = torch.unique(changed)
        return distinct

    def _list_touched(self) -> Tensor:
        """Return the ids of rows with a mark of a change."""
        cursor = torch.zeros(1, dtype=torch.int32, device=self.device)
        ids = None
        for _ in range(2):  # count, then list
            place = ctypes.c_void_p(0) if ids is None else ids
            index = self._index.argument
            blocks = min(index.places, 4096)
            self._program.launch(
                "list_touched", blocks, 1024, index, self._rows.argument, self._counters, place, cursor
            )
            if ids is None:
                ids = torch.empty(int(cursor), dtype=torch.int64, device=self.device)
                cursor.zero_()
        assert ids is not None
        return ids

    def _lives_s(self, ids: Tensor) -> Tensor:
        """Return the seconds after its last update that the row of an id expires."""
        days = torch.full((_SLOTS_OF_IDS,), self.spec.expire_days, dtype=torch.int64)
        for slot, special in self.spec.slot_expire_days.items():
            days[slot] = special
        return days.to(self.device)[(ids >> 48) & (_SLOTS_OF_IDS - 1)] * 86400

    def _keep_rows(self, ids: Tensor, numbers: Tensor, *, removed: Tensor) -> None:
        """Make these the only rows: close the gaps, and build the index again."""
        if self._rows.has_touched:
            self._changed += [self._list_touched(), removed]
        count = len(ids)
        is_used = torch.zeros(count, dtype=torch.bool, device=self.device)
        is_used[numbers[numbers < count].long()] = True
        gaps = (~is_used).nonzero().flatten().int()
        late = (numbers >= count).nonzero().flatten()
        for first in range(0, len(late), _COPIED_ROWS):
            movers, targets = late[first : first + _COPIED_ROWS], gaps[first : first + _COPIED_ROWS]
            flat = torch.empty((len(movers), self._stride), device=self.device)
            stamps = torch.empty(len(movers), dtype=torch.int32, device=self.device)
            self._copy_rows(numbers[movers].contiguous(), flat, stamps, to_rows=False)
            self._copy_rows(targets.contiguous(), flat, stamps, to_rows=True)
            numbers[movers] = targets
        special = numbers[ids == -(1 << 63)]
        self._index.clear()
        self._program.launch("put_keys", 4096, 256, self._index.argument, ids, numbers, _u32(count))
        state = [count, int(special[0]) if len(special) else -1, 0, 0]
        self._counters.copy_(torch.tensor(state, dtype=torch.int32))
        self._set_known(count)
        self._rows.shrink(count)
        if self._rows.has_touched:
            self._rows.clear_touched()
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
            self._rows.argument,
            self._counters,
            ids,
            _u32(len(ids)),
            slots,
            self._first,
            ctypes.c_void_p(0) if out is None else out,
            ctypes.c_void_p(0) if is_read is None else is_read,
        )

    def _number_bags(self, offsets: Tensor, count: int) -> Tensor:
        bags = torch.empty(count, dtype=torch.int32, device=self.device)
        self._launch("number_bags", (len(offsets) - 1) * 8, offsets, _u32(len(offsets) - 1), bags)
        return bags

    # --- rows in and out ---

    def to_host(self) -> Table:
        """Return a table in host memory with the same rows, state, times and admission counts."""
        all_ids, numbers = self._list_keys()
        host = Table(replace(self.spec, max_bytes=None))  # the budget is of the GPU
        for first in range(0, len(all_ids), _COPIED_ROWS):
            last = first + _COPIED_ROWS
            host.import_entries(all_ids[first:last].cpu().numpy(), *self._read_rows(numbers[first:last]))
        if self._tier is not None:
            for entries in self._tier.export_entries(_COPIED_ROWS):
                host.import_entries(*entries)
        self.copy_admission_to(host)
        return host

    def copy_admission_to(self, host: Table) -> None:
        """Replace the admission counts of a table in host memory by those of this one."""
        if self._doorkeeper is not None:
            self._doorkeeper.copy_counts_to(host)

    def copy_changes_to(self, host: Table) -> int:
        """Bring a table in host memory up to date, and return the number of changed ids.

        The first call copies all rows; later calls copy the rows that changed since. Changes of ``host`` by other
        callers are lost where the ids are the same. The changes count as touched in ``host``.
        """
        changed = self.drain_touched()
        for first in range(0, len(changed), _COPIED_ROWS):
            ids = changed[first : first + _COPIED_ROWS]
            numbers = self._find(ids).rows
            is_present = numbers != -1
            kept = ids[is_present].cpu().numpy()
            host.import_entries(kept, *self._read_rows(numbers[is_present]))
            absent = ids[~is_present].cpu().numpy()
            if self._tier is not None:
                entries = self._tier.read(absent)
                host.import_entries(*entries)
                absent = np.setdiff1d(absent, entries[0])
            host.delete(absent)
        return len(changed)

    def _read_rows(self, numbers: Tensor) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        """Return times and rows in the form of the host. Rows without times get the newest time of the table."""
        flat = torch.empty((len(numbers), self._stride), device=self.device)
        stamps = torch.empty(len(numbers), dtype=torch.int32, device=self.device)
        self._copy_rows(numbers.contiguous(), flat, stamps, to_rows=False)
        rows = np.ascontiguousarray(flat.cpu().numpy()[:, self._layout.host_words()])
        if self._stamps is None or not self._has_times:
            return np.full(len(numbers), self._clock_s, np.uint32), rows
        return self._stamps.seconds[stamps.cpu().numpy()].astype(np.uint32), rows

    def _list_keys(self) -> tuple[Tensor, Tensor]:
        """Return all ids and the numbers of their rows."""
        count = self._count_rows()
        ids = torch.empty(count, dtype=torch.int64, device=self.device)
        numbers = torch.empty(count, dtype=torch.int32, device=self.device)
        cursor = torch.zeros(1, dtype=torch.int32, device=self.device)
        index = self._index.argument
        self._program.launch("list_keys", min(index.places, 4096), 1024, index, self._counters, ids, numbers, cursor)
        return ids, numbers

    def add_rows_of(self, host: Table) -> None:
        """Store all rows of a table in host memory, with state and times; rows of equal ids are replaced.

        The admission counts become those of ``host``.
        """
        for entries in host.export_entries(_COPIED_ROWS):
            self._add_entries(entries)
        self._clock_s = max(self._clock_s, host.max_time_s)
        if self._doorkeeper is not None:
            self._doorkeeper.take_counts_of(host)

    def _add_entries(self, entries: Entries, *, needed: Tensor | None = None) -> None:
        """Store whole rows; ``needed`` ids stay on the GPU meanwhile."""
        ids, times, rows = entries
        flat = np.zeros((len(ids), self._stride), np.float32)
        flat[:, self._layout.host_words()] = rows
        stamps = np.zeros(len(ids), np.int32)
        if self._stamps is not None and self._has_times:
            stamps, replacements = self._stamps.stamp_all(times)
            self._replace_stamps(replacements)
        elif self._stamps is not None:
            stamps += len(self._stamps.seconds) - 1
        keys = torch.from_numpy(ids).to(self.device)
        self._reserve(len(ids), needed=needed)
        slots = self._find(keys).slots
        self._insert(keys, slots)
        marks = torch.from_numpy(stamps).to(self.device)
        self._copy_rows(self._rows_of(slots), torch.from_numpy(flat).to(self.device), marks, to_rows=True)
        self._note_rows(len(ids))

    def _copy_rows(self, numbers: Tensor, flat: Tensor, stamps: Tensor, *, to_rows: bool) -> None:
        rows = self._rows.argument
        self._program.launch(
            "copy_rows", 2048, 256, rows, numbers, _u32(len(numbers)), flat, stamps, ctypes.c_int(to_rows)
        )

    # --- sizes ---

    def __len__(self) -> int:
        return self._count_rows() + self.rows_in_host_memory

    @property
    def rows_in_host_memory(self) -> int:
        """Rows that have no room on the GPU."""
        return 0 if self._tier is None else len(self._tier)

    def _count_rows(self) -> int:
        """Return the number of rows on the GPU, after waiting for it."""
        torch.cuda.current_stream(self.device).synchronize()
        counters = self._counters.cpu().numpy()
        self._check_lost(int(counters[2]))
        return int(counters[0])

    @property
    def max_time_s(self) -> int:
        """The event clock. An update moves it by at most a day, as in host memory."""
        return self._clock_s

    @property
    def memory_bytes(self) -> int:
        """Bytes of rows, their marks, and the index on the device."""
        return self._rows.memory_bytes + self._index.memory_bytes

    @property
    def slots(self) -> int:
        """Slots of the index."""
        return self._index.shape.all_pages * SLOTS

    @property
    def load(self) -> float:
        """Keys per slot of the index."""
        return self._count_rows() / self.slots

    # --- memory ---

    def _reserve(self, new: int, *, needed: Tensor | None = None) -> None:
        """Grow index and rows so that ``new`` more ids fit; rows other than those of ``needed`` ids may move out."""
        if torch.cuda.is_current_stream_capturing():
            return  # a graph replays into the memory that is there
        if self._is_copying and self._copy_event.query():  # type: ignore[no-untyped-call]
            self._check_lost(int(self._copied[2]))
            self._known_rows = int(self._copied[0])
            self._rows_since = self._rows_since_copy
            self._rows_since_copy = 0
            self._is_copying = False
        upper = self._upper_rows(new)
        if not self._fits(upper) and self._tier is not None:
            self._move_cold(self._tier, new, needed)
            upper = self._upper_rows(new)
        if not self._fits(upper):
            added = self._rows.bytes_for(upper) + self._index.bytes_for(upper)
            raise CapacityExceeded(
                f"table {self.spec.name!r} holds {self.memory_bytes} bytes on {self.device}; {new} more ids may need "
                f"{added} more, and max_bytes is {self.spec.max_bytes}; raise max_bytes, or give host_bytes"
            )
        self._index.grow(upper, is_empty=self._is_empty)
        self._is_empty = False
        self._rows.grow(upper)

    def _upper_rows(self, new: int) -> int:
        """Return how many rows there may be with ``new`` more."""
        return self._known_rows + self._rows_since + self._rows_since_copy + new

    def _fits(self, rows: int) -> bool:
        added = self._rows.bytes_for(rows) + self._index.bytes_for(rows)
        return self.spec.max_bytes is None or self.memory_bytes + added <= self.spec.max_bytes

    def _move_cold(self, tier: HostTier, new: int, needed: Tensor | None) -> None:
        """Move rows to host memory so that ``new`` ids fit the memory that the table has, with an eighth to spare."""
        ids, numbers = self._list_keys()
        self._set_known(len(ids))
        room = min(self._rows.capacity, self._index.shape.rows) * 7 // 8 - new
        if len(ids) <= room:
            return
        is_needed = torch.zeros_like(ids, dtype=torch.bool) if needed is None else torch.isin(ids, needed)
        is_cold = choose_cold(self._read_stamps(numbers), is_needed, len(ids) - max(0, room))
        cold, places = ids[is_cold], numbers[is_cold]
        try:
            for first in range(0, len(cold), _COPIED_ROWS):
                last = first + _COPIED_ROWS
                tier.put((cold[first:last].cpu().numpy(), *self._read_rows(places[first:last])))
        except BaseException:
            tier.remove(cold.cpu().numpy())  # the rows are on the GPU
            raise
        if len(cold):
            self._keep_rows(ids[~is_cold], numbers[~is_cold], removed=cold[:0])

    def _bring(self, ids: Tensor) -> None:
        """Move rows of these ids back from host memory."""
        if self._tier is None or not len(self._tier):
            return
        if torch.cuda.is_current_stream_capturing():
            raise ConfigError(
                f"table {self.spec.name!r} has {len(self._tier)} rows in host memory, expected none in a CUDA graph; "
                "raise max_bytes, or train without a graph"
            )
        absent = torch.unique(ids[self._find(ids).rows == -1]).cpu().numpy()
        entries = self._tier.read(absent)
        if len(entries[0]):
            self._add_entries(entries, needed=ids)
            self._tier.remove(entries[0])

    def _set_known(self, rows: int) -> None:
        """Note the exact number of rows on the GPU."""
        if self._is_copying:
            self._copy_event.synchronize()
        self._is_copying = False
        self._known_rows, self._rows_since, self._rows_since_copy = rows, 0, 0

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

    def _check_ids(self, ids: Tensor) -> Tensor:
        if ids.dtype not in (torch.int64, torch.int32) or ids.dim() != 1:
            raise ConfigError(f"ids are of {ids.dtype} and shape {tuple(ids.shape)}, expected flat int64; use .long()")
        return ids.to(self.device, torch.int64).contiguous()


def _u32(number: int) -> ctypes.c_uint32:
    return ctypes.c_uint32(number)


def _group_threads(lanes: int) -> tuple[int, int]:
    """Return the threads of a block and the groups in it, for groups of ``lanes``."""
    groups = max(1, 256 // lanes)
    return groups * lanes, groups

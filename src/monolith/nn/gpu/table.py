"""``GpuTable``: a collisionless table in the memory of a GPU, with the calls, values and updates of ``Table``.

Lookups and updates queue kernels on the current stream of torch and return without waiting, unless the table needs
memory. Arguments and results are tensors on the device. One thread at a time may call a table.

Calls without a kernel (``assign``, ``reinitialize`` and their kind) copy the rows of their ids to host memory, let the
engine change them there, and copy them back. Such calls wait for the GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from monolith.core.errors import CapacityExceeded, ConfigError, DimensionMismatch, ExpiryRefused
from monolith.embedding import NoFilter, Table, TableSpec
from monolith.embedding.arguments import Mode, check_time
from monolith.embedding.entry import Entry
from monolith.embedding.expiry import has_expiry
from monolith.nn.gpu.admission import Doorkeeper
from monolith.nn.gpu.device import GpuDevice, open_device
from monolith.nn.gpu.host_tier import Entries, HostTier, choose_cold
from monolith.nn.gpu.keyed_rows import COPIED_ROWS, DistinctPlaces, Found, KeyedRows, PooledGradients
from monolith.nn.gpu.row_times import RowTimes
from monolith.nn.gpu.source import check_spec

__all__ = ["Found", "GpuTable", "GpuTableStats", "TableCall", "read_together", "update_together"]

Result = TypeVar("Result")
_Array: TypeAlias = NDArray[Any]

_SLOTS_OF_IDS = 1 << 15
_SKIPPED = -3
"""SKIPPED of the kernels, as int32."""
_GUARDED_ROWS = 1000
_MOST_EXPIRED = 0.8
"""Share of the rows that an eviction may drop without ``force``; the same as on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTableStats:
    """Counters of a table; see ``Table.stats``."""

    nan_rows_skipped: int
    ids_filtered: int
    rows_evicted: int
    """Expired rows."""
    rows_evicted_full: int
    """Rows that left because the table was full."""


class GpuTable:
    """A table on a GPU.

    Rows keep their times where they can expire. ``drain_touched`` starts to keep which rows changed. A table with an
    admission filter asks the filter in host memory, and one with ``nan_gradients="error"`` checks each gradient first,
    so updates of either wait for the GPU.

    At ``max_bytes`` of the spec, rows with the oldest updates leave if ``when_full`` is "evict_oldest", or move to host
    memory if ``host_bytes`` gives room there. A row moves back when a step reads it, and such a step waits for the GPU.
    Otherwise the table raises.

    Args:
        spec: The table.
        device: The GPU.
        host_bytes: Host memory for rows that have no room on the GPU; None = no rows there.

    Raises:
        ConfigError: There is no GPU, or the spec needs a part that GPU tables do not have.
    """

    def __init__(
        self, spec: TableSpec, device: str | torch.device | GpuDevice = "cuda", *, host_bytes: int | None = None
    ) -> None:
        check_spec(spec)
        if host_bytes is not None and spec.max_bytes is None:
            raise ConfigError(f"host_bytes is {host_bytes} and max_bytes of the spec is None; give a budget of the GPU")
        if host_bytes is not None and spec.when_full == "evict_oldest":
            raise ConfigError(
                f"host_bytes is {host_bytes} and when_full is 'evict_oldest', expected one of both; rows of a full "
                "table either move to host memory or leave"
            )
        self.spec = spec
        self.dim = spec.dim
        self._gpu = open_device(device)
        self.device = self._gpu.place
        self._host_bytes = host_bytes
        self._changed: list[Tensor] = []
        """Ids of changes that the marks of rows do not have: those before a packing, and removed ids."""
        self._nan_rows = 0
        self._rows_evicted = 0
        self._rows_evicted_full = 0
        self.step = 0
        self._make_empty()

    def _make_empty(self) -> None:
        spec = self.spec
        self._tier = None if self._host_bytes is None else HostTier(spec, self._host_bytes)
        self._doorkeeper = None if isinstance(spec.admission, NoFilter) else Doorkeeper(spec)
        can_leave = self._tier is not None or self._evicts_oldest
        self._times = RowTimes(has_times=has_expiry(spec), has_order=can_leave)
        self._rows = KeyedRows(spec, self._gpu, has_stamps=self._times.has_stamps)

    @property
    def _evicts_oldest(self) -> bool:
        return self.spec.max_bytes is not None and self.spec.when_full == "evict_oldest"

    # --- reading ---

    def lookup(self, ids: Tensor) -> Tensor:
        """Return the row of every id, (N, D); absent ids follow ``on_miss`` of the spec."""
        ids = self._check_ids(ids)
        self._bring(ids)
        return self._rows.lookup(ids)

    def prepare_read(self, ids: Tensor, rows: Tensor) -> TableCall:
        """Return this table's part of ``read_together``.

        Args:
            ids: (U,) int64, distinct, on the device.
            rows: (U, D); overwritten.
        """
        self._bring(ids)
        slots = torch.empty(ids.shape[0], dtype=torch.int32, device=self.device)
        places = DistinctPlaces(ids, slots, self._rows.version)
        return TableCall(self._rows, places, rows, self._rows.make_call(places, rows))

    def lookup_pooled(self, ids: Tensor, offsets: Tensor, mode: Mode = "sum") -> Tensor:
        """Pool ragged bags: (B, D) for "sum" and "mean", (B, n, D) for ("first", n); offsets are B + 1 numbers."""
        if isinstance(mode, tuple):
            ids, skipped = self._pick_first(self._check_ids(ids), self._check_ids(offsets), mode[1])
            return self.pool(self.find(ids, skipped), None).reshape(-1, mode[1], self.dim)
        return self.pool(self.find(ids), offsets, mode)

    def find(self, ids: Tensor, skipped: Tensor | None = None) -> Found:
        """Return the places of the ids, for ``pool`` and ``apply``; ``skipped`` ids read as zeros and get no row."""
        ids = self._check_ids(ids)
        self._bring(ids)
        return self._rows.find(ids, skipped)

    def pool(self, found: Found, offsets: Tensor | None, mode: Mode = "sum") -> Tensor:
        """Return one row per bag, or one per id without offsets."""
        bounds = None if offsets is None else self._check_ids(offsets)
        return self._rows.pool(found, bounds, "mean" if mode == "mean" else "sum")

    def contains(self, ids: Tensor) -> Tensor:
        """Return for every id whether it has a row, (N,) bool."""
        return self.find(ids).rows != -1

    def entry(self, fid: int) -> Entry | None:
        """Return everything kept for one id, or None when it has no row."""
        host = Table(self._host_spec)
        host.import_entries(*self._read_entries(self._gpu.upload(np.array([fid], np.int64))))
        return host.entry(fid)

    def items(self, batch_size: int = 65536) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over (ids, rows) in batches of at most ``batch_size``, of the rows at the first call."""
        ids = self._list_ids()
        for first in range(0, len(ids), batch_size):
            some = ids[first : first + batch_size]
            yield some, self.lookup(some)

    def _pick_first(self, ids: Tensor, offsets: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return ``count`` places per bag with its first ids, flat, and which places are empty."""
        places = offsets[:-1, None] + torch.arange(count, device=self.device)
        is_empty = (places >= offsets[1:, None]).flatten()
        if not len(ids):
            return ids.new_zeros(len(is_empty)), is_empty
        return ids[places.flatten().clamp(max=len(ids) - 1)], is_empty

    # --- gradients ---

    def apply_gradients(
        self,
        ids: Tensor,
        grads: Tensor,
        *,
        learning_rates: ArrayLike | None = None,
        time_s: int = 0,
        step: int | None = None,
        dedup: bool = True,
        values_at_gradient: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        """Take one optimizer step per distinct id; the gradients of equal ids are summed. See ``apply``.

        Args:
            ids: (N,).
            grads: (N, D).
            learning_rates: One rate per slice; None = those of the spec.
            time_s: Event time of the rows.
            step: Number of the step for rates and rules; None = the updates so far.
            dedup: False takes one step per occurrence instead of one per id. The engine computes it; see the module.
            values_at_gradient: (N, D) values for DelayCompensated, by the engine too; None = no delay.
            counts: (N,) sightings behind each id, for admission; None = one each.
        """
        if dedup and values_at_gradient is None:
            self.apply(
                self.find(ids), None, grads, learning_rates=learning_rates, time_s=time_s, step=step, counts=counts
            )
            return
        number = self.step if step is None else step
        keys, rows = _to_numpy(self._check_ids(ids)), _to_numpy(grads)
        values = None if values_at_gradient is None else _to_numpy(values_at_gradient)
        sightings = None if counts is None else _to_numpy(counts)
        self._change_in_engine(
            keys,
            lambda table: table.apply_gradients(
                keys, rows, learning_rates, time_s, number, dedup, values_at_gradient=values, counts=sightings
            ),
        )
        self.step += 1

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
        """Take one optimizer step per distinct id from the gradients of ``lookup_pooled``'s result, in its shape."""
        skipped: Tensor | None = None
        bounds: Tensor | None = offsets
        if isinstance(mode, tuple):
            expected = (len(offsets) - 1, mode[1], self.dim)
            if tuple(grads.shape) != expected:
                raise DimensionMismatch(self._describe_shape(grads, expected))
            ids, skipped = self._pick_first(self._check_ids(ids), self._check_ids(offsets), mode[1])
            bounds, grads = None, grads.reshape(-1, self.dim)
        found = self.find(ids, skipped)
        self.apply(found, bounds, grads, mode, learning_rates=learning_rates, time_s=time_s, step=step)

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
        ``find`` are looked for again. ``nan_gradients`` of the spec decides about gradients with NaN or Inf.

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
        rates = self._rates(learning_rates, number)
        gradients = self._check_gradients(found, offsets, grads, mode)
        if not len(found.ids):
            return
        self._reserve(len(found.ids), needed=found.ids)
        if found.version != self._rows.version:
            found = self.find(found.ids, found.skipped)
        slots = self._rows.begin_step(found.slots)
        if self._doorkeeper is not None:
            self._refuse_new(self._doorkeeper, found.ids, slots, counts)
        self._rows.insert(found.ids, slots)
        self._rows.update(slots, gradients, rates, stamp=self._stamp(check_time(time_s)), step=number)
        self.finish_update(len(found.ids))

    def prepare_update(
        self, places: DistinctPlaces, grads: Tensor, *, time_s: int = 0, step: int, counts: Tensor | None = None
    ) -> TableCall:
        """Return this table's part of ``update_together``, at the learning rates of the spec; see ``apply``.

        Args:
            places: Distinct ids, as ``prepare_read`` found them; each may be updated once.
            grads: (U, D). Rows that are padded to a multiple of four numbers by zeros are not copied.
            time_s: Event time of the rows.
            step: Number of the step for rates and rules.
            counts: Sightings behind each id, for admission; None = one each.
        """
        rates = self._rates(None, step)
        sums = self._pad_gradients(grads, places.ids.shape[0])
        self._reserve(places.ids.shape[0], needed=places.ids)
        if places.version != self._rows.version:
            places = DistinctPlaces(places.ids, self._rows.find(places.ids).slots, self._rows.version)
        if self._doorkeeper is not None:
            self._refuse_new(self._doorkeeper, places.ids, places.slots, counts)
        call = self._rows.make_call(places, sums, rates=rates, stamp=self._stamp(check_time(time_s)))
        return TableCall(self._rows, places, sums, call)

    def finish_update(self, ids: int) -> None:
        """Count an update of some ids, after its kernels are queued."""
        self.step += 1
        self._rows.note(ids)

    @property
    def has_admission(self) -> bool:
        """Whether a filter decides which ids get a row."""
        return self._doorkeeper is not None

    def _pad_gradients(self, grads: Tensor, count: int) -> Tensor:
        """Return gradients of which each row is padded to a multiple of four numbers."""
        if tuple(grads.shape) != (count, self.dim):
            raise DimensionMismatch(self._describe_shape(grads, (count, self.dim)))
        if self.spec.nan_gradients == "error":
            self._check_finite(grads)
        padded = self._rows.layout.padded
        if grads.stride() == (padded, 1) and grads.dtype == torch.float32:
            return grads
        missing = padded - self.dim
        return torch.nn.functional.pad(grads.detach().to(self.device, torch.float32), (0, missing)).contiguous()

    def _check_gradients(self, found: Found, offsets: Tensor | None, grads: Tensor, mode: Mode) -> PooledGradients:
        bounds = None if offsets is None else self._check_ids(offsets)
        expected = (len(found.ids) if bounds is None else len(bounds) - 1, self.dim)
        if tuple(grads.shape) != expected:
            raise DimensionMismatch(self._describe_shape(grads, expected))
        grads = grads.detach().to(self.device, torch.float32).contiguous()
        if self.spec.nan_gradients == "error":
            self._check_finite(grads)
        return PooledGradients(grads, bounds, "mean" if mode == "mean" else "sum")

    def _describe_shape(self, grads: Tensor, expected: tuple[int, ...]) -> str:
        return f"gradients of table {self.spec.name!r} have shape {tuple(grads.shape)}, expected {expected}"

    def _check_finite(self, grads: Tensor) -> None:
        """Raise where a gradient is not finite. The call waits for the GPU."""
        if self._gpu.is_capturing:
            raise ConfigError(
                f"nan_gradients of table {self.spec.name!r} is 'error', expected 'skip' or 'pass' in a CUDA graph: the "
                "check waits for the GPU"
            )
        if bool(torch.isfinite(grads).all()):
            return
        row, column = (~torch.isfinite(grads)).nonzero()[0].tolist()
        raise ConfigError(
            f"table {self.spec.name!r}: gradient row {row}, column {column} is {grads[row, column].item()}; nothing "
            'was applied (nan_gradients="skip" leaves such rows out instead)'
        )

    def _refuse_new(self, doorkeeper: Doorkeeper, ids: Tensor, slots: Tensor, counts: Tensor | None) -> None:
        """Skip the ids without a row that the admission filter refuses. The call waits for the GPU."""
        absent = (slots == -1).nonzero().flatten()
        if not len(absent):
            return
        sightings = None if counts is None else counts.to(self.device)[absent].cpu().numpy()
        is_admitted = doorkeeper.admit(ids[absent].cpu().numpy(), sightings)
        slots[absent[torch.from_numpy(~is_admitted).to(self.device)]] = _SKIPPED

    def _rates(self, learning_rates: ArrayLike | None, step: int) -> Sequence[float]:
        rates = self.spec.learning_rates_at(step) if learning_rates is None else np.ravel(learning_rates)
        if len(rates) != len(self.spec.slices):
            raise DimensionMismatch(
                f"learning_rates has {len(rates)} numbers, expected {len(self.spec.slices)}, one per slice of table "
                f"{self.spec.name!r}"
            )
        return [float(each) for each in rates]

    def _stamp(self, time_s: int) -> int:
        """Return the stamp of an update; 0 in a table without stamps."""
        stamp, replacements = self._times.stamp_update(time_s, self.step)
        self._replace_stamps(replacements)
        return stamp

    def _replace_stamps(self, replacements: NDArray[np.int32] | None) -> None:
        if replacements is not None:
            self._rows.replace_stamps(self._gpu.upload(replacements))

    # --- values ---

    def assign(self, ids: Tensor, rows: Tensor, time_s: int = 0) -> None:
        """Set the values of every id, making rows as needed; optimizer state stays. Of duplicates the last wins."""
        keys, values = _to_numpy(self._check_ids(ids)), _to_numpy(rows)
        self._change_in_engine(keys, lambda table: table.assign(keys, values, time_s))

    def assign_add(self, ids: Tensor, rows: Tensor, time_s: int = 0) -> None:
        """Add to the values of every id; a new row starts from its initial values. Duplicates all add."""
        keys, values = _to_numpy(self._check_ids(ids)), _to_numpy(rows)
        self._change_in_engine(keys, lambda table: table.assign_add(keys, values, time_s))

    def reinitialize(self, ids: Tensor) -> Tensor:
        """Give every id its initial values and fresh optimizer state; return per id 1 = existed, 0 = new."""
        keys = _to_numpy(self._check_ids(ids))
        return torch.from_numpy(self._change_in_engine(keys, lambda table: table.reinitialize(keys)))

    def find_or_insert(self, ids: Tensor) -> Tensor:
        """Return the row of every id, (N, D); ids without a row get one with their first values."""
        ids = self._check_ids(ids)
        self._bring(ids)
        self._reserve(len(ids), needed=ids)
        out = self._rows.insert_and_read(ids)
        self._rows.note(len(ids))
        return out

    def _change_in_engine(self, ids: _Array, change: Callable[[Table], Result]) -> Result:
        """Return the result of a call of ``Table`` on copies of the rows of ``ids``, and store the changed rows."""
        host = Table(self._host_spec)
        blank = np.zeros((1, len(self._rows.layout.host_words())), np.float32)
        host.import_entries(np.zeros(1, np.int64), np.array([self._times.clock_s], np.uint32), blank)  # sets the clock
        host.delete([0])
        host.import_entries(*self._read_entries(self._gpu.upload(np.unique(ids))))
        self.copy_admission_to(host)
        host.drain_touched()
        result = change(host)
        changed = host.drain_touched()
        self._add_entries(host.read_entries(changed), needed=self._gpu.upload(changed))
        self._times.clock_s = host.max_time_s
        self._nan_rows += host.stats.nan_rows_skipped
        if self._doorkeeper is not None:
            self._doorkeeper.take_counts_of(host)
        return result

    # --- removing ---

    def evict(self, now_s: int | None = None, *, force: bool = False) -> int:
        """Remove expired rows and return how many; the clock is ``max_time_s`` unless given.

        The call waits for the GPU. Rows at the end move into the gaps, and their memory is released.

        Raises:
            ExpiryRefused: It would drop more than 80 % of at least 1,000 rows, and is not forced; nothing was changed.
        """
        if not self._times.has_times:
            return 0
        ids, numbers = self._rows.list_keys()
        clock = self._times.clock_s if now_s is None else now_s
        seconds = self._gpu.upload(self._times.stamps.seconds)[self._rows.read_stamps(numbers)]
        is_kept = clock - seconds < self._lives_s(ids)
        expired = len(ids) - int(is_kept.sum())
        if not force and len(ids) >= _GUARDED_ROWS and expired > _MOST_EXPIRED * len(ids):
            raise ExpiryRefused(
                f"table {self.spec.name!r} would lose {expired} of {len(ids)} rows at clock {clock}; check the event "
                "times, or give force=True"
            )
        if expired:
            self._keep_rows(ids, numbers, is_kept, removed=ids[~is_kept])
        if self._tier is not None:
            expired += self._note_removed(self._tier.evict(clock))
        self._rows_evicted += expired
        return expired

    def delete(self, ids: Tensor) -> int:
        """Remove the rows of the ids and return how many there were. The call waits for the GPU, as ``evict``."""
        present, numbers = self._rows.list_keys()
        is_kept = ~torch.isin(present, self._check_ids(ids))
        count = len(present) - int(is_kept.sum())
        if count:
            self._keep_rows(present, numbers, is_kept, removed=present[~is_kept])
        if self._tier is not None:
            count += self._note_removed(self._tier.remove(_to_numpy(ids)))
        return count

    def clear(self) -> None:
        """Remove all rows and release their memory; admission counts and the event clock start over."""
        has_touched, ids = self._rows.has_touched, self._list_ids()
        self._make_empty()
        if has_touched:
            self._rows.add_touched()
            self._changed.append(ids)

    def drain_touched(self) -> Tensor:
        """Return the sorted ids changed or removed since the last call, on the device.

        The first call returns all present ids and starts the marks of rows. The call waits for the GPU.
        """
        if not self._rows.has_touched:
            self._rows.add_touched()
            return self._list_ids().sort().values
        changed = torch.cat([*self._changed, self._rows.list_touched()])
        self._changed.clear()
        self._rows.clear_touched()
        distinct: Tensor = torch.unique(changed)
        return distinct

    def _list_ids(self) -> Tensor:
        ids, _ = self._rows.list_keys()
        return ids if self._tier is None else torch.cat([ids, self._gpu.upload(self._tier.ids())])

    def _note_removed(self, ids: NDArray[np.int64]) -> int:
        if self._rows.has_touched:
            self._changed.append(self._gpu.upload(ids))
        return len(ids)

    def _lives_s(self, ids: Tensor) -> Tensor:
        """Return the seconds after its last update that the row of an id expires."""
        days = torch.full((_SLOTS_OF_IDS,), self.spec.expire_days, dtype=torch.int64)
        for slot, special in self.spec.slot_expire_days.items():
            days[slot] = special
        return days.to(self.device)[(ids >> 48) & (_SLOTS_OF_IDS - 1)] * 86400

    def _keep_rows(self, ids: Tensor, numbers: Tensor, is_kept: Tensor, *, removed: Tensor) -> None:
        """Keep the rows of a mask only, and note the removed ids as changes."""
        if self._rows.has_touched:
            self._changed += [self._rows.list_touched(), removed]
        self._rows.keep_only(ids[is_kept], numbers[is_kept])

    # --- rows in and out ---

    def to_host(self) -> Table:
        """Return a table in host memory with the same rows, state, times and admission counts."""
        host = Table(self._host_spec)
        all_ids, numbers = self._rows.list_keys()
        for first in range(0, len(all_ids), COPIED_ROWS):
            last = first + COPIED_ROWS
            host.import_entries(all_ids[first:last].cpu().numpy(), *self._read_rows(numbers[first:last]))
        if self._tier is not None:
            for entries in self._tier.export_entries(COPIED_ROWS):
                host.import_entries(*entries)
        self.copy_admission_to(host)
        return host

    @property
    def _host_spec(self) -> TableSpec:
        return replace(self.spec, max_bytes=None, when_full="refuse")  # the budget is of the GPU

    def save(self, path: str | PathLike[str], shards: int | None = None) -> None:
        """Write the table to the folder ``path``; see ``Table.save``."""
        self.to_host().save(path, shards)

    def restore(self, path: str | PathLike[str], clear: bool = True, *, shard: tuple[int, int] = (0, 1)) -> None:
        """Load a snapshot of ``save``; see ``Table.restore``."""
        host = Table(self._host_spec) if clear else self.to_host()
        host.restore(path, clear, shard=shard)
        self.clear()
        self.add_rows_of(host)

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
        for first in range(0, len(changed), COPIED_ROWS):
            ids = changed[first : first + COPIED_ROWS]
            entries = self._read_entries(ids)
            host.import_entries(*entries)
            host.delete(np.setdiff1d(ids.cpu().numpy(), entries[0]))
        return len(changed)

    def add_rows_of(self, host: Table) -> None:
        """Store all rows of a table in host memory, with state and times; rows of equal ids are replaced.

        The admission counts become those of ``host``.
        """
        for entries in host.export_entries(COPIED_ROWS):
            self._add_entries(entries)
        self._times.clock_s = max(self._times.clock_s, host.max_time_s)
        if self._doorkeeper is not None:
            self._doorkeeper.take_counts_of(host)

    def _read_entries(self, ids: Tensor) -> Entries:
        """Return the whole rows of those ids that have one, on the GPU or in the tier."""
        numbers = self._rows.find(ids).rows
        is_present = numbers != -1
        keys = ids[is_present].cpu().numpy()
        entries = (keys, *self._read_rows(numbers[is_present]))
        if self._tier is None:
            return entries
        others, times, rows = self._tier.read(ids[~is_present].cpu().numpy())
        return (
            np.concatenate([entries[0], others]),
            np.concatenate([entries[1], times]),
            np.concatenate([entries[2], rows]),
        )

    def _read_rows(self, numbers: Tensor) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        """Return times and rows in the form of the host. Rows without times get the newest time of the table."""
        flat, stamps = self._rows.read(numbers)
        rows = np.ascontiguousarray(flat.cpu().numpy()[:, self._rows.layout.host_words()])
        return self._times.times_of(stamps.cpu().numpy()), rows

    def _add_entries(self, entries: Entries, *, needed: Tensor | None = None) -> None:
        """Store whole rows; ``needed`` ids stay on the GPU meanwhile."""
        ids, times, rows = entries
        if not len(ids):
            return
        flat = np.zeros((len(ids), self._rows.layout.stride), np.float32)
        flat[:, self._rows.layout.host_words()] = rows
        stamps, replacements = self._times.stamp_rows(times)
        self._replace_stamps(replacements)
        keys = self._gpu.upload(ids)
        self._reserve(len(ids), needed=needed)
        slots = self._rows.find(keys).slots
        self._rows.insert(keys, slots)
        self._rows.write(self._rows.rows_of(slots), self._gpu.upload(flat), self._gpu.upload(stamps))
        self._rows.note(len(ids))

    # --- sizes ---

    def __len__(self) -> int:
        return self._rows.counts.read().rows + self.rows_in_host_memory

    @property
    def rows_in_host_memory(self) -> int:
        """Rows that have no room on the GPU."""
        return 0 if self._tier is None else len(self._tier)

    @property
    def max_time_s(self) -> int:
        """The event clock. An update moves it by at most a day, as in host memory."""
        return self._times.clock_s

    @property
    def stats(self) -> GpuTableStats:
        """Counters of skipped, filtered and evicted rows. The call waits for the GPU."""
        return GpuTableStats(
            nan_rows_skipped=self._nan_rows + self._rows.counts.read().skipped,
            ids_filtered=0 if self._doorkeeper is None else self._doorkeeper.ids_filtered,
            rows_evicted=self._rows_evicted,
            rows_evicted_full=self._rows_evicted_full,
        )

    @property
    def memory_bytes(self) -> int:
        """Bytes of rows, their marks, and the index on the device."""
        return self._rows.memory_bytes

    @property
    def slots(self) -> int:
        """Slots of the index."""
        return self._rows.slots

    @property
    def load(self) -> float:
        """Keys per slot of the index."""
        return self._rows.counts.read().rows / self.slots

    # --- memory ---

    def reserve(self, rows: int) -> None:
        """Take memory for ``rows`` rows in all, so that no later call grows the table before it has them."""
        self._reserve(max(0, rows - self._rows.counts.read().rows))

    def _reserve(self, new: int, *, needed: Tensor | None = None) -> None:
        """Grow so that ``new`` more ids fit; rows other than those of ``needed`` ids may leave."""
        if self._gpu.is_capturing:
            return  # a graph replays into the memory that is there
        counts = self._rows.counts
        rows = counts.bound(new)
        if self.spec.max_bytes is None and rows <= self._rows.capacity and not self._rows.has_many_dead:
            return
        if self._rows.has_many_dead:
            ids, numbers = self._rows.list_keys()
            self._keep_rows(ids, numbers, numbers >= 0, removed=ids[:0])
            rows = counts.bound(new)
        if not self._fits(rows) and (self._tier is not None or self._evicts_oldest):
            new = self._make_room(new, needed)
            rows = counts.bound(new)
        if not self._fits(rows):
            raise CapacityExceeded(
                f"table {self.spec.name!r} holds {self.memory_bytes} bytes on {self.device}; {new} more ids may need "
                f"{self._rows.bytes_for(rows)} more, and max_bytes is {self.spec.max_bytes}; raise max_bytes, or give "
                "host_bytes"
            )
        self._rows.grow(rows)

    def _fits(self, rows: int) -> bool:
        return self.spec.max_bytes is None or self.memory_bytes + self._rows.bytes_for(rows) <= self.spec.max_bytes

    def _make_room(self, new: int, needed: Tensor | None) -> int:
        """Let old rows leave if the new ids do not fit, with an eighth to spare; return the number of new ids."""
        ids, numbers = self._rows.list_keys()  # the exact number of rows is known now
        is_needed = torch.zeros_like(ids, dtype=torch.bool)
        if needed is not None:
            distinct = torch.unique(needed)
            is_needed = torch.isin(ids, distinct)
            new = len(distinct) - int(is_needed.sum())
        kept, room = int(is_needed.sum()), self._most_rows()
        if len(ids) + new <= room or kept + new > room:  # fits, or does not fit without the other rows either
            return new
        is_cold = choose_cold(self._rows.read_stamps(numbers), is_needed, len(ids) - max(kept, room * 7 // 8 - new))
        cold = ids[is_cold]
        if self._tier is not None:
            self._move_to_tier(self._tier, cold, numbers[is_cold])
            self._keep_rows(ids, numbers, ~is_cold, removed=cold[:0])
        else:
            self._rows_evicted_full += len(cold)
            self._keep_rows(ids, numbers, ~is_cold, removed=cold)
        return new

    def _most_rows(self) -> int:
        """Return how many rows fit the budget."""
        low, high = 0, 1 << 32
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(middle) else (low, middle)
        return low

    def _move_to_tier(self, tier: HostTier, ids: Tensor, numbers: Tensor) -> None:
        try:
            for first in range(0, len(ids), COPIED_ROWS):
                last = first + COPIED_ROWS
                tier.put((ids[first:last].cpu().numpy(), *self._read_rows(numbers[first:last])))
        except BaseException:
            tier.remove(ids.cpu().numpy())  # the rows are on the GPU
            raise

    def _bring(self, ids: Tensor) -> None:
        """Move rows of these ids back from host memory."""
        if self._tier is None or not len(self._tier):
            return
        if self._gpu.is_capturing:
            raise ConfigError(
                f"table {self.spec.name!r} has {len(self._tier)} rows in host memory, expected none in a CUDA graph; "
                "raise max_bytes, or train without a graph"
            )
        absent = torch.unique(ids[self._rows.find(ids).rows == -1]).cpu().numpy()
        entries = self._tier.read(absent)
        if len(entries[0]):
            self._add_entries(entries, needed=ids)
            self._tier.remove(entries[0])

    def _check_ids(self, ids: Tensor) -> Tensor:
        if ids.dtype not in (torch.int64, torch.int32) or ids.dim() != 1:
            raise ConfigError(f"ids are of {ids.dtype} and shape {tuple(ids.shape)}, expected flat int64; use .long()")
        return ids.to(self.device, torch.int64).contiguous()


@dataclass(frozen=True, slots=True, eq=False)
class TableCall:
    """One table of a call over several tables."""

    rows: KeyedRows
    places: DistinctPlaces
    values: Tensor
    """Rows or gradients; kept until the kernels are queued."""
    argument: ctypes.Structure


def read_together(calls: Iterable[TableCall]) -> None:
    """Read the rows of ``prepare_read``, and fill the slots of their places: one kernel for tables of equal rows."""
    for rows, arguments in _group_calls(calls):
        rows.read_all(arguments)


def update_together(calls: Iterable[TableCall], step: int) -> None:
    """Take one optimizer step per id of ``prepare_update``. Call ``finish_update`` of each table afterwards."""
    for rows, arguments in _group_calls(calls):
        rows.update_all(arguments, step)


def _group_calls(calls: Iterable[TableCall]) -> Iterable[tuple[KeyedRows, list[ctypes.Structure]]]:
    groups: dict[str, tuple[KeyedRows, list[ctypes.Structure]]] = {}
    for call in calls:
        if call.places.ids.shape[0]:
            groups.setdefault(call.rows.text, (call.rows, []))[1].append(call.argument)
    return groups.values()


def _to_numpy(tensor: Tensor) -> _Array:
    return tensor.detach().cpu().numpy()

"""``Table``: the embedding table of users, which checks arguments, allocates results and calls the engine.

``snapshot`` handles files, and ``multi_table`` several tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from os import PathLike
from typing import Literal, get_args, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith import _native
from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.embedding import snapshot
from monolith.embedding.arguments import (
    Mode,
    as_array,
    as_counts,
    as_ids,
    as_mode,
    as_offsets,
    as_rates,
    as_rows,
    check_step,
    check_time,
    check_whole,
)
from monolith.embedding.entry import Entry, SliceState
from monolith.embedding.specs import SliceSpec, TableSpec, WhenFull
from monolith.embedding.store import Ids, Rows

__all__ = ["RowPlan", "Table", "set_threads", "torch_threads"]

RowPlan = _native.RowPlan
_NO_IDS = np.empty(0, np.int64)


def set_threads(threads: int) -> None:
    """Set how many threads a batched call may use; all tables of the process share them."""
    _native.set_threads(check_whole("threads", threads, 1, 1024))


def torch_threads(threads: int) -> AbstractContextManager[bool]:
    """Run the batched calls of this thread on the threads of torch, between its operators.

    Two teams of threads that take turns wait for each other: threads of torch spin for some milliseconds after an
    operator. Calls of other threads are not affected.

    Args:
        threads: ``torch.get_num_threads()``. Nothing changes if it differs from ``set_threads``.
    """
    return _native.TorchThreads(threads)


class Table:
    """A collisionless embedding table: one row per 64-bit id.

    Shapes: N ids, B bags, D columns (all slices side by side). Threads may call all methods concurrently,
    and a reader never sees half a row. Results do not depend on the number of threads, except for the ids that an
    admission filter admits. With ``deterministic=True`` those do not either.

    >>> from monolith.embedding import Sgd
    >>> table = Table(TableSpec("user", [SliceSpec(2, optimizer=Sgd(learning_rate=0.5))]))
    >>> table.apply_gradients([7, 7, -1], [[1, 2], [1, 2], [4, 4]])
    >>> table.lookup([7, -1, 99]).tolist()
    [[-1.0, -2.0], [-2.0, -2.0], [0.0, 0.0]]
    """

    budget: int | None
    """Bytes that the table may take at present; see ``limit_memory``."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.is_serving = False
        self.budget = spec.max_bytes
        self._native = _native.Table(_native_config(spec))

    @classmethod
    def _serving(cls, spec: TableSpec, *, skip_zero_rows: bool) -> Table:
        table = cls.__new__(cls)
        table.spec = spec
        table.is_serving = True
        table.budget = spec.max_bytes
        config = _native_config(spec)
        config.is_serving = True
        config.skip_zero_rows = skip_zero_rows
        table._native = _native.Table(config)
        return table

    def __repr__(self) -> str:
        kind = "serving table" if self.is_serving else "table"
        return f"<{kind} {self.spec.name!r}: {len(self)} rows, dim {self.dim}, {self.memory_bytes} bytes>"

    # --- reading ---

    @overload
    def lookup(self, ids: ArrayLike, *, return_found: Literal[False] = False) -> Rows: ...
    @overload
    def lookup(self, ids: ArrayLike, *, return_found: Literal[True]) -> tuple[Rows, NDArray[np.bool_]]: ...
    def lookup(self, ids: ArrayLike, *, return_found: bool = False) -> Rows | tuple[Rows, NDArray[np.bool_]]:
        """Return the row of every id, (N, D).

        An absent id gives zeros, or its initial values with ``on_miss="initial"``; nothing is inserted. With
        ``return_found`` also (N,) bool: whether the id was present.
        """
        keys = as_ids(self.spec.name, ids)
        rows = np.empty((len(keys), self.dim), np.float32)
        if not return_found:
            self._native.lookup(keys, rows, None)
            return rows
        found = np.empty(len(keys), np.uint8)
        self._native.lookup(keys, rows, found)
        return rows, found.view(np.bool_)

    def lookup_pooled(
        self, ids: ArrayLike, offsets: ArrayLike, mode: Mode = "sum", *, plan: RowPlan | None = None
    ) -> Rows:
        """Pool ragged bags: (B, D) for "sum" and "mean", (B, n, D) for ("first", n).

        Bag b holds ``ids[offsets[b]:offsets[b + 1]]``. An empty bag gives zeros.

        Args:
            ids: (N,).
            offsets: (B + 1,).
            mode: How the rows of a bag become one.
            plan: Filled for ``apply_planned_gradients``. None if no update of these ids follows: that is faster.
        """
        job, rows = self._lookup_job(ids, offsets, mode, plan)
        _native.lookup_all([job])
        return rows

    def contains(self, ids: ArrayLike) -> NDArray[np.bool_]:
        """Return for every id whether it has a row, (N,)."""
        keys = as_ids(self.spec.name, ids)
        found = np.empty(len(keys), np.uint8)
        self._native.contains(keys, found)
        return found.view(np.bool_)

    def entry(self, fid: int) -> Entry | None:
        """Return everything kept for one id, or None when it has no row."""
        ids, times, rows = self._native.raw_rows(as_ids(self.spec.name, [fid]))
        if not len(ids):
            return None
        if self.is_serving:
            return Entry(fid, self.lookup(ids)[0], time_s=int(times[0]))
        return Entry(fid, rows[0, : self.dim].copy(), self._state_of(rows[0]), int(times[0]))

    def explain(self, fid: int) -> str:
        """Return one sentence that explains why an id is present or absent."""
        return self._native.explain(int(as_ids(self.spec.name, [fid])[0]))

    def items(self, batch_size: int = 65536) -> Iterator[tuple[Ids, Rows]]:
        """Iterate over (ids, rows) in batches of at most ``batch_size``.

        Rows present during the whole iteration come exactly once; rows added or removed meanwhile may or may not.
        """
        check_whole("batch_size", batch_size, 1, 2**31)
        waiting = np.empty(0, np.int64)
        for part in range(self._native.parts):
            waiting = np.concatenate([waiting, self._native.part_ids(part)])
            is_last = part == self._native.parts - 1
            while len(waiting) >= batch_size or (is_last and len(waiting)):
                ids, waiting = waiting[:batch_size], waiting[batch_size:]
                rows, found = self.lookup(ids, return_found=True)
                if found.any():
                    yield (ids, rows) if found.all() else (ids[found], rows[found])

    def export_entries(self, batch_size: int = 65536) -> Iterator[tuple[Ids, NDArray[np.uint32], NDArray[np.float32]]]:
        """Iterate over (ids, times, rows with their optimizer state); ``import_entries`` takes them."""
        for ids, _ in self.items(batch_size):
            yield self._native.raw_rows(ids)

    def read_entries(self, ids: Ids) -> tuple[Ids, NDArray[np.uint32], NDArray[np.float32]]:
        """Return (ids, times, rows with their optimizer state) of the ids that have a row, as ``export_entries``."""
        return self._native.raw_rows(ids)

    # --- writing ---

    def import_entries(self, ids: Ids, times: NDArray[np.uint32], rows: NDArray[np.float32]) -> None:
        """Store whole rows of ``export_entries`` of a table with an equal spec, replacing those of equal ids."""
        shapes = (ids.shape, times.shape, rows.shape)
        expected = ((len(ids),), (len(ids),), (len(ids), self._native.row_words))
        if shapes != expected:
            raise DimensionMismatch(
                f"table {self.spec.name!r}: ids, times and rows have the shapes {shapes}, expected {expected}; give "
                "the entries of a table with equal slices"
            )
        self._native.import_rows(ids, times, rows)

    def assign(self, ids: ArrayLike, rows: ArrayLike, time_s: int = 0) -> None:
        """Set the values of every id, making rows as needed; optimizer state stays. Of duplicates the last wins."""
        keys = as_ids(self.spec.name, ids)
        self._native.assign(keys, as_rows(self.spec.name, "rows", rows, len(keys), self.dim), check_time(time_s))

    def assign_add(self, ids: ArrayLike, rows: ArrayLike, time_s: int = 0) -> None:
        """Add to the values of every id; a new row starts from its initial values. Duplicates all add."""
        keys = as_ids(self.spec.name, ids)
        self._native.assign_add(keys, as_rows(self.spec.name, "rows", rows, len(keys), self.dim), check_time(time_s))

    def apply_gradients(
        self,
        ids: ArrayLike,
        grads: ArrayLike,
        learning_rates: ArrayLike | None = None,
        time_s: int = 0,
        step: int = 0,
        dedup: bool = True,
        *,
        values_at_gradient: ArrayLike | None = None,
        counts: ArrayLike | None = None,
    ) -> None:
        """Take one optimizer step per id.

        Args:
            ids: (N,).
            grads: (N, D). The gradients of equal ids are summed in order of occurrence.
            learning_rates: One rate per slice; None = from the spec at ``step``.
            time_s: Event time, kept with each row for expiry.
            step: Number of the batch, for schedules and optimizers that look at it.
            dedup: False takes one step per occurrence instead of one per id.
            values_at_gradient: (N, D) values the gradients were computed at, for DelayCompensated; None = no delay.
            counts: (N,) sightings behind each id, for admission; None = one each.
        """
        job = self._plain_gradient_job(ids, grads, learning_rates, time_s, step, dedup, counts, values_at_gradient)
        _native.apply_all([job])

    def apply_pooled_gradients(
        self,
        ids: ArrayLike,
        offsets: ArrayLike,
        grads: ArrayLike,
        mode: Mode = "sum",
        learning_rates: ArrayLike | None = None,
        time_s: int = 0,
        step: int = 0,
    ) -> None:
        """Take one optimizer step per id from the gradients of ``lookup_pooled``'s result, in its shape."""
        job = self._gradient_job(ids, offsets, grads, mode, learning_rates, time_s, step)
        _native.apply_all([job])

    def apply_planned_gradients(
        self,
        plan: RowPlan,
        grads: ArrayLike,
        learning_rates: ArrayLike | None = None,
        time_s: int = 0,
        step: int = 0,
    ) -> None:
        """Take one optimizer step per id of the lookup that filled the plan, without a second search.

        The result is that of ``apply_pooled_gradients`` with the ids of the lookup. Rows may come and go in between.

        >>> from monolith.embedding import RowPlan, Sgd
        >>> table = Table(TableSpec("user", [SliceSpec(1, optimizer=Sgd(learning_rate=0.5))]))
        >>> plan = RowPlan()
        >>> table.lookup_pooled([7, 8], [0, 2], plan=plan).tolist()
        [[0.0]]
        >>> table.apply_planned_gradients(plan, [[1.0]])
        >>> table.lookup([7, 8]).tolist()
        [[-0.5], [-0.5]]

        Args:
            plan: Plan of a lookup in this table; it may serve several updates.
            grads: Gradient of the lookup's result, in its shape.
            learning_rates: One rate per slice; None = from the spec at ``step``.
            time_s: Event time, kept with each row for expiry.
            step: Number of the batch, for schedules and optimizers that look at it.

        Raises:
            ConfigError: The plan is empty, of another table, or in use; nothing was applied.
        """
        _native.apply_all([self._planned_job(plan, grads, learning_rates, time_s, step)])

    def reinitialize(self, ids: ArrayLike) -> NDArray[np.int8]:
        """Give every id its initial values and fresh optimizer state; return per id 1 = existed, 0 = new."""
        keys = as_ids(self.spec.name, ids)
        existed = np.empty(len(keys), np.int8)
        self._native.reinitialize(keys, existed)
        return existed

    def evict(self, now_s: int | None = None, *, force: bool = False) -> int:
        """Remove expired rows and return how many; the clock is ``max_time_s`` unless given.

        Raises:
            ExpiryRefused: It would drop more than 80 % of at least 1,000 rows, and is not forced; nothing was changed.
        """
        return self._native.evict(self._clock_of(now_s), force)

    def check_expiry(self, now_s: int | None = None) -> None:
        """Raise ``ExpiryRefused`` where ``evict`` would; for callers that evict several tables, all or none."""
        self._native.check_expiry(self._clock_of(now_s))

    def _clock_of(self, now_s: int | None) -> int:
        return self.max_time_s if now_s is None else check_whole("now_s", now_s, 0, 2**40)

    @property
    def force_expiry(self) -> bool:
        """Whether saves and evictions may drop any share of the rows."""
        return self._native.forces_expiry

    @force_expiry.setter
    def force_expiry(self, forces: bool) -> None:
        self._native.forces_expiry = forces

    def delete(self, ids: ArrayLike) -> int:
        """Remove the rows of the ids and return how many there were."""
        return self._native.erase(as_ids(self.spec.name, ids))

    def clear(self) -> None:
        """Remove all rows and give their memory back; admission counts and the event clock start over."""
        self._native.clear()

    def copy_admission_of(self, other: Table) -> None:
        """Replace the admission counts by those of a table with an equal filter and as many slices.

        Raises:
            ConfigError: The filters differ; nothing was changed.
        """
        cut = _native.Cut(other._native)
        state = cut.scales, cut.turn, cut.filter
        del cut  # an error keeps the frame of this call, and that must not keep the table cut
        _native.restore_extras(self._native, 0, *state)  # a time of 0 leaves the clock, and the guard of expiry

    def drain_touched(self) -> Ids:
        """Return the sorted ids changed or removed since the last call.

        The first call returns all present ids and starts the tracking, which costs nothing before.
        """
        return self._native.drain_touched()

    # --- files and forms ---

    def save(self, path: str | PathLike[str], shards: int | None = None) -> None:
        """Write the current table to the folder ``path``, in ``shards`` files; training may continue meanwhile."""
        snapshot.save([self], path, shards)

    def restore(self, path: str | PathLike[str], clear: bool = True, *, shard: tuple[int, int] = (0, 1)) -> None:
        """Load a snapshot of ``save``. A damaged snapshot changes nothing and raises.

        Args:
            path: The snapshot's folder.
            clear: Whether present rows go first; otherwise they stay unless overwritten.
            shard: (index, count): take only ids with ``uint64(id) % count == index``.
        """
        snapshot.restore(self, path, clear=clear, shard=shard)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Table:
        """Make a table from a snapshot, with the spec that was saved."""
        return cls._load_saved(snapshot.only_table(path))

    @classmethod
    def _load_saved(cls, saved: snapshot.SavedTable, *, shard: tuple[int, int] = (0, 1)) -> Table:
        """Make one table of a snapshot whose manifest was read; see ``restore`` for ``shard``."""
        table = cls._like_saved(saved, snapshot.spec_of(saved))
        snapshot.restore_saved(table, saved, clear=False, shard=shard)
        return table

    @classmethod
    def _like_saved(cls, saved: snapshot.SavedTable, spec: TableSpec) -> Table:
        """Make an empty table of the kind that was saved."""
        return cls._serving(spec, skip_zero_rows=saved.skip_zero_rows) if saved.is_serving else cls(spec)

    def to_serving(
        self, *, skip_zero_rows: bool = False, full_precision: bool = False, shard: tuple[int, int] = (0, 1)
    ) -> Table:
        """Return a copy for serving: values compressed slice by slice, no optimizer state.

        Args:
            skip_zero_rows: Leave out rows that are all zero, now and whenever they are assigned later.
            full_precision: Store slices declared as half precision with 4 bytes a number.
            shard: (index, count): copy only ids with ``uint64(id) % count == index``.
        """
        if self.is_serving:
            raise ConfigError(f"table {self.spec.name!r} is a serving table already")
        index, count = shard
        if not 0 <= index < count:
            raise ConfigError(
                f"table {self.spec.name!r}: shard is {shard}, expected (index, count) with index from 0 to count - 1; "
                "(0, 1) copies all rows"
            )
        self.check_expiry()  # an image leaves expired rows out
        serving = self._serving(self.spec.for_serving(full_precision), skip_zero_rows=skip_zero_rows)
        self._native.copy_to(serving._native, index, count)
        return serving

    def emptied(self) -> Table:
        """Return a table of the same kind without rows."""
        if not self.is_serving:
            return Table(self.spec)
        return self._serving(self.spec, skip_zero_rows=self._native.skips_zero_rows)

    # --- sizes and times ---

    def __len__(self) -> int:
        return self._native.size()

    @property
    def dim(self) -> int:
        """Columns of a row, all slices together."""
        return self._native.dim

    @property
    def memory_bytes(self) -> int:
        """Bytes the table takes: rows, index, filter and bookkeeping."""
        return self._native.memory_bytes()

    @property
    def max_time_s(self) -> int:
        """The event clock that expiry compares with; gradients move it to their time, by at most a day per call."""
        return self._native.max_time_s

    def limit_memory(self, max_bytes: int | None, when_full: WhenFull) -> None:
        """Replace the budget and the reaction to it that the spec declares.

        Args:
            max_bytes: Bytes that the table may take from now on; None = unbounded.
            when_full: Reaction of the table at its budget.

        Raises:
            ConfigError: ``max_bytes`` is below 1, or ``when_full`` is unknown. The table is as before.
        """
        if max_bytes is not None:
            max_bytes = check_whole("max_bytes", max_bytes, 1, 2**64 - 1)  # the engine takes 0 for unbounded
        if when_full not in (choices := get_args(WhenFull)):
            raise ConfigError(
                f"when_full is {when_full!r}, expected one of {', '.join(map(repr, choices))}; correct it"
            )
        self.budget = max_bytes
        self._native.set_budget(max_bytes or 0)
        self._native.evicts_when_full = when_full == "evict_oldest"

    @property
    def stats(self) -> _native.TableStats:
        """Counters: nan_rows_skipped, ids_filtered, rows_evicted (expired), rows_evicted_full, touched_dropped."""
        return self._native.stats

    # --- shared with MultiTable ---

    def _lookup_job(
        self, ids: ArrayLike, offsets: ArrayLike | None, mode: Mode, plan: RowPlan | None = None
    ) -> tuple[_native.LookupJob, Rows]:
        keys = as_ids(self.spec.name, ids)
        if offsets is None:
            rows = np.empty((len(keys), self.dim), np.float32)
            return _native.LookupJob(self._native, keys, None, _native.Pooling.none, 0, rows, plan), rows
        pooling, first_n = as_mode(mode)
        bounds = as_offsets(self.spec.name, offsets)
        rows = np.empty(((len(bounds) - 1) * max(1, first_n), self.dim), np.float32)
        job = _native.LookupJob(self._native, keys, bounds, pooling, first_n, rows, plan)
        return job, rows.reshape(-1, first_n, self.dim) if first_n else rows

    def _plain_gradient_job(
        self,
        ids: ArrayLike,
        grads: ArrayLike,
        learning_rates: ArrayLike | None,
        time_s: int,
        step: int,
        dedup: bool,
        counts: ArrayLike | None,
        latest: ArrayLike | None = None,
    ) -> _native.GradientJob:
        name = self.spec.name
        keys = as_ids(name, ids)
        rows = as_rows(name, "gradients", grads, len(keys), self.dim)
        if latest is not None:
            latest = as_rows(name, "values_at_gradient", latest, len(keys), self.dim)
        if counts is not None:
            counts = as_counts(name, counts, len(keys))
        rates = as_rates(self.spec, learning_rates, step)
        none = _native.Pooling.none
        return _native.GradientJob(
            self._native, keys, None, none, 0, rows, rates, counts, latest, check_time(time_s), check_step(step), dedup
        )

    def _gradient_job(
        self,
        ids: ArrayLike,
        offsets: ArrayLike,
        grads: ArrayLike,
        mode: Mode,
        learning_rates: ArrayLike | None,
        time_s: int,
        step: int,
    ) -> _native.GradientJob:
        keys = as_ids(self.spec.name, ids)
        pooling, first_n = as_mode(mode)
        bounds = as_offsets(self.spec.name, offsets)
        rows = self._pooled_gradients(grads, len(bounds) - 1, first_n)
        rates = as_rates(self.spec, learning_rates, step)
        return _native.GradientJob(
            self._native,
            keys,
            bounds,
            pooling,
            first_n,
            rows,
            rates,
            None,
            None,
            check_time(time_s),
            check_step(step),
            True,
        )

    def _planned_job(
        self, plan: RowPlan, grads: ArrayLike, learning_rates: ArrayLike | None, time_s: int, step: int
    ) -> _native.GradientJob:
        rows = self._pooled_gradients(grads, plan.targets // max(1, plan.first_n), plan.first_n)
        return _native.GradientJob(
            self._native,
            _NO_IDS,
            None,
            _native.Pooling.none,
            0,
            rows,
            as_rates(self.spec, learning_rates, step),
            None,
            None,
            check_time(time_s),
            check_step(step),
            True,
            plan,
        )

    def _pooled_gradients(self, grads: ArrayLike, bags: int, first_n: int) -> Rows:
        if first_n:
            shape = np.shape(grads)
            if shape[:-1] != (bags, first_n):
                need = (bags, first_n, self.dim)
                raise DimensionMismatch(f"table {self.spec.name!r}: gradients have shape {shape}, need {need}")
            grads = as_array(grads).reshape(bags * first_n, shape[-1])
        return as_rows(self.spec.name, "gradients", grads, bags * max(1, first_n), self.dim)

    def _state_of(self, row: Rows) -> tuple[SliceState, ...]:
        states = []
        start = self.dim
        for piece, fields in zip(self.spec.slices, self._native.state_fields, strict=True):
            numbers = {}
            for field in fields:
                words = row[start + field.offset : start + field.offset + field.words].copy()
                numbers[field.name] = words.view(np.int64) if field.is_int64 else words
            states.append(SliceState(piece.optimizer.base.kind, numbers))
            start += sum(field.words for field in fields)
        return tuple(states)


_NAN_POLICIES = {
    "error": _native.NanPolicy.refuse,
    "skip": _native.NanPolicy.skip,
    "pass": _native.NanPolicy.apply,
}


def _native_slice(spec: SliceSpec) -> _native.SliceConfig:
    config = _native.SliceConfig()
    config.dim = spec.dim
    config.optimizer = _native.PartConfig(spec.optimizer.base.kind, spec.optimizer.base.settings())
    config.delay_lambda = spec.optimizer.delay_lambda
    config.stochastic_rounding = spec.optimizer.stochastic_rounding
    config.initializer = _native.PartConfig(spec.initializer.kind, spec.initializer.settings())
    config.compressor = _native.PartConfig(spec.compressor.kind, spec.compressor.settings())
    return config


def _native_config(spec: TableSpec) -> _native.TableConfig:
    config = _native.TableConfig()
    config.name = spec.name
    config.slices = [_native_slice(piece) for piece in spec.slices]
    config.expire_days = spec.expire_days
    config.slot_expire_days = dict(spec.slot_expire_days)
    config.admission = _native.PartConfig(spec.admission.kind, spec.admission.settings())
    config.occurrence_threshold = spec.occurrence_threshold
    config.slot_thresholds = dict(spec.slot_thresholds)
    config.miss_is_initial = spec.on_miss == "initial"
    config.max_bytes = spec.max_bytes or 0
    config.evicts_when_full = spec.when_full == "evict_oldest"
    config.seed = spec.seed
    config.is_deterministic = spec.deterministic
    config.nan_policy = _NAN_POLICIES[spec.nan_gradients]
    config.touched_capacity = spec.touched_capacity or 0
    return config

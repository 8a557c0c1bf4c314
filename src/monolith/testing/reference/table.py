"""``ReferenceTable``: a table as a dict, the public fake of ``monolith.embedding.Table`` and its reference in tests.

Same methods, same results (float32 arithmetic in the same order), no engine. One row at a time in Python, so it suits
tests with thousands of ids, not millions. It is simpler than the engine in three ways. The sliding
filter counts exactly and forgets nothing; there is no stochastic rounding; ``snapshot_state`` and ``restore_state``
replace ``save`` and ``restore``, without files.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, overload

import numpy as np
from numpy import float32 as f32
from numpy.typing import ArrayLike, NDArray

from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.embedding.entry import Entry, SliceState
from monolith.embedding.specs import TableSpec
from monolith.testing.reference.bags import Mode, gradients_of_occurrences, pool_rows
from monolith.testing.reference.filter import ReferenceFilter
from monolith.testing.reference.optimizers import State, initial_state, take_step
from monolith.testing.reference.values import gradient_of_stored, initial_values, read_values, scale_at

__all__ = ["ReferenceTable", "TableState"]

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]

_DAY_S = 86400
_MAX_TIME_S = (1 << 32) - 1


@dataclass(slots=True)
class _Row:
    values: Rows
    states: list[State]
    time_s: int


@dataclass(frozen=True, slots=True)
class TableState:
    """State of a table in a snapshot."""

    rows: dict[int, _Row]
    max_time_s: int
    scales: list[float]
    admission: ReferenceFilter


@dataclass(slots=True)
class ReferenceStats:
    """Counters since the table was made."""

    nan_rows_skipped: int = 0
    ids_filtered: int = 0
    rows_evicted: int = 0
    rows_evicted_full: int = 0
    touched_dropped: int = 0


class ReferenceTable:
    """One row per id, in a dict.

    >>> from monolith.embedding.optimizers import Sgd
    >>> from monolith.embedding.specs import SliceSpec
    >>> table = ReferenceTable(TableSpec("t", [SliceSpec(1, optimizer=Sgd(0.5))]))
    >>> table.apply_gradients([7, 7], [[1.0], [2.0]])
    >>> table.lookup([7, 8]).tolist()
    [[-1.5], [0.0]]
    """

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.stats = ReferenceStats()
        self._rows: dict[int, _Row] = {}
        self._max_time_s = 0
        self._scales = [scale_at(piece, 0, 1.0) for piece in spec.slices]
        self._filter = ReferenceFilter(spec.admission, spec.seed)
        self._touched: set[int] | None = None
        bounds = accumulate((piece.dim for piece in spec.slices), initial=0)
        self._columns = [slice(begin, end) for begin, end in pairwise(bounds)]

    # --- sizes and times ---

    @property
    def dim(self) -> int:
        """Columns of a row."""
        return self.spec.dim

    @property
    def max_time_s(self) -> int:
        """The newest time of any update."""
        return self._max_time_s

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    # --- reads ---

    @overload
    def lookup(self, ids: ArrayLike, *, return_found: Literal[False] = False) -> Rows: ...
    @overload
    def lookup(self, ids: ArrayLike, *, return_found: Literal[True]) -> tuple[Rows, NDArray[np.bool_]]: ...
    def lookup(self, ids: ArrayLike, *, return_found: bool = False) -> Rows | tuple[Rows, NDArray[np.bool_]]:
        """Return one row per id; an absent id shows zeros, or its first values. Shapes: (N,) to (N, D)."""
        ids = _checked_ids(ids)
        rows = np.zeros((len(ids), self.dim), f32)
        for position, fid in enumerate(ids.tolist()):
            rows[position] = self._read(fid)
        return (rows, self.contains(ids)) if return_found else rows

    def contains(self, ids: ArrayLike) -> NDArray[np.bool_]:
        """Return for each id whether it has a row."""
        return np.array([fid in self._rows for fid in _checked_ids(ids).tolist()], np.bool_)

    def lookup_pooled(self, ids: ArrayLike, offsets: ArrayLike, mode: Mode = "sum") -> Rows:
        """Return one pooled row per bag of ragged ids; ``("first", n)`` gives (B, n, D)."""
        ids = _checked_ids(ids)
        return pool_rows(self.lookup(ids), np.asarray(offsets, np.int64), mode)

    def entry(self, fid: int) -> Entry | None:
        """Return a copy of everything stored for an id, or None."""
        row = self._rows.get(fid)
        if row is None:
            return None
        pieces = zip(self.spec.slices, row.states, strict=True)
        state = tuple(SliceState(piece.optimizer.base.kind, copy.deepcopy(fields)) for piece, fields in pieces)
        return Entry(fid, row.values.copy(), state, row.time_s)

    def items(self, batch_size: int = 65536) -> Iterator[tuple[Ids, Rows]]:
        """Yield all ids with their rows, in batches."""
        present = np.array(list(self._rows), np.int64)
        for begin in range(0, len(present), batch_size):
            ids = present[begin : begin + batch_size]
            yield ids, self.lookup(ids)

    # --- writes ---

    def assign(self, ids: ArrayLike, rows: ArrayLike, time_s: int = 0) -> None:
        """Set the values of each id; of equal ids the last wins. Optimizer state stays as it is."""
        for row, values in self._admit(ids, rows, time_s):
            row.values[:] = values

    def assign_add(self, ids: ArrayLike, rows: ArrayLike, time_s: int = 0) -> None:
        """Add to the values of each id; equal ids add up."""
        for row, values in self._admit(ids, rows, time_s):
            row.values += values

    @np.errstate(all="ignore")  # overflow gives Inf and NaN without a warning, as in the engine
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
        """Sum the gradients of equal ids, then take one optimizer step per id; or one per occurrence."""
        ids = _checked_ids(ids)
        grads = self._checked_rows(ids, grads)
        latest = None if values_at_gradient is None else self._checked_rows(ids, values_at_gradient)
        sightings = np.ones(len(ids), np.int64) if counts is None else np.asarray(counts, np.int64)
        rates = self._checked_rates(learning_rates, step)
        _check_time(time_s)
        if self.spec.nan_gradients == "error" and not np.isfinite(grads).all():
            raise ConfigError(f"table {self.spec.name!r}: a gradient is NaN or Inf; nothing was applied")
        self._scales = [scale_at(p, step, s) for p, s in zip(self.spec.slices, self._scales, strict=True)]
        self._advance_clock(time_s)
        for fid, grad, then, count in self._steps_of(ids, grads, latest, sightings, dedup):
            was_present = fid in self._rows
            row = self._row_for(fid, count)
            if row is None:
                continue
            if self.spec.nan_gradients != "pass" and not np.isfinite(grad).all():
                self.stats.nan_rows_skipped += 1
                if not was_present:
                    del self._rows[fid]
                continue
            self._step_row(row, grad, then, rates, step)
            row.time_s = time_s
            self._touch(fid)

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
        """Take the optimizer steps that belong to the gradient of ``lookup_pooled``."""
        ids = _checked_ids(ids)
        counted, spread = gradients_of_occurrences(np.asarray(grads, f32), np.asarray(offsets, np.int64), mode)
        self.apply_gradients(ids[counted], spread, learning_rates=learning_rates, time_s=time_s, step=step)

    def reinitialize(self, ids: ArrayLike) -> NDArray[np.int8]:
        """Give each id its first values and a fresh optimizer state; return 1 where a row existed, else 0."""
        ids = _checked_ids(ids)
        existed = self.contains(ids).astype(np.int8)
        for fid in ids.tolist():
            self._rows[fid] = self._new_row(fid, self._max_time_s)
            self._touch(fid)
        return existed

    # --- removal ---

    def delete(self, ids: ArrayLike) -> int:
        """Remove rows; return how many there were."""
        return sum(self._remove(fid) for fid in _checked_ids(ids).tolist())

    def evict(self, now_s: int | None = None) -> int:
        """Remove rows that have expired at ``now_s`` (None: the newest time seen); return how many."""
        now_s = self._max_time_s if now_s is None else now_s
        expired = [fid for fid, row in self._rows.items() if self._is_expired(fid, row, now_s)]
        self.stats.rows_evicted += len(expired)
        return self.delete(expired)

    def clear(self) -> None:
        """Remove every row, and forget all sightings and times."""
        self.delete(list(self._rows))
        self._filter = ReferenceFilter(self.spec.admission, self.spec.seed)
        self._max_time_s = 0

    # --- snapshots and changes ---

    def snapshot_state(self) -> TableState:
        """Return a copy of the state without the rows that have expired."""
        rows = {fid: row for fid, row in self._rows.items() if not self._is_expired(fid, row, self._max_time_s)}
        return copy.deepcopy(TableState(rows, self._max_time_s, self._scales, self._filter))

    def restore_state(self, state: TableState, *, clear: bool = True) -> None:
        """Take over the rows of a snapshot; ``clear`` removes all others first."""
        state = copy.deepcopy(state)
        if clear:
            self.clear()
        self._rows.update(state.rows)
        self._force_clock(state.max_time_s)
        self._scales = state.scales
        self._filter = state.admission

    def drain_touched(self) -> Ids:
        """Return the sorted ids changed since the last call; the first call returns all present ones."""
        drained = self._rows if self._touched is None else self._touched
        self._touched = set()
        return np.array(sorted(drained), np.int64)

    # --- one row ---

    def _read(self, fid: int) -> Rows:
        row = self._rows.get(fid)
        if row is None and self.spec.on_miss == "zeros":
            return np.zeros(self.dim, f32)
        values = initial_values(self.spec, fid) if row is None else row.values
        pieces = zip(self.spec.slices, self._columns, self._scales, strict=True)
        return np.concatenate([read_values(piece, values[columns], scale) for piece, columns, scale in pieces])

    def _new_row(self, fid: int, time_s: int) -> _Row:
        states = [initial_state(piece.optimizer, piece.dim) for piece in self.spec.slices]
        return _Row(initial_values(self.spec, fid), states, time_s)

    def _row_for(self, fid: int, count: int) -> _Row | None:
        """Return the row of an id, created if the filter admits it; else None."""
        if fid not in self._rows:
            threshold = self.spec.threshold_of(_slot_v2(fid))
            if not self._filter.admit(fid, count, threshold):
                self.stats.ids_filtered += 1
                return None
            self._rows[fid] = self._new_row(fid, 0)
        return self._rows[fid]

    def _step_row(self, row: _Row, grad: Rows, latest: Rows | None, rates: Sequence[float], step: int) -> None:
        for k, (piece, columns) in enumerate(zip(self.spec.slices, self._columns, strict=True)):
            values = row.values[columns]
            then = None if latest is None else latest[columns]
            stored_grad = gradient_of_stored(piece, values, grad[columns], self._scales[k])
            take_step(piece.optimizer, values, stored_grad, row.states[k], rate=rates[k], step=step, latest=then)

    def _admit(self, ids: ArrayLike, rows: ArrayLike, time_s: int) -> Iterator[tuple[_Row, Rows]]:
        """Yield the row and the new values of each admitted occurrence, and update the counters."""
        ids = _checked_ids(ids)
        rows = self._checked_rows(ids, rows)
        _check_time(time_s)
        self._force_clock(time_s)
        counts = Counter(ids.tolist())
        admitted: dict[int, _Row | None] = {}
        for fid, values in zip(ids.tolist(), rows, strict=True):
            if fid not in admitted:
                admitted[fid] = self._row_for(fid, counts[fid])
            if (row := admitted[fid]) is not None:
                row.time_s = time_s
                self._touch(fid)
                yield row, values

    def _steps_of(
        self, ids: Ids, grads: Rows, latest: Rows | None, counts: NDArray[np.int64], dedup: bool
    ) -> list[tuple[int, Rows, Rows | None, int]]:
        """Return (id, gradient, values it was computed at, sightings) of every optimizer step, in order."""
        steps: dict[int, tuple[int, Rows, Rows | None, int]] = {}
        for position, fid in enumerate(ids.tolist()):
            key = fid if dedup else position
            then = None if latest is None else latest[position]
            if key in steps:
                _, total, first, count = steps[key]
                steps[key] = (fid, total + grads[position], first, count + int(counts[position]))
            else:
                steps[key] = (fid, grads[position].copy(), then, int(counts[position]))
        return list(steps.values())

    def _is_expired(self, fid: int, row: _Row, now_s: int) -> bool:
        return now_s - row.time_s >= self.spec.expire_days_of(_slot_v2(fid)) * _DAY_S

    def _remove(self, fid: int) -> bool:
        if self._rows.pop(fid, None) is None:
            return False
        self._touch(fid)
        return True

    def _touch(self, fid: int) -> None:
        if self._touched is None:
            return
        self._touched.add(fid)
        if self.spec.touched_capacity is not None and len(self._touched) > self.spec.touched_capacity:
            self.stats.touched_dropped += len(self._touched)
            self._touched.clear()

    def _force_clock(self, time_s: int) -> None:
        self._max_time_s = max(self._max_time_s, time_s)

    def _advance_clock(self, time_s: int) -> None:
        """Move the clock by at most a day; the first time of an empty clock sets it."""
        self._force_clock(min(time_s, self._max_time_s + _DAY_S) if self._max_time_s else time_s)

    # --- arguments ---

    def check_rows(self, ids: ArrayLike, rows: ArrayLike) -> None:
        """Refuse rows or gradients that do not fit the ids or the table."""
        self._checked_rows(_checked_ids(ids), rows)

    def _checked_rows(self, ids: Ids, rows: ArrayLike) -> Rows:
        array = np.asarray(rows, f32)
        if array.ndim != 2 or array.shape[1] != self.dim:
            width = array.shape[-1] if array.ndim else 0
            raise DimensionMismatch(f"table {self.spec.name!r} has dim {self.dim}, the rows have dim {width}")
        if len(array) != len(ids):
            raise DimensionMismatch(f"table {self.spec.name!r}: {len(ids)} ids but {len(array)} rows")
        return array

    def _checked_rates(self, rates: ArrayLike | None, step: int) -> list[float]:
        if step < 0:
            raise ConfigError(f"step is {step}; give 0 or more")
        array = self.spec.learning_rates_at(step) if rates is None else np.asarray(rates, f32)
        if array.shape != (len(self.spec.slices),):
            raise ConfigError(
                f"table {self.spec.name!r} has {len(self.spec.slices)} slices, learning_rates has shape {array.shape}"
            )
        return [float(rate) for rate in array]


def _slot_v2(fid: int) -> int:
    return (fid >> 48) & 0x7FFF


def _check_time(time_s: int) -> None:
    if not 0 <= time_s <= _MAX_TIME_S:
        raise ConfigError(f"time_s is {time_s}; give unix seconds from 0 to {_MAX_TIME_S}")


def _checked_ids(ids: ArrayLike) -> Ids:
    array = np.asarray(ids)
    if array.size == 0 and not isinstance(ids, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ConfigError(f"ids have dtype {array.dtype} and shape {array.shape}; give a flat array of int64")
    return array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64)

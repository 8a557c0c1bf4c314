"""History of the last cuts of a sub-model, so that an entry and its parts can answer at one common cut.

An entry and its parts move to a new cut at different times. An entry that loads its weights for longer than the time
between two cuts is always several cuts behind. ``RowHistory`` therefore keeps the preimages of changed rows for the
last ``KEPT`` cuts, and for further ones of the last ``KEPT_S`` seconds while all take at most ``KEPT_BYTES``. Replaced
tables stay for ``REPLACED_TABLES_S`` at most, and only the last ones: they are as large as the tables in use. Not
thread safe: the owner keeps changes and lookups apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.artifacts.delta_log import Cut
from monolith.core.errors import InvalidRequest, ShardUnavailable
from monolith.embedding import MultiTable
from monolith.embedding.store import Ids, Rows
from monolith.sync.row_updates import Touched

__all__ = [
    "EXPORTED",
    "KEPT",
    "KEPT_AT_MOST",
    "KEPT_BYTES",
    "KEPT_S",
    "REPLACED_TABLES_S",
    "CutKey",
    "OtherCut",
    "RowHistory",
    "Undo",
    "key_of",
    "keys_array",
    "read_key",
]

CutKey: TypeAlias = tuple[int, int]
"""Identity of a cut: its number and its publish time in microseconds."""

EXPORTED: CutKey = (0, 0)
"""Key of an export's state, before the first cut."""

KEPT = 3
"""Number of earlier cuts that stay available in any case."""

KEPT_AT_MOST = 127
"""Largest number of earlier cuts; an answer lists them."""

KEPT_S = 10.0
"""Seconds that rows of further cuts stay available: the time of an entry to load the weights of one or two cuts."""

KEPT_BYTES = 64 << 20
"""Memory of the preimages of the last cuts, above which only ``KEPT`` of them stay."""

REPLACED_TABLES_S = 30.0
"""Seconds that replaced tables stay available: other processes of the model move to the new tables meanwhile."""

Undo: TypeAlias = Mapping[str, tuple[Ids, Rows]]
"""Preimages of a cut by table: ascending ids, and one row per id."""


class OtherCut(ShardUnavailable):
    """Parts of a model do not hold the requested cut.

    Args:
        message: Error text with the parts and their cuts.
        parts: Names of the parts.
        held: Cuts that all of them hold.
    """

    def __init__(self, message: str, parts: Sequence[str], held: Sequence[CutKey]) -> None:
        super().__init__(message)
        self.parts = tuple(parts)
        self.held = tuple(held)


def key_of(cut: Cut) -> CutKey:
    """Return the key of a cut."""
    return cut.number, round(cut.published_at_s * 1e6)


def keys_array(keys: Sequence[CutKey]) -> NDArray[np.int64]:
    """Return keys as an array with one row per key, as in requests."""
    return np.array(keys, np.int64).reshape(-1, 2)


def read_key(value: ArrayLike) -> CutKey:
    """Return the key in a request.

    Raises:
        InvalidRequest: The value is invalid.
    """
    array: NDArray[Any] = np.asarray(value)
    if array.shape != (2,) or array.dtype.kind not in "iu":
        raise InvalidRequest(
            f"input 'cut' has shape {list(array.shape)} and type {array.dtype}, expected two integers: the number of a "
            "cut and its publish time in microseconds"
        )
    return int(array[0]), int(array[1])


@dataclass(frozen=True, slots=True)
class _Step:
    before: CutKey
    undo: Undo | MultiTable
    bytes: float
    at_s: float


class RowHistory:
    """Rows of tables at the last cuts.

    Args:
        kept_s: Seconds that rows of more than ``KEPT`` cuts stay available.
        kept_bytes: Memory that they may take.
    """

    def __init__(self, *, kept_s: float = KEPT_S, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_s = kept_s
        self._kept_bytes = kept_bytes
        self._key: CutKey | None = None
        self._steps: list[_Step] = []  # newest first

    @property
    def keys(self) -> list[CutKey]:
        """Keys of the available cuts, newest first; empty before the first ``record_move``."""
        return [] if self._key is None else [self._key, *(step.before for step in self._steps)]

    def preimages(self, tables: MultiTable, new: MultiTable | None, ids: Touched | None) -> Undo | MultiTable | None:
        """Return the rows that a change overwrites; None if the history should restart instead.

        Args:
            tables: Tables before the change.
            new: Tables that replace them; None if rows change in place.
            ids: Ids of the rows that change; None if unknown.
        """
        if new is not None:
            return None if self.keys[:1] == [EXPORTED] else tables
        if ids is None:
            return None
        return {name: (ids[name], tables[name].lookup(ids[name])) for name in tables if name in ids}

    def record_move(self, key: CutKey, undo: Undo | MultiTable | None = None) -> None:
        """Record that the tables show another cut.

        Args:
            key: Key of the new cut.
            undo: Preimages of the changed rows, or the replaced tables; None drops the earlier cuts.
        """
        if undo is None or self._key is None:
            self._steps = []
        else:
            if isinstance(undo, MultiTable):
                self.drop_replaced_tables(0.0)
            now_s = time.monotonic()
            self._steps.insert(0, _Step(self._key, undo, _bytes_of(undo), now_s))
            self._trim(now_s)
        self._key = key

    def drop_replaced_tables(self, age_s: float) -> None:
        """Drop tables that were replaced at least ``age_s`` seconds ago, and the cuts that need them."""
        latest_s = time.monotonic() - age_s
        for index, step in enumerate(self._steps):
            if isinstance(step.undo, MultiTable) and step.at_s <= latest_s:
                del self._steps[index:]
                return

    def lookup(self, key: CutKey, tables: MultiTable, name: str, ids: Ids) -> Rows:
        """Return the rows of a table at one of ``keys``."""
        rows = tables[name].lookup(ids)
        for before, undo in ((step.before, step.undo) for step in self._steps) if key != self._key else ():
            if isinstance(undo, MultiTable):
                rows = undo[name].lookup(ids)
            elif name in undo:
                changed, old = undo[name]
                places = np.searchsorted(changed, ids)
                places[places == len(changed)] = 0
                is_changed = changed[places] == ids if len(changed) else np.zeros(len(ids), bool)
                rows[is_changed] = old[places[is_changed]]
            if before == key:
                break
        return rows

    def _trim(self, now_s: float) -> None:
        kept_bytes = 0.0
        for index, step in enumerate(self._steps):
            kept_bytes += step.bytes
            is_old = index >= KEPT_AT_MOST or step.at_s <= now_s - self._kept_s or kept_bytes > self._kept_bytes
            if index >= KEPT and is_old:
                del self._steps[index:]
                return


def _bytes_of(undo: Undo | MultiTable) -> float:
    """Return the memory of preimages; replaced tables exceed every limit."""
    if isinstance(undo, MultiTable):
        return math.inf
    return sum(ids.nbytes + rows.nbytes for ids, rows in undo.values())

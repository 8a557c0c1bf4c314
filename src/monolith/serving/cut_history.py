"""The last few cuts that a sub-model has shown: an entry and its parts move one by one, and answer together at one cut.

A part keeps what rows were before a cut changed them; only those, and only for a few cuts. Who asks, and what for, is
not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.artifacts.delta_log import Cut
from monolith.core.errors import InvalidRequest, ShardUnavailable
from monolith.embedding import MultiTable
from monolith.embedding.store import Ids, Rows

__all__ = ["EXPORTED", "KEPT", "CutKey", "OtherCut", "RowHistory", "Undo", "key_of", "keys_array", "read_key"]

CutKey: TypeAlias = tuple[int, int]
"""What tells a cut from all others: its number, and when it was published in microseconds."""

EXPORTED: CutKey = (0, 0)
"""The state of an export, before its first cut."""

KEPT = 3
"""Earlier cuts that can be asked for: processes look for cuts several times a second, each at its own moments."""

Undo: TypeAlias = Mapping[str, tuple[Ids, Rows]]
"""What rows were before a cut, by table: ids, which rise, and a row for each."""


class OtherCut(ShardUnavailable):
    """Parts of a model do not have the cut that they were asked for.

    Args:
        message: Who, and what they have.
        parts: Which parts.
        held: The cuts that all of them have.
    """

    def __init__(self, message: str, parts: Sequence[str], held: Sequence[CutKey]) -> None:
        super().__init__(message)
        self.parts = tuple(parts)
        self.held = tuple(held)


def key_of(cut: Cut) -> CutKey:
    """Return what tells a cut from all others."""
    return cut.number, round(cut.published_at_s * 1e6)


def keys_array(keys: Sequence[CutKey]) -> NDArray[np.int64]:
    """Return keys as they travel: a row for each."""
    return np.array(keys, np.int64).reshape(-1, 2)


def read_key(value: ArrayLike) -> CutKey:
    """Return the key of a request.

    Raises:
        InvalidRequest: It is none.
    """
    found: NDArray[Any] = np.asarray(value)
    if found.shape != (2,) or found.dtype.kind not in "iu":
        raise InvalidRequest(
            f"input 'cut' has shape {list(found.shape)} and type {found.dtype}; it must be two whole numbers: the "
            "number of a cut, and when it was published in microseconds"
        )
    return int(found[0]), int(found[1])


@dataclass(frozen=True, slots=True)
class _Step:
    before: CutKey
    undo: Undo | MultiTable


class RowHistory:
    """What the rows of tables were at the last few cuts. Its owner keeps changes and lookups apart."""

    def __init__(self) -> None:
        self._key: CutKey | None = None
        self._steps: deque[_Step] = deque(maxlen=KEPT)

    @property
    def keys(self) -> list[CutKey]:
        """The cuts that can be asked for, newest first; none before the first ``moved``."""
        return [] if self._key is None else [self._key, *(step.before for step in self._steps)]

    def moved(self, key: CutKey, undo: Undo | MultiTable | None = None) -> None:
        """Note that the tables show another cut.

        Args:
            key: Which.
            undo: What the changed rows were before, or the tables that were replaced; None: earlier cuts are lost.
        """
        if undo is None or self._key is None:
            self._steps.clear()
        else:
            self._steps.appendleft(_Step(self._key, undo))
        self._key = key

    def lookup(self, key: CutKey, tables: MultiTable, name: str, ids: Ids) -> Rows:
        """Return the rows that a table had at one of ``keys``."""
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

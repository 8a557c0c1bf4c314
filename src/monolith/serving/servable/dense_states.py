"""Dense parts at the last cuts, and scoring at a cut that an entry and all its parts hold.

NOTE. An entry asks its ``ps_*`` parts for rows and may ask ``dense_0`` for outputs. All of them follow the same
publisher, but each applies a cut at its own moment. ``score_at_common_cut`` finds a cut that all of them hold::

    entry holds cuts 7 6 5         ps_0 holds 7 6 5 4        ps_1 holds 6 5 4 3
    score at 7   -> ps_1 raises OtherCut(held=6 5 4 3)
    score at 6   -> all hold it: answer

The entry tries its cuts from the newest to the oldest, and skips cuts that the refusing part does not hold. If none is
common, the entry pauses and tries again until the deadline of the request. Then it raises. Where the settings allow a
degraded result, it tries for half of that time, and returns one at the newest rows of each part. History is limited, so
a part that lags further makes requests fail instead of mixing cuts.

Each state of an entry may take the memory of its program, so an entry keeps few. While cuts follow each other quickly,
the newest ones are all newer than those of a part that lags. The entry then keeps two further states, 2 to 4 s old.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

from monolith.core.errors import RpcTimeout
from monolith.serving.servable.cut_history import EXPORTED, KEPT, KEPT_AT_MOST, CutKey, OtherCut
from monolith.serving.servable.parts import Arrays, DenseRunner, EntryRows, OwnProgram
from monolith.serving.versions.loaded_model import DegradedOutputs

__all__ = ["DenseState", "DenseStates"]

_OLD_S = 2.0
"""Age of a state that parts hold although they lag."""


class DenseState(NamedTuple):
    """A cut and its dense part."""

    key: CutKey | None
    """None if the model follows no publisher."""
    dense: DenseRunner | OwnProgram
    at_s: float = 0.0
    """When it became the newest, on the monotonic clock."""


class DenseStates:
    """Dense states, newest first. One thread changes them at a time; reading ``shown`` needs no lock.

    Args:
        dense: First dense part; None without one.
        keeps_earlier: Whether earlier cuts stay available, for an entry or its parts.
        monotonic_s: Clock of the ages.
    """

    def __init__(
        self,
        dense: DenseRunner | OwnProgram | None,
        *,
        keeps_earlier: bool,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shown: tuple[DenseState, ...] = () if dense is None else (DenseState(None, dense),)
        """Replaced as a whole, never changed; empty without a dense part and after ``close``."""
        self._kept = KEPT if keeps_earlier else 0
        self._monotonic_s = monotonic_s

    def show(self, key: CutKey | None, dense: DenseRunner | OwnProgram) -> None:
        """Add the state of a cut. Without a key, replace the weights of the newest state."""
        if key is None:
            self.shown = (self.shown[0]._replace(dense=dense), *self.shown[1:])
            return
        now_s = self._monotonic_s()
        kept = [DenseState(key, dense, now_s)]
        programs = 1
        earlier = [state for state in self.shown if state.key is not None] if self._kept else []
        for state, older in itertools.zip_longest(earlier[:KEPT_AT_MOST], earlier[1:KEPT_AT_MOST]):
            programs += state.dense is not kept[-1].dense
            if programs > 1 + self._kept:
                if kept[-1].at_s <= now_s - _OLD_S or state.key == EXPORTED:  # parts drop the export's rows
                    break
                if older is not None and older.key != EXPORTED and state.at_s < older.at_s + _OLD_S:
                    continue
            kept.append(state)
        self.shown = tuple(kept)

    def close(self) -> None:
        """Release all states."""
        self.shown = ()

    def score_at_common_cut(self, score_at: Callable[[DenseState], Arrays], rows: EntryRows) -> Arrays | None:
        """Return scores at the newest cut that an entry and its parts hold; None if ``close`` was called meanwhile.

        Args:
            score_at: Computes the scores at a state.
            rows: Row source; defines the retries, and whether a degraded result is allowed.

        Raises:
            OtherCut: The parts held no common cut before the deadline.
            RpcTimeout: A part did not answer in time; the text has its last refusal too.
        """
        shown = self.shown
        if not shown:
            return None
        if shown[0].key is None:
            return score_at(shown[0])
        refused: OtherCut | None = None
        for _ in rows.tries():
            states = self.shown
            while states:
                try:
                    return score_at(states[0])
                except OtherCut as other:
                    refused = other
                    states = tuple(state for state in states[1:] if state.key in other.held)
                except RpcTimeout as late:  # of the last attempt, which had little time left
                    if refused is None:
                        raise
                    raise RpcTimeout(f"{late}; before that, {refused}") from late
        shown = self.shown
        if refused is None or not shown:
            return None
        if not rows.allows_degraded:
            raise refused
        newest = score_at(DenseState(None, shown[0].dense))
        lost = newest.missing if isinstance(newest, DegradedOutputs) else ()
        return DegradedOutputs(newest, tuple(dict.fromkeys((*refused.parts, *lost))))

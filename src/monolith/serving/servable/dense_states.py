"""Dense parts at the last cuts, and scoring at a cut that an entry and all its parts hold.

NOTE. An entry asks its ``ps_*`` parts for rows and may ask ``dense_0`` for outputs. All of them follow the same
publisher, but each applies a cut at its own moment. ``score_at_common_cut`` finds a cut that all of them hold::

    entry holds cuts 7 6 5         ps_0 holds 7 6 5 4        ps_1 holds 6 5 4 3
    score at 7   -> ps_1 raises OtherCut(held=6 5 4 3)
    score at 6   -> all hold it: answer

The entry tries its cuts from the newest to the oldest, and skips cuts that the refusing part does not hold. If none is
common, the entry pauses and tries again until the deadline of the request. Then it raises, or returns a degraded
result at the newest rows of each part where the settings allow it. History is short (``KEPT`` cuts), so a part that
lags further makes requests fail instead of mixing cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from monolith.serving.servable.cut_history import KEPT, CutKey, OtherCut
from monolith.serving.servable.parts import Arrays, DenseRunner, EntryRows, OwnProgram
from monolith.serving.versions.loaded_model import DegradedOutputs

__all__ = ["DenseState", "DenseStates"]


class DenseState(NamedTuple):
    """A cut and its dense part."""

    key: CutKey | None
    """None if the model follows no publisher."""
    dense: DenseRunner | OwnProgram


class DenseStates:
    """Dense states, newest first. One thread changes them at a time; reading ``shown`` needs no lock.

    Args:
        dense: First dense part; None without one.
        keeps_earlier: Whether earlier cuts stay available, for an entry or its parts.
    """

    def __init__(self, dense: DenseRunner | OwnProgram | None, *, keeps_earlier: bool) -> None:
        self.shown: tuple[DenseState, ...] = () if dense is None else (DenseState(None, dense),)
        """Replaced as a whole, never changed; empty without a dense part and after ``close``."""
        self._kept = KEPT if keeps_earlier else 0

    def show(self, key: CutKey | None, dense: DenseRunner | OwnProgram) -> None:
        """Add the state of a cut. Without a key, replace the weights of the newest state."""
        if key is None:
            self.shown = (DenseState(self.shown[0].key, dense), *self.shown[1:])
            return
        earlier = [state for state in self.shown if state.key is not None]
        self.shown = (DenseState(key, dense), *earlier[: self._kept])

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
        shown = self.shown
        if refused is None or not shown:
            return None
        if not rows.allows_degraded:
            raise refused
        return DegradedOutputs(score_at(DenseState(None, shown[0].dense)), refused.parts)

"""The dense part at the cuts that a model has shown last, and scores at one that all of its parts have."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from monolith.serving.cut_history import KEPT, CutKey, OtherCut
from monolith.serving.loaded_model import DegradedOutputs
from monolith.serving.servable_parts import Arrays, DenseRunner, OwnProgram, RowSource

__all__ = ["DenseState", "DenseStates"]


class DenseState(NamedTuple):
    """A cut and the dense part that belongs to it."""

    key: CutKey | None
    """None where nothing is followed."""
    dense: DenseRunner | OwnProgram


class DenseStates:
    """What was shown, newest first. One thread changes it at a time; who reads ``shown`` needs no lock.

    Args:
        dense: What is shown first; None where there is no dense part.
        keeps_earlier: Whether earlier cuts can be asked for: by an entry, or of the parts that it asks.
    """

    def __init__(self, dense: DenseRunner | OwnProgram | None, *, keeps_earlier: bool) -> None:
        self.shown: tuple[DenseState, ...] = () if dense is None else (DenseState(None, dense),)
        """Replaced as a whole; empty where there is nothing, or it was closed."""
        self._kept = KEPT if keeps_earlier else 0

    def show(self, key: CutKey | None, dense: DenseRunner | OwnProgram) -> None:
        """Show a cut; without a key the same one, with other weights."""
        if key is None:
            self.shown = (DenseState(self.shown[0].key, dense), *self.shown[1:])
            return
        earlier = [state for state in self.shown if state.key is not None]
        self.shown = (DenseState(key, dense), *earlier[: self._kept])

    def close(self) -> None:
        """Let go of all."""
        self.shown = ()

    def agreed(self, score_at: Callable[[DenseState], Arrays], rows: RowSource) -> Arrays | None:
        """Return scores at the newest cut that an entry and its parts have; None where it was closed meanwhile.

        Args:
            score_at: Scores at a state.
            rows: Who is asked; says for how long it is tried, and whether a marked answer will do.

        Raises:
            OtherCut: They have come to no cut that all have.
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

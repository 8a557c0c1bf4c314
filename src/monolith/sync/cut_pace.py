"""``CutPace``: lets the slow followers of one distributed model move to the same cuts.

A follower whose moves take longer than the time between two cuts leaves out cuts. If each part of a model left out
others, their histories would share few cuts, and most requests would find none that all parts hold. So a follower whose
last moves missed a cut takes cuts with an even number only::

    cuts                    1 2 3 4 5 6 7 8
    moves of 0.3 cuts       1 2 3 4 5 6 7 8
    moves of 1.2 cuts         2   4   6   8

The wait for such a number ends after twice the time of the last move: the last cut of a publisher is taken too.
Used by one thread.
"""

from __future__ import annotations

from collections import deque

__all__ = ["CutPace"]


class CutPace:
    """Pace of one follower."""

    def __init__(self) -> None:
        self._number = 0
        self._seconds: float | None = None
        self._end_s = 0.0
        self._has_missed = deque([False, False], maxlen=2)

    def note_move(self, number: int, seconds: float, *, is_rebuild: bool) -> None:
        """Note the number of the cut that a move led to, and the time of the move.

        A full rebuild tells nothing about later moves.
        """
        self._number = number
        self._seconds = None if is_rebuild else seconds
        self._end_s = 0.0

    def takes(self, number: int, now_s: float) -> bool:
        """Return whether to move to the newest cut, which has a number; call it at every look for a cut."""
        if self._seconds is not None:  # the first look after a move
            self._has_missed.append(number > self._number)
            self._end_s = now_s + 2 * self._seconds
            self._seconds = None
        return number < self._number or number % 2 == 0 or not any(self._has_missed) or now_s >= self._end_s

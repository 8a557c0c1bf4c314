"""How things are timed: turn by turn in rounds, so that a disturbance of the machine hits all contestants."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Seconds", "Turn", "interleave", "seconds_of"]

Seconds = NDArray[np.float64]
Turn = Callable[[int], object]

SETTLE_S = 0.005
"""Pause before a turn, in which the worker threads of the one before stop spinning."""


def seconds_of(action: Callable[[], object]) -> float:
    """Return how long ``action`` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def interleave(contestants: Sequence[Turn], *, rounds: int, steps: int) -> Seconds:
    """Return the seconds per call of every contestant in every round, (contestants, rounds).

    In each round every contestant takes one untimed call, which brings its hot rows back into the caches, and then
    ``steps`` timed ones. All see the same call numbers, and the order turns around from round to round.
    """
    seconds = np.empty((len(contestants), rounds))
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            first = number * (steps + 1)
            order = range(len(contestants)) if number % 2 == 0 else reversed(range(len(contestants)))
            for which in order:
                seconds[which, number] = _turn(contestants[which], first, steps)
    finally:
        gc.enable()
    return seconds


def _turn(contestant: Turn, first: int, steps: int) -> float:
    time.sleep(SETTLE_S)
    contestant(first)
    start = time.perf_counter()
    for call in range(first + 1, first + 1 + steps):
        contestant(call)
    return (time.perf_counter() - start) / steps

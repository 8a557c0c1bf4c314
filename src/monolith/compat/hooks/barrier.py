"""Pause several workers of one process at a step boundary, and resume them together.

A worker is held by its own run's pause, so a held worker still writes checkpoints. Workers of other processes are not
known here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from monolith.core.errors import ConfigError
from monolith.training.control.gate import BlockStatus
from monolith.training.hooks.base import Hook, Run, StepResult

__all__ = ["Barrier", "BarrierHook"]


class Barrier:
    """A gate across the way of ``workers`` workers, each with a ``BarrierHook`` of its index.

    Once placed, every worker finishes its step and pauses. Placements are counted: removing a placement resumes its
    workers, and the next placement pauses them only after another step.
    """

    def __init__(self, workers: int) -> None:
        if type(workers) is not int or workers < 1:
            raise ConfigError(f"workers is {workers!r}; a barrier needs at least 1")
        self._workers = workers
        self._changed = threading.Condition()
        self._action: str | None = None
        self._generation = 0
        self._held: dict[int, Run | None] = {}  # index -> the run to resume; None: paused by another caller before

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self._workers

    def place(self, action: str = "") -> bool:
        """Hold every worker after the step it is at; False, and nothing changes, when it is placed already.

        Args:
            action: The reason; passed to the callbacks of the hooks.
        """
        with self._changed:
            if self._action is not None:
                return False
            self._action = action
            self._generation += 1
            return True

    def remove(self) -> None:
        """Resume the workers; no-op when the barrier is not placed."""
        with self._changed:
            self._action = None
            held, self._held = self._held, {}
            self._changed.notify_all()
            for run in held.values():
                if run is not None:
                    run.resume()

    @property
    def is_placed(self) -> bool:
        """Whether workers are being held."""
        with self._changed:
            return self._action is not None

    def status(self) -> BlockStatus:
        """Return the paused workers."""
        with self._changed:
            return self._status()

    def wait_until_blocked(self, timeout_s: float | None = None) -> BlockStatus:
        """Wait until every worker is paused, the barrier is removed, or the timeout; return the paused workers."""
        with self._changed:
            self._changed.wait_for(lambda: self._action is None or len(self._held) == self._workers, timeout_s)
            return self._status()

    def _status(self) -> BlockStatus:
        everyone = range(self._workers)
        return BlockStatus(
            blocked=tuple(index for index in everyone if index in self._held),
            unblocked=tuple(index for index in everyone if index not in self._held),
        )

    def _placement(self, index: int) -> tuple[int, str] | None:
        """The placement that worker ``index`` has yet to obey: its number and its action."""
        with self._changed:
            if self._action is None or index in self._held:
                return None
            return self._generation, self._action

    def _hold(self, index: int, run: Run, generation: int) -> None:
        """Hold a worker, unless its placement was removed while its callbacks ran."""
        with self._changed:
            if self._action is not None and self._generation == generation:
                self._held[index] = run if run.pause() else None
                self._changed.notify_all()

    def _leave(self, index: int) -> None:
        """A worker that has ended is not held."""
        with self._changed:
            self._held.pop(index, None)
            self._changed.notify_all()


class BarrierHook(Hook):
    """Makes one worker obey a barrier.

    Args:
        barrier: Shared by the workers.
        index: Which of them this is.
        callbacks: Called with the placement's action in the worker's thread, before the worker pauses.
    """

    def __init__(self, barrier: Barrier, index: int = 0, callbacks: Sequence[Callable[[str], None]] = ()) -> None:
        if not 0 <= index < barrier.workers:
            raise ConfigError(f"worker index {index} at a barrier of {barrier.workers} workers; it goes from 0")
        self._barrier = barrier
        self._index = index
        self._callbacks = tuple(callbacks)

    def after_step(self, run: Run, result: StepResult) -> None:
        """Pause after this step if the barrier is placed."""
        placement = self._barrier._placement(self._index)
        if placement is None:
            return
        generation, action = placement
        for callback in self._callbacks:
            callback(action)
        self._barrier._hold(self._index, run, generation)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Leave the barrier to the others."""
        self._barrier._leave(self._index)

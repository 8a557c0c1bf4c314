"""``Barrier``: pauses several workers of one process at a step boundary, and resumes them together.

The barrier pauses a worker through its run, so a paused worker still writes checkpoints. It covers one process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.training.control.pause import BlockStatus
from monolith.training.hooks.base import Hook
from monolith.training.run import Run, StepResult

__all__ = ["Barrier", "BarrierHook"]


class Barrier:
    """Pauses ``workers`` workers, each with a ``BarrierHook`` of its index.

    Once the barrier is placed, every worker finishes its step and pauses. Placements are counted: a worker that one
    placement paused resumes when it is removed, and the next placement pauses it only after another step.
    """

    def __init__(self, workers: int) -> None:
        if type(workers) is not int or workers < 1:
            raise ConfigError(f"workers is {workers!r}; a barrier needs at least 1")
        self._workers = workers
        self._changed = threading.Condition()
        self._action: str | None = None
        self._generation = 0
        self._held: dict[int, Run | None] = {}  # index -> the run to resume; None: it was paused before

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self._workers

    def place(self, action: str = "") -> bool:
        """Pause every worker after its current step; return False, without effect, if the barrier is already placed.

        Args:
            action: The reason; the hooks' callbacks receive it.
        """
        with self._changed:
            if self._action is not None:
                return False
            self._action = action
            self._generation += 1
            return True

    def remove(self) -> None:
        """Resume the workers. No-op if the barrier is not placed."""
        with self._changed:
            self._action = None
            held, self._held = self._held, {}
            self._changed.notify_all()
            for run in held.values():
                if run is not None:
                    run.resume()

    def pause(self) -> bool:
        """Place the barrier; see ``PauseControl``."""
        return self.place()

    def resume(self) -> None:
        """Remove the barrier; see ``PauseControl``."""
        self.remove()

    @property
    def is_placed(self) -> bool:
        """Whether the barrier is placed."""
        with self._changed:
            return self._action is not None

    def status(self) -> BlockStatus:
        """Return the workers that are paused now."""
        with self._changed:
            return self._status()

    def wait_until_blocked(self, timeout_s: float | None = None) -> BlockStatus:
        """Wait until all workers pause, the barrier is removed, or the timeout passes; return the paused workers."""
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
        """Return number and action of the placement that worker ``index`` has not reached; None without one."""
        with self._changed:
            if self._action is None or index in self._held:
                return None
            return self._generation, self._action

    def _hold(self, index: int, run: Run, generation: int) -> None:
        """Pause a worker, unless its placement was removed during its callbacks."""
        with self._changed:
            if self._action is not None and self._generation == generation:
                self._held[index] = run if run.pause() else None
                self._changed.notify_all()

    def _leave(self, index: int) -> None:
        """Remove a worker that has ended."""
        with self._changed:
            self._held.pop(index, None)
            self._changed.notify_all()


class BarrierHook(Hook):
    """Connects one worker to a barrier.

    Args:
        barrier: Shared by the workers.
        index: Number of this worker.
        callbacks: Called with the placement's action before the worker pauses, in the worker's thread.
    """

    def __init__(self, barrier: Barrier, index: int = 0, callbacks: Sequence[Callable[[str], None]] = ()) -> None:
        if not 0 <= index < barrier.workers:
            raise ConfigError(f"worker index is {index}, expected 0 to {barrier.workers - 1}")
        self._barrier = barrier
        self._index = index
        self._callbacks = tuple(callbacks)

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        placement = self._barrier._placement(self._index)
        if placement is None:
            return
        generation, action = placement
        for callback in self._callbacks:
            callback(action)
        self._barrier._hold(self._index, run, generation)

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._barrier._leave(self._index)

"""``JobPause``: pauses all workers of a job, through its state on the servers.

Workers read the state when they exchange weights, so they pause after the steps between two exchanges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from typing_extensions import override

from monolith.training.cluster.job_state import JobState, WorkerEntry, WorkerPhase
from monolith.training.control.pause import BlockStatus, WorkerStatus
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["JobPause"]

_STATES = {
    WorkerPhase.UNKNOWN: "not there",
    WorkerPhase.READY: "training",
    WorkerPhase.DONE: "done",
    WorkerPhase.STOPPING: "stopping",
    WorkerPhase.PAUSED: "held",
}


class JobPause(Hook):
    """The ``PauseControl`` of a job: pauses the chief by its run, which can still save, and the others by the state.

    Args:
        open_state: Opens the state of the job for a run.
        session: Returns the session of the job.
    """

    def __init__(self, open_state: Callable[[Run], JobState], session: Callable[[], int]) -> None:
        self._open_state = open_state
        self._session = session
        self._lock = threading.Lock()
        self._run: Run
        self._state: JobState

    @override
    def on_start(self, run: Run) -> None:
        self._run, self._state = run, self._open_state(run)

    def pause(self) -> bool:
        """Pause every worker after its current step; return False if a pause is active."""
        with self._lock:
            if not self._run.pause():
                return False
            try:
                self._state.write_pause(self._session())
            except BaseException:
                self._run.resume()
                raise
            return True

    def resume(self) -> None:
        """Resume the workers."""
        with self._lock:
            self._state.write_pause(0)
            self._run.resume()

    def status(self) -> BlockStatus:
        """Return the workers that are paused now."""
        workers = self.workers()
        blocked = tuple(worker.index for worker in workers if worker.state == "held")
        return BlockStatus(blocked=blocked, unblocked=tuple(i for i in range(len(workers)) if i not in blocked))

    def workers(self) -> tuple[WorkerStatus, ...]:
        """Return the progress of all workers."""
        with self._lock:
            entries = self._state.read()
        return tuple(self._status(index, entry) for index, entry in enumerate(entries))

    def _status(self, index: int, entry: WorkerEntry) -> WorkerStatus:
        if index == 0:
            state = "held" if self._run.is_paused else _STATES[entry.phase]
        else:
            state = _STATES[entry.phase] if entry.session == self._session() else "not there"
        return WorkerStatus(index=index, step=entry.steps, state=state)

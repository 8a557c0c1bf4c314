"""What the controller of a job of several workers acts on: all of them, through a row on the servers.

Workers look at the row when they exchange weights, so they stand still after the steps between two exchanges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from monolith.training.control.gate import BlockStatus, WorkerStatus
from monolith.training.distributed.shared_rows import DONE, HELD, READY, STOPPING, SharedRows, WorkerRow
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["JobGate"]

_STATES = {READY: "training", DONE: "done", STOPPING: "stopping", HELD: "held"}


class JobGate(Hook):
    """Holds the chief by its own run, which can still save then, and the others by what they read of it.

    Args:
        rows: Opens the shared tables.
        session: Which start of the job this is.
    """

    def __init__(self, rows: Callable[[Run], SharedRows], session: Callable[[], int]) -> None:
        self._open_rows = rows
        self._session = session
        self._lock = threading.Lock()
        self._run: Run
        self._rows: SharedRows

    def on_start(self, run: Run) -> None:
        """Take the run of the chief."""
        self._run, self._rows = run, self._open_rows(run)

    def place(self) -> bool:
        """Hold every worker after the step it is at; False when they are being held already."""
        with self._lock:
            if not self._run.pause():
                return False
            try:
                self._rows.write_hold(self._session())
            except BaseException:
                self._run.resume()
                raise
            return True

    def remove(self) -> None:
        """Let the workers go on."""
        with self._lock:
            self._rows.write_hold(0)
            self._run.resume()

    def status(self) -> BlockStatus:
        """Return who stands still now."""
        blocked = tuple(worker.index for worker in self.workers() if worker.state == "held")
        everyone = range(len(self.workers()))
        return BlockStatus(blocked=blocked, unblocked=tuple(index for index in everyone if index not in blocked))

    def workers(self) -> tuple[WorkerStatus, ...]:
        """Return where all workers stand."""
        with self._lock:
            rows = self._rows.read()
        return tuple(self._status(index, row) for index, row in enumerate(rows))

    def _status(self, index: int, row: WorkerRow) -> WorkerStatus:
        if index == 0:
            return WorkerStatus(index=0, step=row.steps, state="held" if self._run.is_paused else _STATES[row.state])
        is_of_now = row.session == self._session()
        return WorkerStatus(index=index, step=row.steps, state=_STATES[row.state] if is_of_now else "not there")

"""``LocalJobStore``: the job state and the hidden tables of a job in this process, instead of parameter servers."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from monolith.embedding import MultiTable
from monolith.embedding.store import Ids, Rows
from monolith.ps import messages
from monolith.training.cluster.job_state import job_state_specs

__all__ = ["LocalJobStore"]


class LocalJobStore:
    """A ``JobStore`` without servers; passes the conformance suite of ``RemoteStore``. Thread safe."""

    def __init__(self) -> None:
        self._tables = MultiTable(job_state_specs())
        self._state = messages.JobState()
        self._lock = threading.Lock()

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        """Return one row per id."""
        return self._tables.pull(ids)

    def push(
        self, ids: Mapping[str, Ids], grads: Mapping[str, Rows], *, job_change: messages.JobChange | None = None
    ) -> None:
        """Take one optimizer step per id, and replace a value of the job state with it."""
        with self._lock:
            self._tables.push(ids, grads)
            if job_change is not None:
                self._replace(job_change)

    def job_state(self) -> messages.JobState:
        """Return a copy of the state of the job."""
        with self._lock:
            state = messages.JobState()
            state.CopyFrom(self._state)
            return state

    def update_job_state(self, change: messages.JobChange) -> None:
        """Replace a value of the job state."""
        with self._lock:
            self._replace(change)

    def _replace(self, change: messages.JobChange) -> None:
        kind = change.WhichOneof("value")
        if kind == "worker":
            self._state.workers[change.worker.index].CopyFrom(change.worker.entry)
        elif kind == "paused_session":
            self._state.paused_session = change.paused_session
        else:
            self._state.rendezvous.CopyFrom(change.rendezvous)

"""``JobState``: the state that several workers share on the parameter servers, beside the model's tables.

It holds one entry per worker, the pause of the job, the rendezvous point and the dense weights. Server 0 keeps the
first three as typed messages (``GetJobState``, ``UpdateJobState``, or with a push). The weights are rows of a hidden
table, because workers *add* their changes: plain gradient descent with rate 1 adds, so changes of all workers count, in
any order. Both are saved, logged and cut like the rows of the model: a recovered server has the state that belongs to
its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from monolith.embedding import Sgd, SliceSpec, TableSpec
from monolith.embedding.specs import JOB_TABLES
from monolith.embedding.store import Ids, Rows
from monolith.ps import messages
from monolith.training.groups.workers.rendezvous import RendezvousPoint

__all__ = [
    "WEIGHTS",
    "JobState",
    "JobStore",
    "WorkerEntry",
    "WorkerPhase",
    "job_state_specs",
    "join_weights",
    "total_steps",
]

Floats = NDArray[np.float32]

WEIGHTS = f"{JOB_TABLES}dense_weights"
_CHUNK = 256


class WorkerPhase(IntEnum):
    """The phase of a worker in a session."""

    UNKNOWN = 0
    """The worker has not started."""
    READY = 1
    """The worker trains."""
    DONE = 2
    """The worker has finished its data."""
    STOPPING = 3
    """Of the chief only: all workers end."""
    PAUSED = 4
    """The worker waits at a step boundary."""


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """The progress of one worker."""

    phase: WorkerPhase = WorkerPhase.UNKNOWN
    session: int = 0
    """The session that the entry belongs to."""
    steps: int = 0
    """Steps that the worker has taken."""


def job_state_specs() -> list[TableSpec]:
    """Return the hidden tables that hold the dense weights of a job of several workers."""
    options: Any = {"nan_gradients": "error", "deterministic": True}
    return [TableSpec(WEIGHTS, [SliceSpec(_CHUNK, optimizer=Sgd(1.0))], **options)]


class JobStore(Protocol):
    """The part of ``RemoteStore`` that a job state needs."""

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        """Return one row per id."""
        ...

    def push(
        self,
        ids: Mapping[str, Ids],
        grads: Mapping[str, Rows],
        *,
        job_change: messages.JobChange | None = None,
    ) -> None:
        """Take one optimizer step per id, and replace a value of the job state with it."""
        ...

    def job_state(self) -> messages.JobState:
        """Return the state of the job."""
        ...

    def update_job_state(self, change: messages.JobChange) -> None:
        """Replace a value of the job state."""
        ...


class JobState:
    """The state of a job, as one worker reads and writes it. Each thread has its own.

    Each worker writes its own entry, the chief writes the pause and the rendezvous point, and every worker adds to the
    weights.

    Args:
        store: Has the tables of ``job_state_specs``.
        index: The index of this worker.
        workers: The number of workers.
        weights: The number of dense weights.
    """

    def __init__(self, store: JobStore, index: int, workers: int, weights: int) -> None:
        self._store = store
        self._index = index
        self._workers = workers
        self._weights = weights
        self._chunks = np.arange(-(-weights // _CHUNK), dtype=np.int64)
        self._paused_session = 0

    # --- workers ---

    def read(self) -> list[WorkerEntry]:
        """Return the entries of all workers."""
        state = self._store.job_state()
        self._paused_session = state.paused_session
        return [_decode(state.workers[i]) if i in state.workers else WorkerEntry() for i in range(self._workers)]

    def write(self, entry: WorkerEntry) -> None:
        """Replace the entry of this worker."""
        self._store.update_job_state(self._change(entry))

    def chief_session(self) -> int:
        """Return the session of the chief."""
        return self.read()[0].session

    def has_finished_worker(self, session: int) -> bool:
        """Return whether a worker other than the chief has finished a session."""
        return any((entry.phase, entry.session) == (WorkerPhase.DONE, session) for entry in self.read()[1:])

    # --- pause ---

    @property
    def paused_session(self) -> int:
        """The session whose workers are to pause, as of the last read; 0 = none."""
        return self._paused_session

    def write_pause(self, session: int) -> None:
        """Publish that the workers of a session are to pause; 0 resumes them. Only the chief does."""
        self._store.update_job_state(messages.JobChange(paused_session=session))
        self._paused_session = session

    # --- rendezvous ---

    def rendezvous(self) -> RendezvousPoint:
        """Return the newest rendezvous point of partially synchronous workers."""
        point = self._store.job_state().rendezvous
        return RendezvousPoint(point.session, point.generation, point.port, point.is_over)

    def write_rendezvous(self, point: RendezvousPoint) -> None:
        """Publish a rendezvous point. Only the chief does."""
        value = messages.Rendezvous(
            session=point.session, generation=point.generation, port=point.port, is_over=point.is_over
        )
        self._store.update_job_state(messages.JobChange(rendezvous=value))

    # --- dense weights ---

    def weights(self) -> tuple[Floats, list[WorkerEntry]]:
        """Return the dense weights, and the entries of all workers."""
        rows = self._store.pull({WEIGHTS: self._chunks})[WEIGHTS]
        return rows.ravel()[: self._weights], self.read()

    def add(self, change: Floats, entry: WorkerEntry) -> tuple[Floats, list[WorkerEntry]]:
        """Add to the weights and replace the entry of this worker, in one push; return ``weights``."""
        self._store.push({WEIGHTS: self._chunks}, {WEIGHTS: -self._chunk(change)}, job_change=self._change(entry))
        return self.weights()

    def _change(self, entry: WorkerEntry) -> messages.JobChange:
        value = messages.WorkerEntry(phase=entry.phase, session=entry.session, steps=entry.steps)
        return messages.JobChange(worker=messages.WorkerChange(index=self._index, entry=value))

    def _chunk(self, values: Floats) -> Floats:
        padded = np.zeros(len(self._chunks) * _CHUNK, np.float32)
        padded[: self._weights] = values
        return padded.reshape(-1, _CHUNK)


def join_weights(ids: NDArray[np.int64], rows: Floats, weights: int) -> Floats:
    """Return the dense weights from all rows of their table, in any order."""
    chunks = np.zeros((-(-weights // _CHUNK), _CHUNK), np.float32)
    chunks[ids] = rows
    return chunks.reshape(-1)[:weights]


def total_steps(entries: Sequence[WorkerEntry]) -> int:
    """Return the steps of all workers together."""
    return sum(entry.steps for entry in entries)


def _decode(entry: messages.WorkerEntry) -> WorkerEntry:
    # A later release, or the rows of an earlier one, may have other phases.
    is_known = entry.phase in WorkerPhase._value2member_map_
    phase = WorkerPhase(entry.phase) if is_known else WorkerPhase.UNKNOWN
    return WorkerEntry(phase, entry.session, entry.steps)

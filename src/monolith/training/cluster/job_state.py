"""``JobState``: the state that several workers share on the parameter servers, beside the model's tables.

It holds the dense weights, one entry per worker, the pause of the job and the rendezvous point. The servers keep it in
two hidden tables, so it is sharded, saved, logged and cut like the rows of the model: a recovered server has the state
that belongs to its rows. Changes are *added* (plain gradient descent with rate 1), so changes of several workers to the
weights all count, in any order. Every other value has one writer.

The encoding into rows is private to this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.embedding import EmbeddingStore, Sgd, SliceSpec, TableSpec
from monolith.embedding.specs import JOB_TABLES
from monolith.training.groups.workers.rendezvous import RendezvousPoint

__all__ = ["WEIGHTS", "JobState", "WorkerEntry", "WorkerPhase", "job_state_specs", "join_weights", "total_steps"]

Floats = NDArray[np.float32]

WEIGHTS, WORKERS = f"{JOB_TABLES}dense_weights", f"{JOB_TABLES}workers"
_CHUNK = 256
_HALF = 1 << 20  # of a number of steps: float32 holds whole numbers up to 2**24 only

# No worker has these ids: the pause of the job, and its rendezvous point.
_PAUSE, _RENDEZVOUS = 1 << 40, (1 << 40) + 1


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
    """Return the hidden tables that hold the state of a job of several workers."""
    options: Any = {"nan_gradients": "error", "deterministic": True}
    return [
        TableSpec(WEIGHTS, [SliceSpec(_CHUNK, optimizer=Sgd(1.0))], **options),
        TableSpec(WORKERS, [SliceSpec(4, optimizer=Sgd(1.0))], **options),
    ]


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

    def __init__(self, store: EmbeddingStore, index: int, workers: int, weights: int) -> None:
        self._store = store
        self._index = index
        self._weights = weights
        self._chunks = np.arange(-(-weights // _CHUNK), dtype=np.int64)
        self._ids = np.array([*range(workers), _PAUSE], np.int64)
        self._own = np.zeros(4, np.float32)
        self._pause = np.zeros(4, np.float32)

    # --- workers ---

    def read(self) -> list[WorkerEntry]:
        """Return the entries of all workers."""
        return self._note(self._store.pull({WORKERS: self._ids})[WORKERS])

    def write(self, entry: WorkerEntry) -> None:
        """Replace the entry of this worker."""
        self.read()  # a server that was rolled back has another entry than the last one written
        self._store.push(*self._move(entry))

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
        pause = _decode(self._pause)
        return pause.session if pause.phase == WorkerPhase.PAUSED else 0

    def write_pause(self, session: int) -> None:
        """Publish that the workers of a session are to pause; 0 resumes them. Only the chief does."""
        self.read()
        wanted = _encode(WorkerEntry(WorkerPhase.PAUSED if session else WorkerPhase.UNKNOWN, session))
        gradient, self._pause = self._pause - wanted, wanted
        self._store.push({WORKERS: self._ids[-1:]}, {WORKERS: gradient[None, :]})

    # --- rendezvous ---

    def rendezvous(self) -> RendezvousPoint:
        """Return the newest rendezvous point of partially synchronous workers."""
        is_over, session, generation, port = (int(value) for value in self._rendezvous_row())
        return RendezvousPoint(session, generation, port, bool(is_over))

    def write_rendezvous(self, point: RendezvousPoint) -> None:
        """Publish a rendezvous point. Only the chief does."""
        row = np.array([point.is_over, point.session, point.generation, point.port], np.float32)
        gradient = self._rendezvous_row() - row
        self._store.push({WORKERS: np.array([_RENDEZVOUS], np.int64)}, {WORKERS: gradient[None, :]})

    # --- dense weights ---

    def weights(self) -> tuple[Floats, list[WorkerEntry]]:
        """Return the dense weights, and the entries of all workers."""
        rows = self._store.pull({WEIGHTS: self._chunks, WORKERS: self._ids})
        return rows[WEIGHTS].ravel()[: self._weights], self._note(rows[WORKERS])

    def add(self, change: Floats, entry: WorkerEntry) -> tuple[Floats, list[WorkerEntry]]:
        """Add to the weights and replace the entry of this worker, in one push; return ``weights``."""
        ids, grads = self._move(entry)
        self._store.push({**ids, WEIGHTS: self._chunks}, {**grads, WEIGHTS: -self._chunk(change)})
        return self.weights()

    # --- rows ---

    def _rendezvous_row(self) -> Floats:
        row: Floats = self._store.pull({WORKERS: np.array([_RENDEZVOUS], np.int64)})[WORKERS][0]
        return row

    def _move(self, entry: WorkerEntry) -> tuple[dict[str, NDArray[np.int64]], dict[str, Floats]]:
        """Return the push that replaces the entry of this worker."""
        wanted = _encode(entry)
        gradient, self._own = self._own - wanted, wanted
        return {WORKERS: self._ids[self._index : self._index + 1]}, {WORKERS: gradient[None, :]}

    def _note(self, rows: Floats) -> list[WorkerEntry]:
        self._own, self._pause = rows[self._index].copy(), rows[-1].copy()
        return [_decode(row) for row in rows[:-1]]

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


def _encode(entry: WorkerEntry) -> Floats:
    return np.array([entry.phase, entry.session, entry.steps % _HALF, entry.steps // _HALF], np.float32)


def _decode(row: Floats) -> WorkerEntry:
    phase, session, low, high = (int(value) for value in row)
    # Two processes with one index may leave the sum of two phases, until the next write.
    is_known = phase in WorkerPhase._value2member_map_
    return WorkerEntry(WorkerPhase(phase) if is_known else WorkerPhase.UNKNOWN, session, low + high * _HALF)

"""What several workers share beside the model's tables: the dense weights, and where each worker stands.

Both are tables of the parameter servers like any other: sharded, saved, restored with a server that was lost. Changes
are *added* (plain gradient descent with rate 1), so those of several workers all count, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.embedding import EmbeddingStore, Sgd, SliceSpec, TableSpec
from monolith.embedding.specs import JOB_TABLES
from monolith.training.groups.workers.rendezvous import RendezvousPoint

__all__ = [
    "DONE",
    "HELD",
    "READY",
    "STOPPING",
    "WEIGHTS",
    "SharedRows",
    "WorkerRow",
    "joined_weights",
    "shared_specs",
    "total_steps",
]

Floats = NDArray[np.float32]

WEIGHTS, WORKERS = f"{JOB_TABLES}dense_weights", f"{JOB_TABLES}workers"
_CHUNK = 256
_HALF = 1 << 20  # of a count of steps: float32 holds whole numbers up to 2**24 only

READY, DONE, STOPPING, HELD = 1, 2, 3, 4
"""States of a worker: at work; through with its data; of the chief only: everybody is to stop; standing still."""

# No worker has these numbers: whether workers are to stand still, and where they meet to step together.
_HOLD, _RENDEZVOUS = 1 << 40, (1 << 40) + 1


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """Where one worker stands."""

    state: int = 0
    """0 = never seen."""
    session: int = 0
    """Which start of the job this is about; a later one has another number."""
    steps: int = 0
    """Steps that it has taken."""

    def encode(self) -> Floats:
        """Return its row."""
        return np.array([self.state, self.session, self.steps % _HALF, self.steps // _HALF], np.float32)

    @classmethod
    def decode(cls, row: Floats) -> WorkerRow:
        """Return what ``encode`` wrote."""
        state, session, low, high = (int(value) for value in row)
        return cls(state, session, low + high * _HALF)


def shared_specs() -> list[TableSpec]:
    """Return the tables that a job of several workers has beside those of its model."""
    options: Any = {"nan_gradients": "error", "deterministic": True}
    return [
        TableSpec(WEIGHTS, [SliceSpec(_CHUNK, optimizer=Sgd(1.0))], **options),
        TableSpec(WORKERS, [SliceSpec(4, optimizer=Sgd(1.0))], **options),
    ]


class SharedRows:
    """The shared tables as one worker sees them.

    Only this worker writes its own row; everybody adds to the weights.

    Args:
        store: Has the tables of ``shared_specs``.
        index: Which worker this is.
        workers: How many there are.
        weights: How many numbers the dense weights are.
    """

    def __init__(self, store: EmbeddingStore, index: int, workers: int, weights: int) -> None:
        self._store = store
        self._index = index
        self._weights = weights
        self._chunks = np.arange(-(-weights // _CHUNK), dtype=np.int64)
        self._everyone = np.array([*range(workers), _HOLD], np.int64)
        self._own = np.zeros(4, np.float32)
        self._hold = np.zeros(4, np.float32)

    def read(self) -> list[WorkerRow]:
        """Return where all workers stand."""
        return self._noted(self._store.pull({WORKERS: self._everyone})[WORKERS])

    def write(self, row: WorkerRow) -> None:
        """Say where this worker stands."""
        self.read()  # a server that was taken back to an older state has another row than was written last
        self._store.push(*self._move(row))

    @property
    def held_session(self) -> int:
        """The start of the job whose workers are to stand still, as of the last look; 0 = nobody is."""
        hold = WorkerRow.decode(self._hold)
        return hold.session if hold.state == HELD else 0

    def write_hold(self, session: int) -> None:
        """Say that the workers of a start of the job are to stand still; 0 lets them go. One process may do so."""
        self.read()
        wanted = WorkerRow(HELD if session else 0, session).encode()
        gradient, self._hold = self._hold - wanted, wanted
        self._store.push({WORKERS: self._everyone[-1:]}, {WORKERS: gradient[None, :]})

    def rendezvous(self) -> RendezvousPoint:
        """Return the newest rendezvous point of workers that step together."""
        is_over, session, generation, port = (int(value) for value in self._rendezvous_row())
        return RendezvousPoint(session, generation, port, bool(is_over))

    def write_rendezvous(self, point: RendezvousPoint) -> None:
        """Publish a rendezvous point. Only the chief does."""
        row = np.array([point.is_over, point.session, point.generation, point.port], np.float32)
        gradient = self._rendezvous_row() - row
        self._store.push({WORKERS: np.array([_RENDEZVOUS], np.int64)}, {WORKERS: gradient[None, :]})

    def chief_session(self) -> int:
        """Return the session of the chief."""
        return self.read()[0].session

    def has_finished_worker(self, session: int) -> bool:
        """Return whether a worker other than the chief has finished a session."""
        return any((row.state, row.session) == (DONE, session) for row in self.read()[1:])

    def _rendezvous_row(self) -> Floats:
        row: Floats = self._store.pull({WORKERS: np.array([_RENDEZVOUS], np.int64)})[WORKERS][0]
        return row

    def add(self, change: Floats, row: WorkerRow) -> tuple[Floats, list[WorkerRow]]:
        """Add to the weights and say where this worker stands; return the weights and where all workers stand."""
        ids, grads = self._move(row)
        self._store.push({**ids, WEIGHTS: self._chunks}, {**grads, WEIGHTS: -self._chunked(change)})
        return self.weights()

    def weights(self) -> tuple[Floats, list[WorkerRow]]:
        """Return the weights as they are now, and where all workers stand."""
        found = self._store.pull({WEIGHTS: self._chunks, WORKERS: self._everyone})
        return found[WEIGHTS].ravel()[: self._weights], self._noted(found[WORKERS])

    def _move(self, row: WorkerRow) -> tuple[dict[str, NDArray[np.int64]], dict[str, Floats]]:
        wanted = row.encode()
        gradient, self._own = self._own - wanted, wanted
        return {WORKERS: self._everyone[self._index : self._index + 1]}, {WORKERS: gradient[None, :]}

    def _noted(self, rows: Floats) -> list[WorkerRow]:
        self._own, self._hold = rows[self._index].copy(), rows[-1].copy()
        return [WorkerRow.decode(row) for row in rows[:-1]]

    def _chunked(self, values: Floats) -> Floats:
        padded = np.zeros(len(self._chunks) * _CHUNK, np.float32)
        padded[: self._weights] = values
        return padded.reshape(-1, _CHUNK)


def joined_weights(ids: NDArray[np.int64], rows: Floats, weights: int) -> Floats:
    """Return the dense weights of all rows of their table, which come in any order."""
    found = np.zeros((-(-weights // _CHUNK), _CHUNK), np.float32)
    found[ids] = rows
    return found.reshape(-1)[:weights]


def total_steps(rows: Sequence[WorkerRow]) -> int:
    """Return the steps of all workers together."""
    return sum(row.steps for row in rows)

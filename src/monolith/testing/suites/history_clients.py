"""``HistoryClients``: clients that fill a ``History``, each in a thread and with a separate store."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import MonolithError
from monolith.core.thread_group import ThreadGroup
from monolith.embedding import EmbeddingStore
from monolith.testing.suites.history import Cells, History, Lookup, NotedPush

__all__ = ["HistoryClients", "NumbersStore", "read_numbers"]

TABLE = "numbers"
_MOST_KEYS = 6
_MOST_ADDED = 999
_SHARE_OF_LOOKUPS = 0.3
_END_S = 300.0
"""Timeout of the end of all clients: a client may retry a call until its own timeouts."""


class NumbersStore(EmbeddingStore, Protocol):
    """A store that its client closes."""

    def close(self) -> None:
        """Close the store."""


def read_numbers(store: EmbeddingStore, keys: Sequence[int]) -> Cells:
    """Return the rows of keys as whole numbers."""
    rows = store.pull({TABLE: np.array(keys, np.int64)})[TABLE]
    return {key: [round(float(cell)) for cell in row] for key, row in zip(keys, rows, strict=True)}


class HistoryClients:
    """Push and look up at random while the ``with`` block runs, and record every call in the history.

    Args:
        history: Records every call.
        open_store: Returns a store with the history's table, for one client alone.
        keys: Keys that they push to.
        seed: Seed of the calls; their timing depends on the machine.
        pause_s: Pause of each client between two calls.
        clock: Clock of the recorded times.
    """

    def __init__(
        self,
        history: History,
        open_store: Callable[[], NumbersStore],
        keys: Sequence[int],
        *,
        seed: int,
        pause_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self._history = history
        self._open = open_store
        self._keys = list(keys)
        self._pause_s = pause_s
        self._clock = clock or SystemClock()
        self._ending = threading.Event()
        self._progress = threading.Condition()
        self._done = 0
        self.failures: list[str] = []
        """Errors of abandoned calls, and errors that ended a client."""
        self._threads = ThreadGroup(
            {f"client {each}": partial(self._run, each, seed * 1009 + each) for each in range(history.clients)}
        )

    def __enter__(self) -> Self:
        self._threads.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        try:
            self._threads.join(_END_S)
        except MonolithError:
            if error is None:
                raise  # else the error of the block is raised, and that of the thread is in the log

    def wait_for(self, calls: int, timeout_s: float) -> bool:
        """Wait until so many further calls succeed; return False after the timeout."""
        with self._progress:
            wanted = self._done + calls
            return self._progress.wait_for(lambda: self._done >= wanted, timeout_s)

    def _run(self, client: int, seed: int) -> None:
        chance = random.Random(seed)
        try:
            store = self._open()
        except MonolithError as error:
            self.failures.append(f"client {client} cannot begin: {error}")
            return
        try:
            while not self._ending.wait(self._pause_s):
                try:
                    self._call(store, client, chance)
                except MonolithError as error:
                    self.failures.append(f"client {client}: {error}")
                    continue
                with self._progress:
                    self._done += 1
                    self._progress.notify_all()
        finally:
            store.close()

    def _call(self, store: EmbeddingStore, client: int, chance: random.Random) -> None:
        keys = sorted(chance.sample(self._keys, chance.randint(1, min(_MOST_KEYS, len(self._keys)))))
        if chance.random() < _SHARE_OF_LOOKUPS:
            start = self._clock.monotonic_s()
            cells = read_numbers(store, keys)
            self._history.lookups.append(Lookup(cells=cells, start=start, end=self._clock.monotonic_s()))
            return
        amounts = {key: chance.randint(1, _MOST_ADDED) for key in keys}
        grads = np.zeros((len(keys), self._history.clients), np.float32)
        grads[:, client] = [-amounts[key] for key in keys]
        start, end = self._clock.monotonic_s(), None
        try:
            store.push({TABLE: np.array(keys, np.int64)}, {TABLE: grads})
            end = self._clock.monotonic_s()
        finally:
            self._history.pushes.append(NotedPush(client=client, amounts=amounts, start=start, end=end))

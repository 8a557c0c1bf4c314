"""``Rendezvous``: connects workers that step together, at the start and after the loss of a worker.

NOTE: the protocol

    chief                                         worker i
      | open_store -> port                           |
      | publish (session, generation + 1, port)      |   on the parameter servers, by the board
      |                                              | read the point; host of the chief from discovery
      | store: here/0                                | store: here/i
      | wait until here/0 .. here/n-1 are set        | wait for `go`, or for a newer point
      | store: go                                    |
      | make_channels <----------------------------> | make_channels

A worker joins a generation at most once. A rendezvous that fails halfway is followed by one with the next generation.
The chief publishes ``is_over`` at the end of the training: a worker that comes late then ends too. A chief that finds a
finished worker of its session ends too, because that worker has taken the last step with this chief's gradients.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch.distributed as dist
from typing_extensions import override

from monolith.core.clock import Clock, Deadline
from monolith.core.errors import ClusterError
from monolith.embedding.ranks.channel import short_reason
from monolith.training.groups.workers.connections import (
    GroupAddress,
    Store,
    WorkerChannels,
    connect_store,
    make_channels,
    open_store,
)

__all__ = ["ChiefRendezvous", "Rendezvous", "RendezvousBoard", "RendezvousPoint", "WorkerRendezvous"]

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_LOG_S = 10.0


@dataclass(frozen=True, slots=True)
class RendezvousPoint:
    """Where workers connect; the chief publishes it."""

    session: int = 0
    """The session of the job."""
    generation: int = 0
    """Counts the rendezvous of a session: a group that has lost a worker needs another one."""
    port: int = 0
    """Port of the chief's store, on its machine."""
    is_over: bool = False
    """Whether the training of this session has ended."""


class RendezvousBoard(Protocol):
    """Where the chief publishes its rendezvous point: the state of the job on the parameter servers."""

    def rendezvous(self) -> RendezvousPoint:
        """Return the newest point."""
        ...

    def write_rendezvous(self, point: RendezvousPoint) -> None:
        """Publish a point. Only the chief does."""
        ...

    def chief_session(self) -> int:
        """Return the session of the chief."""
        ...

    def has_finished_worker(self, session: int) -> bool:
        """Return whether a worker other than the chief has finished a session."""
        ...


class Rendezvous(ABC):
    """Connects one worker with the others; see ``ChiefRendezvous`` and ``WorkerRendezvous``.

    Args:
        address: The address of this worker.
        clock: Measures the waits.
    """

    def __init__(self, address: GroupAddress, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._board: RendezvousBoard
        self._session: Callable[[], int]

    def begin(self, board: RendezvousBoard, session: Callable[[], int]) -> None:
        """Take the board and the session, which are known only when a run begins."""
        self._board, self._session = board, session

    def meet(self, is_stopped: Callable[[], bool]) -> WorkerChannels | None:
        """Wait for all workers; return the connections, or None when the training has ended.

        Args:
            is_stopped: Whether this worker has a request to end; it then waits no longer, and returns None.

        Raises:
            ClusterError: A worker did not come in time; the text names it.
        """
        logger.info("rendezvous started worker=%d workers=%d", self._address.index, self._address.size)
        try:
            return self._meet(_Wait(self._clock, self._address, is_stopped))
        except _Stopped:
            return None

    @abstractmethod
    def _meet(self, wait: _Wait) -> WorkerChannels | None:
        """Connect all workers, within a wait."""

    def end(self) -> None:
        """Publish the end of the training; only the chief does."""
        return

    def close(self) -> None:
        """Close the store."""
        return

    def _wait_in(self, store: Store, is_done: Callable[[], bool], wait: _Wait) -> None:
        """Wait in a store; raise ``RuntimeError`` when this rendezvous has failed."""
        while not is_done():
            wait.check(lambda: self._missing(store))
            self._clock.sleep_s(_POLL_S)

    def _missing(self, store: Store) -> list[int]:
        return [index for index in range(self._address.size) if not store.check([_here(index)])]


class ChiefRendezvous(Rendezvous):
    """The chief: publishes points, one generation after the other, in one store."""

    _store: Store = None
    _port = 0

    @override
    def _meet(self, wait: _Wait) -> WorkerChannels | None:
        if self._board.rendezvous() == self._over():
            return None
        if self._store is None:
            self._store, self._port = open_store(self._address)
        while True:
            generation = self._board.rendezvous().generation + 1
            self._board.write_rendezvous(RendezvousPoint(self._session(), generation, self._port))
            store = dist.PrefixStore(f"{self._session()}/{generation}", self._store)  # type: ignore[attr-defined]
            try:
                store.set(_here(0), "1")
                self._wait_in(store, lambda: self._has_ended() or not self._missing(store), wait)  # noqa: B023
                if self._has_ended():
                    return None
                store.set(_GO, "1")
                return make_channels(store, self._address)
            except RuntimeError as error:
                logger.warning("rendezvous failed, retrying reason=%r", short_reason(error))
            wait.check(list)

    @override
    def end(self) -> None:
        self._board.write_rendezvous(self._over())

    def _over(self) -> RendezvousPoint:
        return RendezvousPoint(self._session(), 0, 0, is_over=True)

    def _has_ended(self) -> bool:
        """Whether another worker has finished: it took the last step, with the gradients of this chief."""
        return self._board.has_finished_worker(self._session())

    @override
    def close(self) -> None:
        self._store = None


class WorkerRendezvous(Rendezvous):
    """Any other worker: joins the newest point of the chief.

    Args:
        address: The address of this worker.
        clock: Measures the waits.
        chief_host: Returns the host of the chief; None when discovery does not know it.
        on_new_session: Called when the chief has started another session; raises.
    """

    def __init__(
        self,
        address: GroupAddress,
        clock: Clock,
        *,
        chief_host: Callable[[], str | None],
        on_new_session: Callable[[], None],
    ) -> None:
        super().__init__(address, clock)
        self._chief_host = chief_host
        self._on_new_session = on_new_session
        self._joined: RendezvousPoint | None = None

    @override
    def _meet(self, wait: _Wait) -> WorkerChannels | None:
        while True:
            point = self._board.rendezvous()
            if self._board.chief_session() != self._session():
                self._on_new_session()
            if point.session == self._session() and point.is_over:
                return None
            if point.session == self._session() and point != self._joined:
                self._joined = point  # no worker joins a point twice, even after a failure
                try:
                    return self._join(point, wait)
                except RuntimeError as error:
                    logger.warning("rendezvous not joined reason=%r", short_reason(error))
            wait.check(lambda: [0])
            self._clock.sleep_s(_POLL_S)

    def _join(self, point: RendezvousPoint, wait: _Wait) -> WorkerChannels:
        host = self._chief_host()
        if host is None:
            raise RuntimeError("discovery does not know the chief")
        prefix = f"{point.session}/{point.generation}"
        store = dist.PrefixStore(prefix, connect_store(host, point.port))  # type: ignore[attr-defined]
        if store.check([_GO]):
            raise RuntimeError("the rendezvous has ended without this worker; the next one follows")
        store.set(_here(self._address.index), "1")
        self._wait_in(store, lambda: self._may_go(store, point), wait)
        return make_channels(store, self._address)

    def _may_go(self, store: Store, point: RendezvousPoint) -> bool:
        if store.check([_GO]):
            return True
        if self._board.rendezvous() != point:
            raise RuntimeError("the chief has published another rendezvous")
        return False


class _Stopped(Exception):
    """This worker has a request to end."""


class _Wait:
    """A wait with a deadline that logs the missing workers periodically."""

    def __init__(self, clock: Clock, address: GroupAddress, is_stopped: Callable[[], bool]) -> None:
        self._address = address
        self._is_stopped = is_stopped
        self._clock = clock
        self._deadline = Deadline(clock, address.rendezvous_timeout_s)
        self._next_log = Deadline(clock, _LOG_S)

    def check(self, missing: Callable[[], list[int]]) -> None:
        """Return while the wait may continue; raise otherwise."""
        if self._is_stopped():
            logger.warning("rendezvous abandoned, worker stops missing=%s", _names(missing()))
            raise _Stopped
        if self._deadline.is_past:
            raise ClusterError(
                f"worker {self._address.index} of {self._address.size} waited {self._address.rendezvous_timeout_s:g} s "
                f"for {_names(missing())}; partially synchronous training needs all workers: restart the missing ones, "
                "or raise session_creation_timeout_secs"
            )
        if self._next_log.is_past:
            logger.warning("waiting for workers missing=%s", _names(missing()))
            self._next_log = Deadline(self._clock, _LOG_S)


def _names(workers: list[int]) -> str:
    if not workers:
        return "workers that came and were lost again"
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}"


def _here(index: int) -> str:
    return f"here/{index}"


_GO = "go"

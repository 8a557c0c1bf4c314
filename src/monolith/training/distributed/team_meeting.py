"""How workers that step together find each other, at the beginning and whenever one of them was lost.

The chief opens a meeting: it says its port and a new number in a row on the servers; where its machine is, discovery
knows. Everybody comes, or those who wait say who is missing. A meeting that fails half-way is followed by another one.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch.distributed as dist

from monolith.core.clock import Clock, Deadline
from monolith.core.errors import ClusterError
from monolith.training.distributed.shared_rows import DONE, Meeting, SharedRows
from monolith.training.distributed.team_group import (
    Room,
    TeamChannels,
    TeamPlace,
    connect_room,
    make_channels,
    open_room,
)
from monolith.training.synchronous.peers import told_reason

__all__ = ["ChiefMeeting", "TeamMeeting", "WorkerMeeting"]

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_TELL_S = 10.0


class TeamMeeting(ABC):
    """Where one worker meets the others; ``ChiefMeeting`` or ``WorkerMeeting``.

    Args:
        place: This worker.
        clock: Measures the waits.
    """

    def __init__(self, place: TeamPlace, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._rows: SharedRows
        self._session: Callable[[], int]

    def begin(self, rows: SharedRows, session: Callable[[], int]) -> None:
        """Take what is known only when a run begins: the shared rows, and which start of the job this is."""
        self._rows, self._session = rows, session

    def meet(self, is_asked_to_end: Callable[[], bool]) -> TeamChannels | None:
        """Wait for everybody; return the connections, or None when the training has ended for all.

        Args:
            is_asked_to_end: Whether this worker waits for nobody any more; it has ended for all then too.

        Raises:
            ClusterError: Somebody did not come in time; the text says who.
        """
        logger.info("this worker meets the others index=%d size=%d", self._place.index, self._place.size)
        try:
            return self._meet(_Patience(self._clock, self._place, is_asked_to_end))
        except _NotWaiting:
            return None

    @abstractmethod
    def _meet(self, waiting: _Patience) -> TeamChannels | None:
        """Wait for everybody, with so much patience."""

    def end(self) -> None:
        """Say that nobody meets any more; the chief does."""
        return

    def close(self) -> None:
        """Let go of what was opened."""
        return

    def _wait(self, room: Room, is_done: Callable[[], bool], waiting: _Patience) -> None:
        """Wait in a room; a ``RuntimeError`` says that this meeting has failed."""
        while not is_done():
            waiting.go_on(lambda: self._missing(room))
            self._clock.sleep_s(_POLL_S)

    def _missing(self, room: Room) -> list[int]:
        return [index for index in range(self._place.size) if not room.check([_here(index)])]


class ChiefMeeting(TeamMeeting):
    """The chief: opens meetings, one after the other, in one room."""

    _room: Room = None
    _port = 0

    def _meet(self, waiting: _Patience) -> TeamChannels | None:
        """Open meetings until everybody comes to one."""
        if self._rows.meeting() == self._over():
            return None
        if self._room is None:
            self._room, self._port = open_room(self._place)
        while True:
            generation = self._rows.meeting().generation + 1
            self._rows.write_meeting(Meeting(self._session(), generation, self._port))
            room = dist.PrefixStore(f"{self._session()}/{generation}", self._room)  # type: ignore[attr-defined]
            try:
                room.set(_here(0), "1")
                self._wait(room, lambda: self._has_ended() or not self._missing(room), waiting)  # noqa: B023
                if self._has_ended():
                    return None
                room.set(_GO, "1")
                return make_channels(room, self._place)
            except RuntimeError as error:
                logger.warning("workers could not connect; they meet again reason=%r", told_reason(error))
            waiting.go_on(list)

    def end(self) -> None:
        """Say that nobody meets any more."""
        self._rows.write_meeting(self._over())

    def _over(self) -> Meeting:
        return Meeting(self._session(), 0, 0, is_over=True)

    def _has_ended(self) -> bool:
        """Whether another worker is through: it took the last step, with what this one gave to it."""
        own = self._session()
        return any((row.state, row.session) == (DONE, own) for row in self._rows.read()[1:])

    def close(self) -> None:
        """Close the room."""
        self._room = None


class WorkerMeeting(TeamMeeting):
    """Any other worker: goes to the meeting that the chief has opened last.

    Args:
        place: This worker.
        clock: Measures the waits.
        chief_host: Where the chief is now; None when nobody knows.
        on_new_session: Called when the chief has begun the training anew; raises.
    """

    def __init__(
        self,
        place: TeamPlace,
        clock: Clock,
        *,
        chief_host: Callable[[], str | None],
        on_new_session: Callable[[], None],
    ) -> None:
        super().__init__(place, clock)
        self._chief_host = chief_host
        self._on_new_session = on_new_session
        self._left: Meeting | None = None

    def _meet(self, waiting: _Patience) -> TeamChannels | None:
        """Go to the meetings that are opened, until everybody has come to one."""
        while True:
            found = self._rows.meeting()
            chief = self._rows.read()[0]
            if chief.session != self._session():
                self._on_new_session()
            if found.session == self._session() and found.is_over:
                return None
            if found.session == self._session() and found != self._left:
                self._left = found  # whatever becomes of it: nobody comes to a meeting twice
                try:
                    return self._join(found, waiting)
                except RuntimeError as error:
                    logger.warning("this worker could not join the others reason=%r", told_reason(error))
            waiting.go_on(lambda: [0])
            self._clock.sleep_s(_POLL_S)

    def _join(self, meeting: Meeting, waiting: _Patience) -> TeamChannels:
        host = self._chief_host()
        if host is None:
            raise RuntimeError("discovery does not know the chief")
        reached = connect_room(host, meeting.port)
        prefix = f"{meeting.session}/{meeting.generation}"
        room = dist.PrefixStore(prefix, reached)  # type: ignore[attr-defined]
        if room.check([_GO]):
            raise RuntimeError("that meeting has begun without this worker; the next one follows")
        room.set(_here(self._place.index), "1")
        self._wait(room, lambda: self._may_go(room, meeting), waiting)
        return make_channels(room, self._place)

    def _may_go(self, room: Room, meeting: Meeting) -> bool:
        if room.check([_GO]):
            return True
        if self._rows.meeting() != meeting:
            raise RuntimeError("the chief has opened another meeting")
        return False


class _NotWaiting(Exception):
    """This worker was asked to end."""


class _Patience:
    """A wait that tells of itself now and then, and ends."""

    def __init__(self, clock: Clock, place: TeamPlace, is_asked_to_end: Callable[[], bool]) -> None:
        self._place = place
        self._is_asked_to_end = is_asked_to_end
        self._clock = clock
        self._deadline = Deadline(clock, place.meeting_timeout_s)
        self._next = Deadline(clock, _TELL_S)

    def go_on(self, missing: Callable[[], list[int]]) -> None:
        """Wait on, or raise."""
        if self._is_asked_to_end():
            logger.warning("this worker is asked to end, and waits no more missing=%s", _named(missing()))
            raise _NotWaiting
        if self._deadline.is_past:
            raise ClusterError(
                f"worker {self._place.index} of {self._place.size} has waited {self._place.meeting_timeout_s:g} s for "
                f"{_named(missing())}; workers that step together need all of them: start those again, or raise "
                "session_creation_timeout_secs"
            )
        if self._next.is_past:
            logger.warning("this worker waits for others missing=%s", _named(missing()))
            self._next = Deadline(self._clock, _TELL_S)


def _named(workers: list[int]) -> str:
    if not workers:
        return "workers that came and were lost again"
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}"


def _here(index: int) -> str:
    return f"here/{index}"


_GO = "go"

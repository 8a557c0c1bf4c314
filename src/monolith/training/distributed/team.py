"""Workers that step together: in each round they add up what they learnt, and go on from the same weights.

A round is made by all workers or by none of those that fail in it: when one is lost the others meet again, with it or
with the process that took its place, and make the round anew. One who has finished a round while others failed in it
tells them so, and gives them its weights: what they had given is in there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

from monolith.training.distributed.team_group import TeamChannels
from monolith.training.distributed.team_meeting import TeamMeeting
from monolith.training.synchronous.peers import PeersLost

__all__ = ["DenseState", "RoundTotals", "Team", "TeamOver", "Wishes"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TeamOver(Exception):
    """The training has ended for all workers; raised where a round would begin.

    Attributes:
        is_out_of_data: Whether this worker has read all of its data.
    """

    def __init__(self, *, is_out_of_data: bool = False) -> None:
        super().__init__()
        self.is_out_of_data = is_out_of_data


class DenseState(Protocol):
    """What workers have the same bytes of after each round."""

    def pack(self) -> bytes:
        """Return it."""
        ...

    def take(self, packed: bytes) -> None:
        """Go on from what another worker packed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What one worker was asked for, told to all in the next round."""

    stops: bool = False
    """To end the run."""
    holds: bool = False
    """To stand still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTotals:
    """One round over all workers."""

    samples: int = 0
    """Examples that were learnt from; a round without any is the last."""
    stopping: int = 0
    """Workers that were asked to end the run."""
    holding: int = 0
    """Workers that were asked to stand still."""


class Team:
    """All workers as one of them sees them.

    Args:
        meeting: Where they meet.
    """

    def __init__(self, meeting: TeamMeeting) -> None:
        self.meeting = meeting
        self.rounds = 0
        """Steps that all workers together have finished, over all runs of the job."""
        self.totals = RoundTotals()
        """Of the last of them."""
        self.wishes: Callable[[], Wishes] = Wishes
        """What this worker was asked for."""
        self.is_incomplete = False
        """Whether this worker was asked to end while somebody was missing."""
        self._channels: TeamChannels | None = None
        self._state: DenseState
        self._is_current = False

    def join(self, state: DenseState, rounds: int, *, is_current: bool) -> None:
        """Meet the others, and go on from the weights of the one that has come farthest, the chief first.

        Args:
            state: The weights of this worker.
            rounds: Steps behind them.
            is_current: Whether they are what the training stands at; not when the others went on meanwhile.

        Raises:
            TeamOver: There is nothing to join any more.
        """
        self._state, self.rounds, self._is_current = state, rounds, is_current
        self._meet()

    def together(self, round_of: Callable[[TeamChannels], tuple[RoundTotals, T]]) -> T | None:
        """Make one round; return what it gave.

        Args:
            round_of: Adds up what this worker gives; called again when a worker was lost on the way.

        Returns:
            None when others have finished the round that failed here: this worker has their weights already.

        Raises:
            TeamOver: The training has ended for all.
        """
        number = self.rounds
        while True:
            if self._channels is not None:
                try:
                    self.totals, found = round_of(self._channels)
                except PeersLost as lost:
                    reason = lost.reason
                else:
                    self.rounds += 1
                    return found
                # Out of the handler: an error that is kept keeps the connections.
                logger.warning("workers lost each other, they meet again step=%d reason=%r", self.rounds, reason)
                self.leave()
            self._meet()
            if self.rounds > number:
                return None

    def leave(self) -> None:
        """Let go of the others, who see it."""
        if self._channels is not None:
            self._channels.close()
            self._channels = None

    def close(self) -> None:
        """Leave, and let go of where they met; a second call does nothing."""
        self.leave()
        self.meeting.close()

    def _meet(self) -> None:
        while self._channels is None:
            met = self.meeting.meet(lambda: self.wishes().stops)
            if met is None:
                self.is_incomplete = self.wishes().stops
                raise TeamOver
            try:
                self._level(met)
            except PeersLost as lost:
                reason = lost.reason
            else:
                self._channels = met
                return
            met.close()
            logger.warning("workers lost each other while they met reason=%r", reason)

    def _level(self, channels: TeamChannels) -> None:
        """Give all workers the weights of one."""
        words = channels.words
        said = words.numbers([self.rounds + 1 if self._is_current else 0, self.rounds])
        source = int(said[:, 0].argmax())
        is_source = words.rank == source
        totals = words.from_chief(json.dumps(asdict(self.totals)).encode(), source)
        packed = words.from_chief(self._state.pack() if is_source else b"", source)
        if not is_source:
            self._state.take(packed)
            self.totals = RoundTotals(**json.loads(totals))
        self.rounds, self._is_current = int(said[source, 1]), True
        logger.info("workers step together step=%d workers=%d weights_of=%d", self.rounds, words.size, source)

"""``SyncGroup``: workers that sum their gradients in rounds, and continue from the same weights.

NOTE: one round, and the loss of a worker

    worker 0        worker 1        worker 2
       |  all_reduce   |  all_reduce   |          a round: every worker adds its gradients
       |<------------->|<------------->|
    round n done    round n done       X          worker 2 is killed before it has the sum
       |               |
    PeersLost       PeersLost                     the next call fails at the others
       |  rendezvous   |  rendezvous   |          generation + 1: worker 2, or its successor, joins
       |<------------->|<------------->|
       |  weights of the worker with the most finished rounds, the chief first
       |-------------->|-------------->|
    round n+1       round n+1       round n+1

All workers finish a round, or those that fail in it repeat it. A worker may have finished a round in which others
failed. It is then ahead, so the others get its weights, which contain their gradients, and do not repeat the round.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

from monolith.embedding.ranks.channel import PeersLost
from monolith.training.groups.base import ControlFlags, GroupClosed
from monolith.training.groups.workers.connections import WorkerChannels
from monolith.training.groups.workers.rendezvous import Rendezvous

__all__ = ["SharedState", "RoundTotals", "SyncGroup"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SharedState(Protocol):
    """The state that is equal at all workers after each round."""

    def pack(self) -> bytes:
        """Return the state as bytes."""
        ...

    def load(self, packed: bytes) -> None:
        """Replace the state by that of another worker."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTotals:
    """Counts of one round over all workers."""

    samples: int = 0
    """Examples in the round; a round without any is the last."""
    stopping: int = 0
    """Workers with a request to end the run."""
    pausing: int = 0
    """Workers with a request to pause."""


class SyncGroup:
    """All workers, as one of them sees them.

    Args:
        rendezvous: Connects this worker with the others.
    """

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rendezvous = rendezvous
        self.rounds = 0
        """Steps that all workers together have finished, over all runs of the job."""
        self.totals = RoundTotals()
        """Counts of the last round."""
        self.flags: Callable[[], ControlFlags] = ControlFlags
        """Returns the requests that this worker has received."""
        self.is_incomplete = False
        """Whether this worker was stopped while it waited for a missing worker."""
        self._channels: WorkerChannels | None = None
        self._state: SharedState
        self._is_current = False

    def join(self, state: SharedState, rounds: int, *, is_current: bool) -> None:
        """Connect with the others, and load the weights of the worker with the most rounds, the chief first.

        Args:
            state: The weights of this worker.
            rounds: Steps behind them.
            is_current: Whether the training is at these weights; False when the others continued without this worker.

        Raises:
            GroupClosed: The training has ended.
        """
        self._state, self.rounds, self._is_current = state, rounds, is_current
        self._connect()

    def run_round(self, round_of: Callable[[WorkerChannels], tuple[RoundTotals, T]]) -> T | None:
        """Run one round; return its result.

        Args:
            round_of: Sums the gradients of all workers; called again after the loss of a worker.

        Returns:
            None when other workers have finished the round that failed here: this worker has loaded their weights.

        Raises:
            GroupClosed: The training has ended for all workers.
        """
        number = self.rounds
        while True:
            if self._channels is not None:
                try:
                    self.totals, result = round_of(self._channels)
                except PeersLost as lost:
                    reason = lost.reason
                else:
                    self.rounds += 1
                    return result
                # Outside of the handler: a live exception keeps the connections open.
                logger.warning("workers disconnected, reconnecting step=%d reason=%r", self.rounds, reason)
                self.leave()
            self._connect()
            if self.rounds > number:
                return None

    def leave(self) -> None:
        """Close the connections to the other workers, which notice."""
        if self._channels is not None:
            self._channels.close()
            self._channels = None

    def close(self) -> None:
        """Leave, and close the rendezvous; a second call does nothing."""
        self.leave()
        self.rendezvous.close()

    def _connect(self) -> None:
        while self._channels is None:
            channels = self.rendezvous.meet(lambda: self.flags().stops)
            if channels is None:
                self.is_incomplete = self.flags().stops
                raise GroupClosed
            try:
                self._synchronize(channels)
            except PeersLost as lost:
                reason = lost.reason
            else:
                self._channels = channels
                return
            channels.close()
            logger.warning("workers disconnected during rendezvous reason=%r", reason)

    def _synchronize(self, channels: WorkerChannels) -> None:
        """Give all workers the weights of one."""
        words = channels.words
        every = words.all_gather_ints([self.rounds + 1 if self._is_current else 0, self.rounds])
        source = int(every[:, 0].argmax())
        is_source = words.rank == source
        totals = words.broadcast_bytes(json.dumps(asdict(self.totals)).encode(), source)
        packed = words.broadcast_bytes(self._state.pack() if is_source else b"", source)
        if not is_source:
            self._state.load(packed)
            self.totals = RoundTotals(**json.loads(totals))
        self.rounds, self._is_current = int(every[source, 1]), True
        logger.info("workers connected step=%d workers=%d weights_of=%d", self.rounds, words.size, source)

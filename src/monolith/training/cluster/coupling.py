"""How a worker and the other workers of a job depend on each other between steps.

``FreeRunning`` workers step alone: they exchange weights through the servers and read each other's progress there.
``Lockstep`` workers have equal weights after each step and agree on pauses and the end in each round. Their chief keeps
a copy of the weights on the servers, for a job whose workers are all lost and for the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from monolith.training.cluster.job_state import JobState
from monolith.training.groups.workers import SyncGroup

__all__ = ["Coupling", "FreeRunning", "Lockstep"]

_MISSING_S = 5.0


class Coupling(Protocol):
    """The dependence of a worker on the others."""

    @property
    def is_lockstep(self) -> bool:
        """True if all workers take the same steps, and so have the same weights."""
        ...

    @property
    def is_pausing(self) -> bool:
        """True if a lockstep worker asked for a pause in the last round."""
        ...

    def begin(self, state: JobState, session: Callable[[], int]) -> None:
        """Start the rendezvous of the workers in a session."""
        ...

    def end(self) -> None:
        """Announce the end of training, also to workers that were disconnected in the last step."""
        ...

    def limit_end_wait_s(self, timeout_s: float) -> float:
        """Return the timeout of the chief's wait for the other workers at the end."""
        ...


class FreeRunning:
    """Workers that step alone."""

    is_lockstep = False
    is_pausing = False

    def begin(self, state: JobState, session: Callable[[], int]) -> None:
        """Do nothing: free-running workers need no rendezvous."""

    def end(self) -> None:
        """Do nothing: the entries on the servers announce the end."""

    def limit_end_wait_s(self, timeout_s: float) -> float:
        """Return ``timeout_s``."""
        return timeout_s


class Lockstep:
    """Workers that step together.

    Args:
        sync: The connections to all workers.
    """

    is_lockstep = True

    def __init__(self, sync: SyncGroup) -> None:
        self._sync = sync

    @property
    def is_pausing(self) -> bool:
        """True if a worker asked for a pause in the last round."""
        return self._sync.totals.pausing > 0

    def begin(self, state: JobState, session: Callable[[], int]) -> None:
        """Start the rendezvous of the workers in a session."""
        self._sync.rendezvous.begin(state, session)

    def end(self) -> None:
        """Announce the end of training, also to workers that were disconnected in the last step."""
        self._sync.rendezvous.end()
        self._sync.leave()

    def limit_end_wait_s(self, timeout_s: float) -> float:
        """Return a short timeout if a worker never joined, so that workers that wait for it exit promptly."""
        return min(timeout_s, _MISSING_S) if self._sync.is_incomplete else timeout_s

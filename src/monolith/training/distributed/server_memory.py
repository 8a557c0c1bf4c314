"""The chief's watch over the memory of the servers, so that none of them is ended by the system for it.

A server keeps its own tables within their limit by refusing new rows (``monolith.ps.health``), which ends a training
with an error. This hook acts earlier, when a server says that it is nearly full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from monolith.core.errors import ClusterError
from monolith.ps import Security
from monolith.ps.health_client import HealthClient
from monolith.ps.messages import HealthCheckResponse
from monolith.training.config.cluster import MemoryAction
from monolith.training.control.gate import Gate, RunGate
from monolith.training.hooks.base import Hook
from monolith.training.hooks.interval import Interval
from monolith.training.run import Run, StepResult

__all__ = ["ServerMemoryHook"]

logger = logging.getLogger(__name__)

EVERY_S = 5.0
"""Seconds from one look to the next."""
_FULL = {"DEGRADED", "UNHEALTHY"}


class ServerMemoryHook(Hook):
    """Looks at the health of all servers, and acts when one is nearly full.

    Args:
        addresses: The servers, by index.
        security: TLS and token of the servers.
        action: stop = save and end the job; evict = remove expired rows, and stop when that is too little; hold = let
            all workers stand still, for a person to act.
        evict: Removes the expired rows of all servers, and says how many.
        gate: What holds the workers; None = the run itself.
        every_s: Seconds of the run's clock from one look to the next.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        security: Security,
        action: MemoryAction,
        *,
        evict: Callable[[], int],
        gate: Gate | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._addresses = addresses
        self._security = security
        self._action = action
        self._evict = evict
        self._gate = gate
        self._interval = Interval(every_s)
        self._client: HealthClient | None = None
        self._has_acted = False

    def on_start(self, run: Run) -> None:
        """Begin anew."""
        self._interval.reset()
        self._has_acted = False

    def after_step(self, run: Run, result: StepResult) -> None:
        """Look when it is time."""
        if not self._interval.is_due(run.clock.monotonic_s()):
            return
        try:
            full = self._full_servers()
        except ClusterError as error:  # whoever trains meets it too, and knows what to do
            logger.warning("the servers' memory is not known error=%s", error)
            return
        if not full:
            self._has_acted = False
        elif not self._has_acted:
            self._act(run, full)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Let the connections go."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _full_servers(self) -> list[str]:
        if self._client is None:
            self._client = HealthClient(self._addresses, security=self._security, timeout_s=EVERY_S)
        found = self._client.check_all()
        names = HealthCheckResponse.Status.Name
        return [f"server {index}: {one.message}" for index, one in enumerate(found) if names(one.status) in _FULL]

    def _act(self, run: Run, full: list[str]) -> None:
        self._has_acted = True
        told = "; ".join(full)
        if self._action == "evict":
            rows = self._evict()
            left = self._full_servers()
            logger.warning("servers are nearly full, expired rows were removed rows=%d servers=%s", rows, told)
            if not left:
                self._has_acted = False
                return
            told = "; ".join(left)
        if self._action == "hold":
            (RunGate(run) if self._gate is None else self._gate).place()
            logger.error("servers are nearly full, the workers are held: make room, then resume, or stop; %s", told)
            return
        logger.error(
            "servers are nearly full, the job is saved and ends: give them more memory, or more of them; %s", told
        )
        run.stop(f"servers are nearly full: {told}")

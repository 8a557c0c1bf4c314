"""``ServerMemoryHook``: the chief watches the memory of the servers, and acts before the system kills one.

A server keeps its tables within their limit by refusing new rows (``monolith.ps.health``), which ends a training with
an error. This hook acts earlier, when a server reports that it is nearly full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from typing_extensions import override

from monolith.core.errors import ClusterError, ExpiryRefused
from monolith.ps import Security
from monolith.ps.health import NEARLY_FULL
from monolith.ps.health_client import HealthClient
from monolith.training.config.cluster import MemoryAction
from monolith.training.control.pause import PauseControl, RunPause
from monolith.training.hooks.base import Hook
from monolith.training.hooks.interval import Interval
from monolith.training.run import Run, StepResult

__all__ = ["ServerMemoryHook"]

logger = logging.getLogger(__name__)

EVERY_S = 5.0
"""Seconds between two checks."""


class ServerMemoryHook(Hook):
    """Checks the health of all servers, and acts when one is nearly full.

    Args:
        addresses: The servers, by index.
        security: TLS and token of the servers.
        action: stop = save and end the job; evict = remove expired rows, and stop when that is too little; hold =
            pause all workers, for an operator to act. Servers take evict_oldest alone, without this hook.
        evict: Removes the expired rows of all servers, and returns their number.
        pause_control: Pauses the workers; None = the run itself.
        every_s: Seconds of the run's clock between two checks.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        security: Security,
        action: MemoryAction,
        *,
        evict: Callable[[], int],
        pause_control: PauseControl | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._addresses = addresses
        self._security = security
        self._action = action
        self._evict = evict
        self._pause_control = pause_control
        self._interval = Interval(every_s)
        self._client: HealthClient | None = None
        self._has_acted = False

    @override
    def on_start(self, run: Run) -> None:
        self._interval.reset()
        self._has_acted = False

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        if not self._interval.is_due(run.clock.monotonic_s()):
            return
        try:
            full = self._full_servers()
        except ClusterError as error:  # the training meets the same error, and handles it
            logger.warning("server health unknown error=%s", error)
            return
        if not full:
            self._has_acted = False
        elif not self._has_acted:
            self._act(run, full)

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _full_servers(self) -> list[str]:
        if self._client is None:
            self._client = HealthClient(self._addresses, security=self._security, timeout_s=EVERY_S)
        health = self._client.check_all()
        # The status has other reasons too, such as a delta log that is not written.
        full = [each for each in enumerate(health) if each[1].message.startswith(NEARLY_FULL)]
        return [f"server {index}: {one.message}" for index, one in full]

    def _act(self, run: Run, full: list[str]) -> None:
        self._has_acted = True
        servers = "; ".join(full)
        if self._action == "evict":
            rows = self._evict_expired()
            left = self._full_servers()
            logger.warning("servers nearly full, expired rows removed rows=%d servers=%s", rows, servers)
            if not left:
                self._has_acted = False
                return
            servers = "; ".join(left)
        if self._action == "hold":
            (RunPause(run) if self._pause_control is None else self._pause_control).pause()
            logger.error("servers nearly full, workers paused: free memory, then resume, or stop servers=%s", servers)
            return
        logger.error(
            "servers nearly full, saving and ending the job: give more memory, or more servers servers=%s", servers
        )
        run.stop(f"servers are nearly full: {servers}")

    def _evict_expired(self) -> int:
        try:
            return self._evict()
        except ExpiryRefused as error:  # the rows stay; the job can still save
            logger.error("eviction refused error=%s", error)
            return 0

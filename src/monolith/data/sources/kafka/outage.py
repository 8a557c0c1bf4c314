"""``Outage``: detects lost brokers, logs them once, and raises when they stay away too long. Imports no client."""

from __future__ import annotations

import logging
from collections.abc import Callable

from monolith.core.clock import Clock
from monolith.core.errors import RetriesExhausted

__all__ = ["Outage"]

logger = logging.getLogger(__name__)


class Outage:
    """Measures the time without brokers. The client reconnects by itself; this class only watches.

    Args:
        servers: The brokers' name in errors.
        max_s: Longest outage before ``is_over`` raises.
        clock: Time source.
        count: Called once for each outage.
    """

    def __init__(self, servers: str, max_s: float, clock: Clock, count: Callable[[], None]) -> None:
        self._servers = servers
        self._max_s = max_s
        self._clock = clock
        self._count = count
        self._since_s: float | None = None
        self._reason = ""
        self._is_logged = False

    @property
    def is_suspected(self) -> bool:
        """True if the client has lost all brokers and none has answered since."""
        return self._since_s is not None

    def suspect(self, reason: str) -> None:
        """Start the watch: the client has lost all brokers, or they closed idle connections."""
        if self._since_s is None:
            self._since_s = self._clock.monotonic_s()
            self._reason = reason

    def is_over(self, broker_answers: Callable[[], bool]) -> bool:
        """Probe a broker while an outage is suspected; return True when the broker answers again.

        Raises:
            RetriesExhausted: The outage lasted longer than the limit.
        """
        if self._since_s is None:
            return False
        has_answer = broker_answers()
        lasted_s = self._clock.monotonic_s() - self._since_s
        if has_answer:
            if self._is_logged:
                logger.warning("kafka brokers reconnected servers=%s after_s=%.1f", self._servers, lasted_s)
            self._since_s, self._is_logged = None, False
            return True
        if not self._is_logged:
            self._is_logged = True
            self._count()
            logger.warning("kafka brokers lost, reconnecting servers=%s error=%s", self._servers, self._reason)
        if lasted_s > self._max_s:
            raise RetriesExhausted(
                f"no broker of {self._servers} has answered for {lasted_s:.0f} s, and max_outage_s is {self._max_s:g}: "
                f"{self._reason}; check the brokers and the network"
            )
        return False

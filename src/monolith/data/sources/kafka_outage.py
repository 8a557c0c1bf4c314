"""Brokers that are out of reach: noticed, told once, waited for, and given up in the end. Knows no client."""

from __future__ import annotations

import logging
from collections.abc import Callable

from monolith.core.clock import Clock
from monolith.core.errors import RetriesExhausted

__all__ = ["Outage"]

logger = logging.getLogger(__name__)


class Outage:
    """The time without brokers. The client connects again by itself; this is the watch beside it.

    Args:
        servers: What to call the brokers in errors.
        max_s: How long an outage may last.
        clock: Where the time comes from.
        count: Called once for each outage.
    """

    def __init__(self, servers: str, max_s: float, clock: Clock, count: Callable[[], None]) -> None:
        self._servers = servers
        self._max_s = max_s
        self._clock = clock
        self._count = count
        self._since_s: float | None = None
        self._reason = ""
        self._is_told = False

    @property
    def is_suspected(self) -> bool:
        """Whether the client has lost all brokers and none has answered since."""
        return self._since_s is not None

    def suspect(self, reason: str) -> None:
        """Take note that the client has lost all brokers. Idle connections may be closed, so it is only suspected."""
        if self._since_s is None:
            self._since_s = self._clock.monotonic_s()
            self._reason = reason

    def is_over(self, broker_answers: Callable[[], bool]) -> bool:
        """Ask a broker when they are suspected to be lost; return True when one is found to be back.

        Raises:
            RetriesExhausted: They have been out of reach for longer than the limit.
        """
        if self._since_s is None:
            return False
        has_answer = broker_answers()
        lasted_s = self._clock.monotonic_s() - self._since_s
        if has_answer:
            if self._is_told:
                logger.warning("kafka brokers are back servers=%s after_s=%.1f", self._servers, lasted_s)
            self._since_s, self._is_told = None, False
            return True
        if not self._is_told:
            self._is_told = True
            self._count()
            logger.warning("kafka brokers are lost, trying on servers=%s error=%s", self._servers, self._reason)
        if lasted_s > self._max_s:
            raise RetriesExhausted(
                f"no broker of {self._servers} has answered for {lasted_s:.0f} s, and max_outage_s is {self._max_s:g}: "
                f"{self._reason}; check the brokers and the network"
            )
        return False

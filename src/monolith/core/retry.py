"""Retry with a policy object: the one place where a failed call is tried again.

It decides *when* to call again and when to stop. What failed, and whether it may be repeated at all, the error says
(``ClusterError.retryable``) or the caller does; this module knows no transport.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ClusterError, ConfigError, RetriesExhausted

__all__ = ["RetryPolicy", "is_retryable", "retry"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How often, and with what pauses, a call is repeated.

    The pause before attempt ``n + 1`` is ``initial_backoff_s * multiplier ** (n - 1)``, at most ``max_backoff_s``,
    then shortened by a random share of up to ``jitter`` so that many clients do not come back together.
    """

    attempts: int = 5
    """Calls in all, the first one included."""

    initial_backoff_s: float = 0.1
    """The pause after the first failure."""

    max_backoff_s: float = 10.0
    """No pause is longer than this."""

    multiplier: float = 2.0
    """Each pause is this many times the one before."""

    jitter: float = 0.5
    """The largest share of a pause that chance may take away, from 0 (none) to 1."""

    seed: int | None = None
    """Seed of the jitter; ``None`` draws a fresh one for each call of ``retry``."""

    deadline_s: float | None = None
    """No attempt starts later than this after the first; ``None`` sets no limit."""

    def __post_init__(self) -> None:
        """Refuse values that make no policy."""
        if self.attempts < 1:
            raise ConfigError(f"attempts must be at least 1, got {self.attempts}")
        for name in ("initial_backoff_s", "max_backoff_s"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{name} must be finite and not negative, got {value}")
        if not math.isfinite(self.multiplier) or self.multiplier < 1:
            raise ConfigError(f"multiplier must be finite and at least 1, got {self.multiplier}")
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"jitter must be between 0 and 1, got {self.jitter}")
        if self.deadline_s is not None and not 0 <= self.deadline_s < math.inf:
            raise ConfigError(f"deadline_s must be finite and not negative, or None, got {self.deadline_s}")

    def backoffs_s(self) -> Iterator[float]:
        """Yield the pauses between the attempts, ``attempts - 1`` of them.

        >>> list(RetryPolicy(attempts=4, initial_backoff_s=1, max_backoff_s=3, jitter=0).backoffs_s())
        [1.0, 2.0, 3.0]
        """
        chance = random.Random(self.seed)
        pause_s = float(self.initial_backoff_s)
        for _ in range(self.attempts - 1):
            pause_s = min(pause_s, float(self.max_backoff_s))
            yield pause_s * (1.0 - self.jitter * chance.random())
            pause_s *= self.multiplier


def is_retryable(error: Exception) -> bool:
    """Return what the error itself says; anything but a ``ClusterError`` is final."""
    return isinstance(error, ClusterError) and error.retryable


def retry(
    policy: RetryPolicy,
    fn: Callable[[], T],
    *,
    clock: Clock | None = None,
    is_retryable: Callable[[Exception], bool] = is_retryable,
) -> T:
    """Call ``fn`` until it returns, and return what it returned.

    Args:
        policy: How often and with what pauses.
        fn: The call. It must be safe to repeat.
        clock: Where the time comes from; the system's clock when not given.
        is_retryable: Whether an error is worth another attempt. An error that is not passes through unchanged.

    Raises:
        RetriesExhausted: All attempts failed, or the next would start past the deadline. It names the number of
            attempts and is chained to the last error.
    """
    clock = clock or SystemClock()
    deadline = Deadline(clock, policy.deadline_s)
    backoffs_s = policy.backoffs_s()
    attempt = 0
    while True:
        attempt += 1
        try:
            return fn()
        except Exception as error:
            if not is_retryable(error):
                raise
            pause_s = next(backoffs_s, None)
            if pause_s is None:
                raise _exhausted(attempt, "the policy allows no more", error) from error
            if pause_s > deadline.remaining_s():
                raise _exhausted(attempt, f"the deadline of {policy.deadline_s} s is near", error) from error
            logger.debug("call failed, will retry attempt=%d pause_s=%.3f error=%r", attempt, pause_s, error)
        clock.sleep_s(pause_s)


def _exhausted(attempts: int, reason: str, error: Exception) -> RetriesExhausted:
    calls = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return RetriesExhausted(f"gave up after {calls}, {reason}; last error: {error!r}", attempts=attempts)

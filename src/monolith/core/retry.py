"""``retry``: repeats failed calls by a ``RetryPolicy``.

The policy decides *when* to call again and when to stop. The error (``ClusterError.retryable``) or the caller decides
whether a call may be repeated.
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
    """The number of attempts of a call, and the pauses between them.

    The pause before attempt ``n + 1`` is ``initial_backoff_s * multiplier ** (n - 1)``, at most ``max_backoff_s``,
    then shortened by a random share of up to ``jitter``, so that many clients do not retry together.
    """

    attempts: int = 5
    """Number of calls, including the first."""

    initial_backoff_s: float = 0.1
    """The pause after the first failure."""

    max_backoff_s: float = 10.0
    """The longest pause."""

    multiplier: float = 2.0
    """Factor from one pause to the next."""

    jitter: float = 0.5
    """The largest random share by which a pause is shortened, from 0 (none) to 1."""

    seed: int | None = None
    """Seed of the jitter; ``None`` draws a new one for each call of ``retry``."""

    deadline_s: float | None = None
    """No attempt starts later than this after the first; ``None`` sets no limit."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.attempts < 1:
            raise ConfigError(f"attempts is {self.attempts}, expected at least 1")
        for name in ("initial_backoff_s", "max_backoff_s"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{name} is {value}, expected a finite number of at least 0")
        if not math.isfinite(self.multiplier) or self.multiplier < 1:
            raise ConfigError(f"multiplier is {self.multiplier}, expected a finite number of at least 1")
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"jitter is {self.jitter}, expected 0 to 1")
        if self.deadline_s is not None and not 0 <= self.deadline_s < math.inf:
            raise ConfigError(f"deadline_s is {self.deadline_s}, expected a finite number of at least 0, or None")

    def backoffs_s(self) -> Iterator[float]:
        """Yield the ``attempts - 1`` pauses between the attempts.

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
    """Return ``retryable`` of a ``ClusterError``; False for any other error."""
    return isinstance(error, ClusterError) and error.retryable


def retry(
    policy: RetryPolicy,
    fn: Callable[[], T],
    *,
    clock: Clock | None = None,
    is_retryable: Callable[[Exception], bool] = is_retryable,
) -> T:
    """Call ``fn`` until it succeeds, and return its result.

    Args:
        policy: The number of attempts and the pauses.
        fn: The call. It must be safe to repeat.
        clock: Time source; default: the system's clock.
        is_retryable: Returns True for an error worth another attempt. Any other error is raised unchanged.

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
            logger.debug("call failed, retrying attempt=%d pause_s=%.3f error=%r", attempt, pause_s, error)
        clock.sleep_s(pause_s)


def _exhausted(attempts: int, reason: str, error: Exception) -> RetriesExhausted:
    calls = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return RetriesExhausted(f"gave up after {calls}, {reason}; last error: {error!r}", attempts=attempts)

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError, RetriesExhausted, ShardUnavailable
from monolith.core.retry import RetryPolicy, retry
from monolith.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def failing(times: int, error: Exception) -> Callable[[], int]:
    """A call that fails ``times`` times, then returns how often it was called."""
    calls = 0

    def call() -> int:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise error
        return calls

    return call


def test_a_call_that_succeeds_is_made_once_without_a_pause(clock: FakeClock) -> None:
    assert retry(RetryPolicy(), failing(0, ShardUnavailable("x")), clock=clock) == 1
    assert clock.slept_s == []


def test_pauses_grow_to_their_limit(clock: FakeClock) -> None:
    policy = RetryPolicy(attempts=6, initial_backoff_s=1, multiplier=3, max_backoff_s=10, jitter=0)
    assert retry(policy, failing(5, ShardUnavailable("x")), clock=clock) == 6
    assert clock.slept_s == [1, 3, 9, 10, 10]


def test_the_last_error_is_chained_and_the_attempts_are_named(clock: FakeClock) -> None:
    error = ShardUnavailable("shard 3 is away")
    with pytest.raises(RetriesExhausted, match=r"gave up after 3 attempts.*shard 3 is away") as caught:
        retry(RetryPolicy(attempts=3), failing(9, error), clock=clock)
    assert caught.value.__cause__ is error
    assert caught.value.attempts == 3
    assert not caught.value.retryable


def test_a_final_error_passes_through_without_a_retry(clock: FakeClock) -> None:
    for error in (ConfigError("wrong"), ShardUnavailable("gone", retryable=False), OSError("disk")):
        with pytest.raises(type(error)) as caught:
            retry(RetryPolicy(), failing(9, error), clock=clock)
        assert caught.value is error
    assert clock.slept_s == []


def test_the_caller_may_decide_which_errors_are_retryable(clock: FakeClock) -> None:
    policy = RetryPolicy(attempts=2)
    assert retry(policy, failing(1, OSError("x")), clock=clock, is_retryable=lambda e: isinstance(e, OSError)) == 2


def test_no_pause_reaches_past_the_deadline(clock: FakeClock) -> None:
    policy = RetryPolicy(attempts=100, initial_backoff_s=1, multiplier=1, jitter=0, deadline_s=3.5)
    with pytest.raises(RetriesExhausted, match=r"4 attempts, the deadline of 3\.5 s") as caught:
        retry(policy, failing(1000, ShardUnavailable("x")), clock=clock)
    assert clock.slept_s == [1, 1, 1]
    assert caught.value.attempts == 4


def test_the_time_of_the_calls_counts_against_the_deadline(clock: FakeClock) -> None:
    def slow() -> None:
        clock.advance_s(2)
        raise ShardUnavailable("x")

    with pytest.raises(RetriesExhausted, match="2 attempts"):
        retry(RetryPolicy(attempts=9, initial_backoff_s=1, jitter=0, deadline_s=4), slow, clock=clock)


def test_the_same_seed_gives_the_same_pauses_and_another_one_others() -> None:
    first = list(RetryPolicy(attempts=8, seed=1).backoffs_s())
    assert first == list(RetryPolicy(attempts=8, seed=1).backoffs_s())
    assert first != list(RetryPolicy(attempts=8, seed=2).backoffs_s())


@given(
    attempts=st.integers(1, 40),
    initial=st.floats(0, 10),
    longest=st.floats(0, 100),
    multiplier=st.floats(1, 10),
    jitter=st.floats(0, 1),
    seed=st.integers(),
)
def test_pauses_stay_between_their_bounds(
    attempts: int, initial: float, longest: float, multiplier: float, jitter: float, seed: int
) -> None:
    policy = RetryPolicy(
        attempts=attempts,
        initial_backoff_s=initial,
        max_backoff_s=longest,
        multiplier=multiplier,
        jitter=jitter,
        seed=seed,
    )
    full = list(
        RetryPolicy(
            attempts=attempts, initial_backoff_s=initial, max_backoff_s=longest, multiplier=multiplier, jitter=0
        ).backoffs_s()
    )
    pauses = list(policy.backoffs_s())
    assert len(pauses) == attempts - 1
    assert all(before <= after <= longest for before, after in pairwise(full))
    assert all((1 - jitter) * most <= pause <= most for pause, most in zip(pauses, full, strict=True))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", 0),
        ("initial_backoff_s", -1.0),
        ("max_backoff_s", float("inf")),
        ("multiplier", 0.5),
        ("jitter", 1.5),
        ("jitter", float("nan")),
        ("deadline_s", -1.0),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        RetryPolicy(**{field: value})

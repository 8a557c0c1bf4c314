from __future__ import annotations

import pytest

from monolith.serving.remote.addresses import GivenAddresses
from monolith.serving.remote.calls import RemoteCalls, RemoteSettings
from monolith.serving.requests.request_deadline import deadline, request_deadline_s
from monolith.testing.fakes.clock import FakeClock


def test_a_deadline_ends_with_its_block_and_also_after_an_error() -> None:
    def fail() -> None:
        with deadline(2.0):
            assert request_deadline_s() == 2.0
            raise ValueError("stop")

    with deadline(5.0):
        with pytest.raises(ValueError, match="stop"):
            fail()
        assert request_deadline_s() == 5.0
    assert request_deadline_s() is None


@pytest.mark.parametrize(("own_s", "rounds"), [(None, 4), (0.5, 2), (60.0, 4)])
def test_retries_end_at_the_timeout_or_at_the_earlier_deadline_of_the_request(own_s: float | None, rounds: int) -> None:
    clock = FakeClock()
    calls = RemoteCalls(GivenAddresses({}), RemoteSettings(timeout_s=1.0), clock)
    with deadline(None if own_s is None else clock.monotonic_s() + own_s):
        assert sum(1 for _ in calls.tries(0.25)) == rounds

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import pytest

from monolith.core.errors import RpcTimeout
from monolith.serving.remote.addresses import GivenAddresses
from monolith.serving.remote.calls import RemoteCall, RemoteCalls, RemoteSettings
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


@pytest.mark.parametrize(("own_s", "failed"), [(0.02, 0), (None, 2)])
def test_silence_until_a_short_deadline_marks_no_replica_as_failed(own_s: float | None, failed: int) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in silent]
        calls = RemoteCalls(GivenAddresses({"ps_0": addresses}), RemoteSettings(timeout_s=0.5))
        stack.callback(calls.close)
        place = calls.place_of("m", "ps_0")
        for _ in addresses:  # each of them is the first in turn once
            call = RemoteCall("ps_0", "rows", place, "Predict", b"")
            with deadline(None if own_s is None else time.monotonic() + own_s):
                calls.run_all([call])
            assert isinstance(call.error, RpcTimeout)
        assert sum(each.ill_until_s > 0 for each in calls._replicas.values()) == failed


def test_attempts_leave_half_of_the_time_for_a_degraded_answer() -> None:
    clock = FakeClock()
    calls = RemoteCalls(GivenAddresses({}), RemoteSettings(timeout_s=1.0, allow_degraded=True), clock)
    assert sum(1 for _ in calls.tries(0.125)) == 4

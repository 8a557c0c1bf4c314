from __future__ import annotations

import queue
import threading

import pytest

from monolith.discovery._periodic import Periodic

PATIENCE_S = 60.0


def test_it_calls_when_woken_and_not_before() -> None:
    calls: queue.Queue[int] = queue.Queue()
    periodic = Periodic("test", lambda: calls.put(1), interval_s=3600, retry_s=1)
    periodic.start()
    assert calls.empty()
    periodic.wake()
    calls.get(timeout=PATIENCE_S)
    periodic.stop()
    periodic.wake()
    assert calls.empty()


def test_a_failure_is_logged_once_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    calls: queue.Queue[int] = queue.Queue()

    def fail() -> None:
        calls.put(1)
        raise RuntimeError("away")

    periodic = Periodic("test", fail, interval_s=0.001, retry_s=0.001)
    periodic.start()
    for _ in range(5):
        calls.get(timeout=PATIENCE_S)
    periodic.stop()
    assert caplog.text.count("periodic work failed") == 1


def test_it_may_stop_itself() -> None:
    done = threading.Event()

    def end() -> None:
        periodic.stop()
        done.set()

    periodic = Periodic("test", end, interval_s=0.001, retry_s=1)
    periodic.start()
    assert done.wait(PATIENCE_S)

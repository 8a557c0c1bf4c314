"""Background work runs on request, each interval, and again after a failure."""

from __future__ import annotations

import queue

import pytest

from monolith.agent.background import BackgroundLoop

PATIENCE_S = 60.0


def test_a_loop_runs_at_start_on_request_and_each_interval() -> None:
    runs: queue.Queue[None] = queue.Queue()
    loop = BackgroundLoop("test", lambda: runs.put(None), interval_s=0.01)
    loop.start()
    for _ in range(3):
        runs.get(timeout=PATIENCE_S)
    loop.stop()
    loop.stop()
    assert loop.is_stopped


def test_a_loop_without_interval_waits_for_requests() -> None:
    runs: queue.Queue[None] = queue.Queue()
    loop = BackgroundLoop("test", lambda: runs.put(None))
    loop.start(immediately=False)
    with pytest.raises(queue.Empty):
        runs.get(timeout=0.1)
    loop.wake()
    runs.get(timeout=PATIENCE_S)
    loop.stop()


def test_a_failure_is_repeated_soon_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    runs: queue.Queue[None] = queue.Queue()

    def fail() -> None:
        runs.put(None)
        raise ValueError("no luck")

    loop = BackgroundLoop("test", fail, retry_s=0.01)
    loop.start()
    for _ in range(3):
        runs.get(timeout=PATIENCE_S)
    loop.stop()
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "no luck" in caplog.text

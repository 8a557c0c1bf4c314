from __future__ import annotations

import queue
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from monolith.core.stop_signals import held_signals, stop_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_heard_and_the_handlers_are_given_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals() as endings:
        signal.raise_signal(number)
        assert endings.get(timeout=30) == number.name
        with pytest.raises(queue.Empty):
            endings.get(timeout=0)
    assert signal.getsignal(number) is before


def test_signals_arrive_at_any_line_of_the_main_thread() -> None:
    # A signal at every line of the wait: code that takes a lock there would deadlock.
    with stop_signals() as endings:
        before = signal.signal(signal.SIGALRM, lambda *_: endings.put("alarm"))
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            for _ in range(300):
                assert endings.get(timeout=30) == "alarm"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_held_signal_arrives_after_the_block(number: signal.Signals) -> None:
    events: list[str] = []
    before = signal.signal(number, lambda *_: events.append("signal"))
    try:
        with held_signals():
            signal.raise_signal(number)
            events.append("block")
        assert events == ["block", "signal"]
    finally:
        signal.signal(number, before)


def test_signals_are_held_in_the_main_thread_only() -> None:
    def hold() -> None:
        with held_signals():
            assert signal.getsignal(signal.SIGTERM) is before

    before = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor() as pool:
        pool.submit(hold).result(timeout=30)

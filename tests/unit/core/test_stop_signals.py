from __future__ import annotations

import queue
import signal

import pytest

from monolith.core.stop_signals import stop_signals


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

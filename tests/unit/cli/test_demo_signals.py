"""Signals end the demonstration at a safe moment."""

from __future__ import annotations

import signal

import pytest

from monolith.cli.demo import _end_signals, _EndSignals


def test_a_signal_raises_immediately_before_the_live_half() -> None:
    with _end_signals(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with _end_signals(), pytest.raises(SystemExit, match="143"):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("number", "error", "text"), [(signal.SIGINT, KeyboardInterrupt, "^$"), (signal.SIGHUP, SystemExit, "129")]
)
def test_a_deferred_signal_raises_at_the_next_check_and_a_second_one_immediately(
    number: signal.Signals, error: type[BaseException], text: str
) -> None:
    with _end_signals() as signals:
        signals.are_deferred = True
        signals.check()
        signal.raise_signal(number)
        with pytest.raises(error, match=text):
            signals.check()
        with pytest.raises(error, match=text):
            signal.raise_signal(number)


def test_handlers_are_as_before_after_the_demonstration() -> None:
    before = signal.getsignal(signal.SIGINT)
    with _end_signals() as signals:
        assert isinstance(signals, _EndSignals)
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before

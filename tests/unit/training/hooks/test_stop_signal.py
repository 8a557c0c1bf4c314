from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from fake_run import FakeRun
from monolith.training.hooks import Hook, Run, StepResult, StopSignalHook

MANY = 10**9


class Sends(Hook):
    """Sends the process a signal after a step."""

    def __init__(self, number: signal.Signals, *, pause: bool = False) -> None:
        self._number = number
        self._pause = pause

    def after_step(self, run: Run, result: StepResult) -> None:
        if result.step == 3:
            if self._pause:
                run.pause()
            os.kill(os.getpid(), self._number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("pause", [False, True])
def test_a_run_that_is_told_to_end_stops_running_or_paused(tmp_path: Path, number: signal.Signals, pause: bool) -> None:
    before = signal.getsignal(number)
    run = FakeRun(tmp_path, [StopSignalHook(), Sends(number, pause=pause)])
    run.train(MANY)
    assert run.stop_reasons == [f"the process was sent {number.name}"]
    assert run.step >= 3
    assert signal.getsignal(number) is before


def test_the_second_signal_does_what_it_did_before(tmp_path: Path) -> None:
    class SendsTwice(Hook):
        def after_step(self, run: Run, result: StepResult) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs this in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            FakeRun(tmp_path, [StopSignalHook(), SendsTwice()]).train(MANY)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_in_another_thread_leaves_signals_alone(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    during: list[object] = []

    class Looks(Hook):
        def before_step(self, run: Run) -> None:
            during.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=FakeRun(tmp_path, [StopSignalHook(), Looks()]).train, args=(1,))
    thread.start()
    thread.join()
    assert during == [before]


def test_no_file_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        FakeRun(tmp_path, [StopSignalHook()]).train(1)
    assert len(os.listdir("/proc/self/fd")) <= before

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from fake_run import FakeRun
from monolith.core.errors import ConfigError
from monolith.testing import FakeClock
from monolith.training.hooks import Hook, Run, StepResult, StoreHealthHook


def test_above_the_limit_it_reports_once_and_pauses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reports: list[str] = []
    hook = StoreHealthHook(0, report=reports.append, every_s=0.0)
    run = FakeRun(tmp_path, [hook])
    with caplog.at_level(logging.ERROR, "monolith.compat.hooks"):
        thread = threading.Thread(target=run.train, args=(3,))
        thread.start()
        run.wait(lambda: run.is_paused)
        assert run.step == 1
        run.resume()
        thread.join()
    assert run.step == 3
    assert len(reports) == len(caplog.records) == 1
    assert "above the limit of 0, at step 1" in reports[0]
    assert not hook.is_healthy


def test_within_the_limit_nothing_happens_and_looks_are_far_between(tmp_path: Path) -> None:
    looks: list[float] = []
    clock = FakeClock()

    def used() -> int:
        looks.append(clock.monotonic_s())
        return 100

    class Seconds(Hook):
        def before_step(self, run: Run) -> None:
            clock.advance_s(10)

    hook = StoreHealthHook(100, used=used)
    FakeRun(tmp_path, [Seconds(), hook], clock=clock).train(8)
    assert looks == [10, 40, 70]
    assert hook.is_healthy


def test_an_error_of_a_hook_still_ends_the_run(tmp_path: Path) -> None:
    class Fails(Hook):
        def after_step(self, run: Run, result: StepResult) -> None:
            raise RuntimeError("broken")

    run = FakeRun(tmp_path, [StoreHealthHook(0, used=lambda: 1), Fails()])
    with pytest.raises(RuntimeError, match="broken"):
        run.train(5)
    assert run.step == 1


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="limit_bytes is -1"):
        StoreHealthHook(-1)
    with pytest.raises(ConfigError, match="every_s is -1"):
        StoreHealthHook(1, every_s=-1)

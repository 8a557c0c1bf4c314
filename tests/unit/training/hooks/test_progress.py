from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest
from rich.console import Console

from monolith.core.errors import ConfigError
from monolith.core.logs import setup_logging
from monolith.testing import FakeClock
from monolith.training.hooks.progress import ProgressHook
from monolith.training.metrics import RunMetrics
from step_results import FakeRun, step_result


def train(run: FakeRun, hook: ProgressHook, metrics: RunMetrics, steps: int, step_s: float = 0.5) -> None:
    hook.on_start(run)
    for _ in range(steps):
        run.clock.sleep_s(step_s)
        run.step += 1
        result = step_result(run.step, loss=float(run.step))
        metrics.update(result)
        hook.after_step(run, result)
    hook.on_end(run, None)


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_gets_one_line_that_changes(tmp_path: Path) -> None:
    console, metrics = terminal(), RunMetrics(window_steps=1)
    train(FakeRun(tmp_path), ProgressHook(metrics, target_steps=1000, console=console), metrics, 4)
    assert "step 2/1,000 (0 %)  4 samples/s  loss 2.0000  ctr auc 1.0000  ETA 0:08:19" in text_of(console)
    assert text_of(console).split("\n")[0].endswith("ETA 0:08:18")
    assert text_of(console).count("\n") == 1


def test_without_a_target_there_is_no_arrival(tmp_path: Path) -> None:
    console, metrics = terminal(), RunMetrics(window_steps=1)
    train(FakeRun(tmp_path), ProgressHook(metrics, console=console), metrics, 1)
    assert "step 1  4 samples/s  loss 1.0000  ctr auc 1.0000" in text_of(console)
    assert "ETA" not in text_of(console)


def test_quick_steps_are_not_all_drawn_but_the_last_one_is(tmp_path: Path) -> None:
    console, metrics = terminal(), RunMetrics(window_steps=1)
    train(FakeRun(tmp_path), ProgressHook(metrics, console=console), metrics, 1001, step_s=0.001)
    assert text_of(console).count("samples/s") <= 7
    assert "step 1,001  " in text_of(console)


def test_elsewhere_the_log_gets_a_line_now_and_then(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    console, metrics = Console(file=io.StringIO()), RunMetrics(window_steps=100)
    hook = ProgressHook(metrics, target_steps=250, every_steps=100, console=console)
    with caplog.at_level(logging.INFO):
        train(FakeRun(tmp_path), hook, metrics, 250)
    assert text_of(console) == ""
    assert [record.getMessage() for record in caplog.records] == [
        "step finished step=100 total=250 percent=40.0 samples_per_s=4 loss=50.50000 ctr_auc=1.00000 left_s=75",
        "step finished step=200 total=250 percent=80.0 samples_per_s=4 loss=150.50000 ctr_auc=1.00000 left_s=25",
    ]


def test_it_can_be_told_to_be_plain_in_a_terminal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    console, metrics = terminal(), RunMetrics(window_steps=1)
    with caplog.at_level(logging.INFO):
        train(FakeRun(tmp_path), ProgressHook(metrics, every_steps=1, is_live=False, console=console), metrics, 1)
    assert text_of(console) == ""
    assert len(caplog.records) == 1


def test_metrics_that_nobody_updates_leave_the_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, hook = FakeRun(tmp_path, FakeClock()), ProgressHook(RunMetrics(), every_steps=1, is_live=False)
    with caplog.at_level(logging.INFO):
        hook.on_start(run)
        run.clock.sleep_s(1)
        hook.after_step(run, step_result(1, loss=3.0))
        hook.on_end(run, None)
    assert caplog.messages == ["step finished step=1 samples_per_s=2 loss=3.00000"]


def test_log_lines_stand_above_the_line_while_it_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "__stderr__", stream)
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    setup_logging("INFO")
    try:
        run, hook = FakeRun(tmp_path), ProgressHook(RunMetrics(), console=console)
        hook.on_start(run)
        hook.after_step(run, step_result(1))
        logging.getLogger("monolith.test").info("something happened")
        hook.after_step(run, step_result(2))
        hook.on_end(run, None)
        assert "step 1" not in next(line for line in stream.getvalue().splitlines() if "something happened" in line)
        logging.getLogger("monolith.test").info("and after the end")
        assert "and after the end" in stream.getvalue()
    finally:
        root = logging.getLogger()
        for handler in [each for each in root.handlers if each.get_name() == "monolith.core.logs"]:
            root.removeHandler(handler)


def test_a_period_has_a_step() -> None:
    with pytest.raises(ConfigError, match="every_steps must be at least 1, got 0"):
        ProgressHook(RunMetrics(), every_steps=0)

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from fake_run import FakeRun
from monolith.data import Batch
from monolith.testing import FakeClock
from monolith.training.hooks import Hook, Run, StepResult, StopFileHook


def test_a_run_stops_at_its_step(tmp_path: Path) -> None:
    (tmp_path / "stop_7").touch()
    (tmp_path / "stop_70").touch()
    run = FakeRun(tmp_path, [StopFileHook()])
    run.train(20)
    assert run.step == 7
    assert run.stop_reasons == ["asked for by stop_7"]


def test_a_restarted_run_does_not_stop_again(tmp_path: Path) -> None:
    (tmp_path / "stop_7").touch()
    run = FakeRun(tmp_path, [StopFileHook()], step=7)
    run.train(3)
    assert run.step == 10


def test_each_dump_is_written_once(tmp_path: Path) -> None:
    for name in ("dump_2", "dump_4", "dump_x", "xdump_3", "dump_999999999"):
        (tmp_path / name).touch()

    class EndsLater(Hook):
        def after_step(self, run: Run, result: StepResult) -> None:
            assert isinstance(run, FakeRun)
            if len(run.saved) >= 2 and result.step > run.saved[-1][0] + 20:
                run.stop("nothing more is dumped")

    run = FakeRun(tmp_path, [StopFileHook(every_s=0.0), EndsLater()])
    run.train(10**9)
    assert [reason for _, reason in run.saved] == ["asked for by dump_2", "asked for by dump_4"]
    assert run.saved[0][0] >= 2


def test_a_file_that_comes_late_is_obeyed_when_it_is_seen(tmp_path: Path) -> None:
    clock = FakeClock()
    hook = StopFileHook()
    run = FakeRun(tmp_path, [hook], clock=clock)
    hook.on_start(run)
    for _ in range(5):
        run.take_step()
    (tmp_path / "stop_3").touch()
    run.take_step()
    assert not run.stop_reasons
    clock.advance_s(10)
    run.take_step()
    assert run.stop_reasons == ["asked for by stop_3"]


def test_events_past_the_limit_end_the_run(tmp_path: Path) -> None:
    class TimePasses(Hook):
        def before_step(self, run: Run) -> None:
            assert isinstance(run, FakeRun)
            run.event_time_s += 100

    (tmp_path / "limit_req_time").write_text("450\n")
    run = FakeRun(tmp_path, [TimePasses(), StopFileHook()])
    run.train(20)
    assert run.step == 5
    assert run.stop_reasons == ["an event of 500 came, limit_req_time is 450"]


def test_a_limit_that_is_no_time_is_told_once_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "limit_req_time").write_text("tomorrow")
    run = FakeRun(tmp_path, [StopFileHook(every_s=0.0)])
    with caplog.at_level(logging.ERROR, "monolith.training.hooks"):
        run.train(3)
    assert run.step == 3
    assert len(caplog.records) == 1
    assert "'tomorrow'; write unix seconds" in caplog.text


def test_a_rank_without_rows_in_a_step_continues_below_the_limit(tmp_path: Path) -> None:
    (tmp_path / "limit_req_time").write_text("450")
    hook, run = StopFileHook(), FakeRun(tmp_path)
    hook.on_start(run)
    empty = Batch.from_arrays(ids={"user": np.empty((0, 1), np.int64)}, event_time_s=[])
    result = StepResult(step=1, loss=0.5, heads={}, batch=empty, samples=2, ids=0)  # two samples of other ranks
    hook.after_step(run, result)
    assert not run.stop_reasons


@pytest.mark.parametrize("limit", ["a folder", "9" * 5000])
def test_a_limit_that_cannot_be_read_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: str
) -> None:
    path = tmp_path / "limit_req_time"
    path.mkdir() if limit == "a folder" else path.write_text(limit)
    run = FakeRun(tmp_path, [StopFileHook(every_s=0.0)])
    run.train(3)
    assert (run.step, run.stop_reasons) == (3, [])
    assert caplog.text.count("is ignored") == 1

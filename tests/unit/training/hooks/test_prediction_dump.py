from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from monolith.core.errors import ClusterError, ConfigError
from monolith.data import Batch
from monolith.training.hooks import StepResult
from monolith.training.hooks.prediction_dump import PredictionDumpHook, PredictionTopic, prediction_files
from step_results import FakeRun, head_result, step_result


class Sink:
    def __init__(self, fails: bool = False) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self.fails = fails
        self.is_closed = False

    def write(self, message: Mapping[str, Any], /) -> None:
        if self.fails:
            raise ClusterError("nobody listens")
        self.messages.append(message)

    def close(self) -> None:
        self.is_closed = True
        if self.fails:
            raise ClusterError("nobody listens")


def result(uid: list[int], step: int = 1) -> StepResult:
    size = len(uid)
    heads = {name: head_result(name, [0.25] * size, [1.0] * size) for name in ("ctr", "cvr")}
    batch = Batch.from_arrays(label=[[1.0]] * size, uid=uid, event_time_s=[1_700_000_000] * size)
    return step_result(step, heads=heads, batch=batch)


def test_sampled_users_are_sent_and_the_sink_is_closed(tmp_path: Path) -> None:
    run, sink = FakeRun(tmp_path), Sink()
    hook = PredictionDumpHook(lambda: sink, "m", sample_ratio=0.01, heads=["cvr"])
    hook.on_start(run)
    hook.after_step(run, result([1, 10, 1009, 0]))
    hook.after_step(run, result([500]))
    hook.on_end(run, None)
    assert [message["uid"] for message in sink.messages] == [1, 1009]
    assert sink.messages[0]["predict"] == {"cvr": 0.25}
    assert sink.is_closed
    assert (hook.written, hook.failures) == (2, 0)


def test_every_run_of_a_hook_has_files_of_its_own(tmp_path: Path) -> None:
    run = FakeRun(tmp_path)
    hook = PredictionDumpHook(lambda: prediction_files(tmp_path, worker=2), "m", sample_ratio=1)
    for uid in (1, 2):
        hook.on_start(run)
        hook.after_step(run, result([uid]))
        hook.on_end(run, RuntimeError("the run broke"))
    folder = tmp_path / "m" / "20231114" / "worker_2"
    assert [path.read_text() for path in sorted(folder.iterdir())] == [
        f'1700000000;gid;{uid};{{"ctr": 0.25, "cvr": 0.25}};{{"ctr": 1.0, "cvr": 1.0}}\n' for uid in (1, 2)
    ]


def test_a_sink_that_is_out_of_reach_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, sink = FakeRun(tmp_path), Sink(fails=True)
    hook = PredictionDumpHook(lambda: sink, "m", sample_ratio=1)
    hook.on_start(run)
    hook.after_step(run, result([1, 2]))
    hook.after_step(run, result([3]))
    sink.fails = False
    hook.after_step(run, result([4]))
    sink.fails = True
    hook.on_end(run, None)
    assert [message["uid"] for message in sink.messages] == [4]
    assert (hook.written, hook.failures) == (1, 3)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "nobody listens" in caplog.text


def test_records_without_users_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = FakeRun(tmp_path)
    hook = PredictionDumpHook(Sink, "m")
    hook.on_start(run)
    hook.after_step(run, result([999]))
    assert not caplog.records
    for step in (2, 3):
        hook.after_step(run, result([0, 0], step))
    assert len(caplog.records) == 1
    assert "no row of the batch has a uid, so no prediction is sampled step=2" in caplog.text


def test_a_topic_gets_json_with_the_user_as_key() -> None:
    class Writer:
        def __init__(self) -> None:
            self.sent: list[tuple[bytes, bytes | None]] = []
            self.is_closed = False

        def write(self, message: bytes, key: bytes | None = None) -> None:
            self.sent.append((message, key))

        def close(self) -> None:
            self.is_closed = True

    writer: Any = Writer()
    topic = PredictionTopic(writer)
    topic.write({"uid": 7, "predict": {"ctr": 0.5}})
    topic.close()
    [(message, key)] = writer.sent
    assert json.loads(message) == {"uid": 7, "predict": {"ctr": 0.5}}
    assert key == b"7"
    assert writer.is_closed


def test_wrong_settings_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="deep_insight_sample_ratio must be between 0 and 1, got 2"):
        PredictionDumpHook(Sink, "m", sample_ratio=2)
    with pytest.raises(ConfigError, match="deep_insight_name"):
        PredictionDumpHook(Sink, "")
    hook = PredictionDumpHook(Sink, "m", sample_ratio=1, heads=["ctr", "click"])
    hook.on_start(FakeRun(tmp_path))
    with pytest.raises(ConfigError, match="deep_insight_target names click, the model has the heads ctr, cvr"):
        hook.after_step(FakeRun(tmp_path), result([1]))

"""Event files, read back by TensorBoard itself."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from monolith.core.errors import ConfigError
from monolith.testing import FakeClock
from monolith.training.hooks.summaries import SummaryFile, SummaryHook, write_summary
from monolith.training.metrics import RunMetrics
from monolith.training.metrics.insight_summaries import nas_weight_summary
from step_results import FakeRun, step_result


def opened(folder: Path) -> Any:
    return EventAccumulator(str(folder)).Reload()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in opened(folder).Scalars(tag)]


def train(run: FakeRun, hook: SummaryHook, metrics: RunMetrics, steps: int) -> None:
    hook.on_start(run)
    for _ in range(steps):
        run.clock.sleep_s(0.5)
        run.step += 1
        result = step_result(run.step, loss=float(run.step))
        metrics.update(result)
        hook.after_step(run, result)
    hook.on_end(run, None)


def test_a_run_is_summarised_every_so_many_steps_and_at_its_end(tmp_path: Path) -> None:
    run, metrics = FakeRun(tmp_path), RunMetrics(window_steps=2)
    run.store.apply_gradients({"item": [1, 2]}, {"item": [[1, 1], [1, 1]]})
    train(run, SummaryHook(metrics, every_steps=2), metrics, 5)
    assert scalars(tmp_path, "loss") == [(2, 1.5), (4, 3.5), (5, 3.5)]
    assert scalars(tmp_path, "ctr/auc") == [(2, 1), (4, 1), (5, 1)]
    assert scalars(tmp_path, "run/loss") == [(5, 3)]
    assert scalars(tmp_path, "speed/samples_per_s")[-1] == (5, 4)
    assert scalars(tmp_path, "speed/ids_per_s")[-1] == (5, 40)
    assert scalars(tmp_path, "tables/item/rows") == [(2, 2), (4, 2), (5, 2)]
    assert scalars(tmp_path, "tables/item/bytes")[0][1] == pytest.approx(run.store.memory_bytes)
    assert opened(tmp_path).Scalars("loss")[0].wall_time == 1_700_000_001


def test_two_runs_in_a_row_leave_two_files(tmp_path: Path) -> None:
    run, metrics = FakeRun(tmp_path), RunMetrics(window_steps=1)
    hook = SummaryHook(metrics, every_steps=2)
    train(run, hook, metrics, 2)
    train(run, hook, metrics, 2)
    assert len(list(tmp_path.iterdir())) == 2
    steps = []
    for path in tmp_path.iterdir():
        steps += [step for step, _ in scalars(path, "loss")]
    assert sorted(steps) == [2, 4]


def test_a_summary_is_in_the_file_while_the_run_goes_on(tmp_path: Path) -> None:
    run, hook = FakeRun(tmp_path), SummaryHook(RunMetrics(), every_steps=1)
    hook.on_start(run)
    hook.after_step(run, step_result(1, loss=4.0))
    assert scalars(tmp_path, "loss") == [(1, 4)]
    hook.on_end(run, None)


def test_an_evaluation_has_a_folder_of_its_own(tmp_path: Path) -> None:
    for step in (10, 20):
        write_summary({"ctr/auc": 0.75, "ctr/calibration": math.nan}, step, tmp_path / "eval", clock=FakeClock())
    assert len(list((tmp_path / "eval").iterdir())) == 2
    found = []
    for path in (tmp_path / "eval").iterdir():
        assert opened(path).Tags()["scalars"] == ["ctr/auc"]
        found += scalars(path, "ctr/auc")
    assert sorted(found) == [(10, 0.75), (20, 0.75)]


def test_what_a_plugin_shows_keeps_its_head_and_its_shape(tmp_path: Path) -> None:
    insight = nas_weight_summary([0.5, 0.25], ["a", "b"], [3, 5])
    with SummaryFile(tmp_path) as file:
        file.insight(insight, 7)
    events = opened(tmp_path)
    metadata = events.SummaryMetadata("monolith_nas_weight").plugin_data
    assert metadata.plugin_name == "monolith"
    assert json.loads(metadata.content)["segment_names"] == ["a", "b"]
    [event] = events.Tensors("monolith_nas_weight")
    assert event.step == 7
    np.testing.assert_array_equal(tensor_util.make_ndarray(event.tensor_proto), [0.5, 0.25])


def test_a_hook_gives_its_file_away_during_a_run_only(tmp_path: Path) -> None:
    run, hook = FakeRun(tmp_path), SummaryHook(RunMetrics())
    with pytest.raises(ConfigError, match="made when the run starts"):
        hook.file  # noqa: B018
    hook.on_start(run)
    hook.file.scalars({"mine": 3.0}, 1)
    hook.on_end(run, RuntimeError("the run broke"))
    assert scalars(tmp_path, "mine") == [(1, 3)]


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX.proto.event_pb2", None)
    with pytest.raises(ConfigError, match=r"pip install 'monolith\[train\]'"):
        SummaryFile(tmp_path)


def test_a_period_has_a_step() -> None:
    with pytest.raises(ConfigError, match="every_steps must be at least 1, got 0"):
        SummaryHook(RunMetrics(), every_steps=0)

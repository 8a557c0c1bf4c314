from __future__ import annotations

import json
import math

import numpy as np
import pytest

from monolith.core.errors import ConfigError, DataError
from monolith.training.hooks import StepResult
from monolith.training.metrics import HeadMetrics, RunMetrics
from step_results import head_result, step_result


def steps(count: int, size: int = 50) -> list[StepResult]:
    rng = np.random.default_rng(7)
    results = []
    for step in range(1, count + 1):
        p = rng.random(size)
        heads = {
            "ctr": head_result("ctr", p.tolist(), (rng.random(size) < p).tolist(), weight=rng.random(size)),
            "stay": head_result("stay", (9 * p).tolist(), rng.normal(size=size).tolist(), is_classification=False),
            "silent": head_result("silent", p.tolist(), None),
        }
        results.append(step_result(step, heads=heads, loss=float(step)))
    return results


def test_results_are_named_by_head_and_metric() -> None:
    metrics = RunMetrics()
    assert metrics.results() == metrics.window() == {}
    metrics.update(steps(1)[0])
    assert list(metrics.results()) == [
        "loss",
        "ctr/auc",
        "ctr/log_loss",
        "ctr/calibration",
        "stay/mse",
        "stay/calibration",
    ]


@pytest.mark.parametrize("saved_steps", [1, 10])
def test_restored_metrics_refuse_a_head_that_has_changed_its_kind(saved_steps: int) -> None:
    before, after = RunMetrics(window_steps=10), RunMetrics(window_steps=10)
    for number in range(saved_steps):
        before.update(step_result(number + 1, heads={"ctr": head_result("ctr", [0.5], [1.0])}))
    after.restore(json.loads(json.dumps(before.state())))
    changed = head_result("ctr", [0.5], [1.0], is_classification=False)
    with pytest.raises(ConfigError, match="head 'ctr' is a regression, but its metrics are of a classification; give"):
        after.update(step_result(saved_steps + 1, heads={"ctr": changed}))


def test_a_window_holds_the_steps_since_the_one_before_and_the_run_holds_all() -> None:
    run = steps(25)
    metrics = RunMetrics(window_steps=10)
    for result in run[:5]:
        metrics.update(result)
    assert metrics.window() == metrics.results()
    for result in run[5:]:
        metrics.update(result)

    def directly(some: list[StepResult]) -> dict[str, float]:
        direct = RunMetrics(window_steps=1000)
        for result in some:
            direct.update(result)
        return direct.results()

    assert metrics.window() == pytest.approx(directly(run[10:20]), rel=1e-12)
    assert metrics.window()["loss"] == 15.5
    assert metrics.results() == pytest.approx(directly(run), rel=1e-12)
    assert metrics.results()["loss"] == 13


@pytest.mark.parametrize("cut", [3, 10, 17])
def test_a_restored_run_goes_on_exactly(cut: int) -> None:
    run = steps(25)
    straight = RunMetrics(window_steps=10, auc_exact_size=600)
    before = RunMetrics(window_steps=10, auc_exact_size=600)
    for result in run[:cut]:
        straight.update(result)
        before.update(result)
    after = RunMetrics(window_steps=10, auc_exact_size=600)
    after.update(run[-1])
    after.restore(json.loads(json.dumps(before.state(), allow_nan=False)))
    assert after.window() == straight.window()
    for result in run[cut:]:
        straight.update(result)
        after.update(result)
    assert after.state() == straight.state()
    assert after.results() == straight.results()
    assert straight.results()["ctr/auc_error_bound"] > 0


def test_a_window_without_a_value_survives_being_saved() -> None:
    metrics = RunMetrics(window_steps=1)
    metrics.update(step_result(1, [0.5], [1]))
    restored = RunMetrics(window_steps=1)
    restored.restore(json.loads(json.dumps(metrics.state(), allow_nan=False)))
    assert math.isnan(restored.window()["ctr/auc"])
    assert restored.window()["loss"] == 1


def test_reset_forgets_everything() -> None:
    metrics = RunMetrics(window_steps=1)
    metrics.update(step_result())
    metrics.reset()
    assert metrics.results() == metrics.window() == {}


def test_a_prediction_that_is_not_finite_names_the_head_and_how_many() -> None:
    with pytest.raises(DataError, match="head 'ctr': 2 of 3 predictions are NaN or infinite"):
        RunMetrics().update(step_result(1, [0.5, math.nan, math.inf], [0, 1, 1]))


def test_a_head_cannot_change_its_kind() -> None:
    head = HeadMetrics("ctr")
    with pytest.raises(ConfigError, match="head 'ctr' is a classification, but its metrics are of a regression"):
        head.restore(HeadMetrics("ctr", is_classification=False).state())
    with pytest.raises(ConfigError, match="another name"):
        head.merge(HeadMetrics("ctr", is_classification=False))


def test_a_window_has_a_step() -> None:
    with pytest.raises(ConfigError, match="window_steps must be at least 1, got 0"):
        RunMetrics(window_steps=0)

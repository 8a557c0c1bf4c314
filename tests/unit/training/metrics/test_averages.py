from __future__ import annotations

import json
import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from monolith.core.errors import DataError
from monolith.training.metrics import Calibration, LogLoss, MeanSquaredError, Metric

ROWS = st.lists(
    st.tuples(
        st.floats(0, 1, width=32),
        st.sampled_from([0.0, 0.25, 1.0]),
        st.sampled_from([0.0, 0.5, 2.0]),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


def log_loss(p: float, y: float) -> float:
    p = min(max(p, LogLoss.EPSILON), 1 - LogLoss.EPSILON)
    return -(y * math.log(p) + (1 - y) * math.log(1 - p))


def expected(metric: Metric, rows: list[tuple[float, float, float]]) -> float:
    if isinstance(metric, Calibration):
        upper, lower = sum(w * p for p, _, w in rows), sum(w * y for _, y, w in rows)
    else:
        cost = log_loss if isinstance(metric, LogLoss) else lambda p, y: (p - y) ** 2
        upper, lower = sum(w * cost(p, y) for p, y, w in rows), sum(w for *_, w in rows)
    return upper / lower if lower else math.nan


@pytest.mark.parametrize("kind", [LogLoss, Calibration, MeanSquaredError])
@given(rows=ROWS)
def test_it_equals_its_formula(kind: type[Metric], rows: list[Any]) -> None:
    p, y, w, mask = (np.array(column) for column in zip(*rows, strict=True))
    metric = kind()
    metric.update(p, y, mask, w)
    metric.update(p, y, mask, w)
    kept = [row[:3] for row in rows if row[3]]
    assert metric.result() == pytest.approx(expected(metric, kept), rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("kind", [LogLoss, Calibration, MeanSquaredError])
def test_merged_restored_and_reset(kind: type[Metric]) -> None:
    one, other = kind(), kind()
    one.update([0.2, 0.7], [0, 1])
    other.update([0.1], [1], weight=[0.3])
    both = kind()
    both.update([0.2, 0.7], [0, 1])
    both.update([0.1], [1], weight=[0.3])
    one.merge(other)
    assert one.result() == both.result()
    copy = kind()
    copy.restore(json.loads(json.dumps(one.state())))
    assert copy.result() == one.result()
    copy.reset()
    assert math.isnan(copy.result())


def test_hard_and_soft_labels_have_the_same_log_loss() -> None:
    hard, soft = LogLoss(), LogLoss()
    hard.update([0.3, 0.9], [0, 1])
    soft.update([0.3, 0.9, 0.5], [0, 1, 0.5], weight=[1, 1, 0])
    assert soft.result() == pytest.approx(hard.result(), rel=1e-12)


def test_a_sure_and_wrong_prediction_costs_a_finite_amount() -> None:
    loss = LogLoss()
    loss.update([0.0, 1.0], [1, 0])
    assert loss.result() == pytest.approx(-math.log(1e-7))


def test_calibration_without_a_positive_label_is_nan() -> None:
    calibration = Calibration()
    calibration.update([0.5], [0])
    assert math.isnan(calibration.result())


def test_log_loss_refuses_what_is_no_probability_and_mse_takes_it() -> None:
    with pytest.raises(DataError, match="a prediction is 7"):
        LogLoss().update([7.0], [1])
    error = MeanSquaredError()
    error.update([7.0], [-1.0])
    assert error.result() == 64

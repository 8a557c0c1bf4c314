from __future__ import annotations

import pytest
import torch

from monolith.compat.tasks import MetricWindow, accumulate
from monolith.core.errors import ConfigError


def test_values_past_the_end_wrap_to_the_front() -> None:
    assert accumulate(torch.arange(4), torch.tensor([10, 20]), 3).tolist() == [20, 1, 2, 13]
    with pytest.raises(ConfigError, match="the second not the longer"):
        accumulate(torch.zeros(2), torch.zeros(3), 0)


def test_a_window_gathers_steps_of_different_sizes_and_resets() -> None:
    window = MetricWindow(every_n_steps=3, rows_per_step=2)
    complete = []
    for step in range(1, 5):
        rows = torch.full((step % 3,), float(step))
        complete.append(window.add(step, {"label": rows, "uid": rows.long()}))
        if step == 3:
            assert window.values()["label"].tolist() == [1, 2, 2]
            assert window.values()["uid"].dtype is torch.int64
    assert complete == [False, False, True, False]
    assert window.values()["label"].tolist() == [4.0]


def test_a_window_of_one_step_holds_that_step() -> None:
    window = MetricWindow(1, 2)
    for step in (1, 2):
        assert window.add(step, {"x": torch.tensor([float(step)])})
        assert window.values()["x"].tolist() == [step]


def test_a_window_refuses_rows_that_do_not_fit() -> None:
    window = MetricWindow(2, 2)
    with pytest.raises(ConfigError, match="step 1 gives 3 rows"):
        window.add(1, {"x": torch.zeros(3)})
    with pytest.raises(ConfigError, match="vectors of one length"):
        window.add(1, {"x": torch.zeros(1), "y": torch.zeros(2)})
    window.add(1, {"x": torch.zeros(1)})
    with pytest.raises(ConfigError, match="keep the names"):
        window.add(2, {"y": torch.zeros(1)})
    with pytest.raises(ConfigError, match="both must be 1 or more"):
        MetricWindow(0, 1)

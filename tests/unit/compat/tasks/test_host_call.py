from __future__ import annotations

import pytest
import torch

from monolith.compat.tasks import BaseHostCall, MetricWindow, accumulate, sampled_rows
from monolith.core.errors import ConfigError


def test_tensors_are_packed_by_dtype_and_come_back_by_name() -> None:
    call = BaseHostCall("out")
    call.record_summary_tensor("loss", torch.tensor(0.5))
    call.record_summary_tensor("ids", torch.tensor([4, 5]))
    call.record_summary_tensor("labels", torch.tensor([1.0, 0.0]))
    packed = call.compress_tensors(7)
    assert [tensor.tolist() for tensor in packed] == [[[7, 4, 5]], [[0.5, 1.0, 0.0]]]
    step, values = call.decompress_tensors(packed)
    assert step == 7
    assert {name: value.tolist() for name, value in values.items()} == {
        "ids": [4, 5],
        "loss": [0.5],
        "labels": [1.0, 0.0],
    }
    assert call.generate_host_call_hook() is None


def test_values_of_several_replicas_come_in_a_row() -> None:
    call = BaseHostCall()
    call.record_summary_tensor("labels", torch.tensor([1.0, 0.0]))
    step, labels = call.compress_tensors(3)
    found = call.decompress_tensors([torch.cat([step, step]), torch.cat([labels, labels + 2])])
    assert found[0] == 3
    assert found[1]["labels"].tolist() == [1, 0, 3, 2]


def test_a_transfer_begins_empty() -> None:
    call = BaseHostCall()
    call.record_summary_tensor("loss", torch.tensor(1.0))
    call.compress_tensors(1)
    call.record_summary_tensor("loss", torch.tensor(2.0))
    assert call.decompress_tensors(call.compress_tensors(2))[1]["loss"].tolist() == [2.0]


def test_nothing_is_recorded_when_it_is_off() -> None:
    call = BaseHostCall("", enable_host_call=False)
    call.record_summary_tensor("loss", torch.ones(2, 2))
    assert call.decompress_tensors(call.compress_tensors(1)) == (1, {})


def test_bad_tensors_are_named() -> None:
    call = BaseHostCall()
    call.record_summary_tensor("loss", torch.tensor(1.0))
    for name in ("loss", "global_step"):
        with pytest.raises(ConfigError, match=f"'{name}' is recorded already"):
            call.record_summary_tensor(name, torch.tensor(1.0))
    with pytest.raises(ConfigError, match=r"'rows' has shape \(2, 2\)"):
        call.record_summary_tensor("rows", torch.ones(2, 2))
    packed = call.compress_tensors(1)
    with pytest.raises(ConfigError, match=r"widths \[1, 1\]"):
        call.decompress_tensors(packed[:1])


def test_values_past_the_end_wrap_to_the_front() -> None:
    assert accumulate(torch.arange(4), torch.tensor([10, 20]), 3).tolist() == [20, 1, 2, 13]
    with pytest.raises(ConfigError, match="the second not the longer"):
        accumulate(torch.zeros(2), torch.zeros(3), 0)


def test_users_of_the_first_buckets_are_sampled() -> None:
    uid = torch.tensor([0, 9, 10, 1003, 999, -995])
    assert sampled_rows(uid, most=None).tolist() == [0, 1, 3, 5]
    assert sampled_rows(uid, most=2).tolist() == [0, 1]
    assert sampled_rows(uid, ratio=1.0, most=None).tolist() == list(range(6))
    assert sampled_rows(uid, ratio=0.0).tolist() == []


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

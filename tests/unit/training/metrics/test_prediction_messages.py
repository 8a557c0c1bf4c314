from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from monolith.core.errors import ConfigError, DataError
from monolith.data import Batch, Texts
from monolith.training.metrics.prediction_messages import folder_by_day, prediction_messages, sampled_rows
from step_results import head_result


def batch(**extras: Any) -> Batch:
    return Batch.from_arrays(
        label=[[0.0], [1.0], [1.0]], uid=[5, 6, 7], event_time_s=[10, 20, 30], sample_rate=[1, 0.5, 0.25], extras=extras
    )


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(0, 999))
def test_a_user_is_in_the_sample_always_or_never(uids: list[int], buckets: int) -> None:
    kept = sampled_rows(np.array(uids, np.int64), buckets / 1000).tolist()
    assert kept == [row for row, uid in enumerate(uids) if uid % 1000 < buckets and uid != 0]


def test_a_ratio_below_a_bucket_is_a_bucket_and_none_is_none() -> None:
    assert sampled_rows([1000, 1001], 0.0001).tolist() == [0]
    assert sampled_rows([1000, 1001], 0.0).tolist() == []


def test_rows_without_a_uid_are_in_the_sample_only_when_all_are() -> None:
    assert sampled_rows([0, 0], 0.999).tolist() == []
    assert sampled_rows([0, 0], 1).tolist() == [0, 1]


def test_a_ratio_is_a_share() -> None:
    with pytest.raises(ConfigError, match=r"between 0 and 1, got 1\.5"):
        sampled_rows([1], 1.5)


def test_a_message_tells_of_one_row() -> None:
    heads = {
        "ctr": head_result("ctr", [0.25, 0.5, 0.75], [0, 1, 1]),
        "cvr": head_result("cvr", [0.0, 1.0, 0.5], [0, 1, 1], mask=np.array([True, True, False])),
        "silent": head_result("silent", [0.5, 0.5, 0.5], None),
    }
    [_, message] = prediction_messages(np.array([0, 2]), batch(), heads, model_name="m")
    assert message == {
        "model_name": "m",
        "req_time": 30,
        "uid": 7,
        "sample_rate": 0.25,
        "predict": {"ctr": 0.75, "cvr": 0.5, "silent": 0.5},
        "label": {"ctr": 1.0},
    }


def test_extra_fields_are_grouped_by_type() -> None:
    texts = Texts(np.frombuffer(b"ab\xffc", np.uint8), np.array([0, 1, 3, 4]))
    rows = Batch.from_arrays(label=[[0.0]] * 3, extras={"gid": [[1], [2], [3]], "price": [[0.5, 1.5]] * 3})
    rows = Batch(**{name: getattr(rows, name) for name in rows.__slots__} | {"extras": {**rows.extras, "city": texts}})
    heads = {"ctr": head_result("ctr", [0.5] * 3, None)}
    messages = prediction_messages(np.array([1]), rows, heads, model_name="m", extra_fields=["gid", "price", "city"])
    [message] = messages
    assert message["extra_int"] == {"gid": 2}
    assert message["extra_float"] == {"price": [0.5, 1.5]}
    assert message["extra_str"] == {"city": "b�"}
    assert message["gid"] == 2


def test_a_field_that_the_batch_has_not_is_told() -> None:
    with pytest.raises(ConfigError, match="the batch has no 'gid'"):
        list(prediction_messages(np.array([1]), batch(), {}, model_name="m", extra_fields=["gid"]))


def test_tensors_are_as_good_as_arrays() -> None:
    tensors = batch(gid=[[1], [2], [3]]).as_torch()
    rows = sampled_rows(tensors.uid, 0.007)
    heads = {"ctr": head_result("ctr", [0.25, 0.5, 0.75], [0, 1, 1])}
    [one, two] = prediction_messages(rows, tensors, heads, model_name="m", extra_fields=["gid"])
    assert (one["uid"], one["gid"], two["uid"], two["gid"]) == (5, 1, 6, 2)


def test_what_cannot_be_filed_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected unix time"):
        folder_by_day({"model_name": "m", "req_time": 10**18}, 0, tmp_path)
    with pytest.raises(DataError, match="plain names"):
        folder_by_day({"model_name": "../m", "req_time": 0}, 0, tmp_path)

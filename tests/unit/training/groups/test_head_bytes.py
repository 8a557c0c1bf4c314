"""Results of heads as bytes, and those of several ranks as one."""

from __future__ import annotations

import numpy as np

from monolith.training.groups.ranks.head_bytes import join_heads, read_heads, write_heads
from monolith.training.hooks import HeadResult


def head(name: str, *predictions: float, mask: list[bool] | None = None, is_classification: bool = True) -> HeadResult:
    values = np.array(predictions, np.float32)
    return HeadResult(
        name=name,
        predictions=values,
        label=np.round(values),
        mask=None if mask is None else np.array(mask),
        weight=None,
        is_classification=is_classification,
    )


def test_heads_come_back_as_they_were() -> None:
    heads = {"a": head("a", 0.25, 0.75, mask=[True, False]), "b": head("b", 3.5, is_classification=False)}
    found = read_heads(write_heads(heads))
    assert list(found) == ["a", "b"]
    assert found["a"].predictions.tolist() == [0.25, 0.75]
    assert found["a"].mask is not None
    assert found["a"].mask.tolist() == [True, False]
    assert found["a"].weight is not None
    assert found["a"].weight.tolist() == [1, 1]
    assert not found["b"].is_classification


def test_a_head_without_a_label_is_not_sent() -> None:
    said = HeadResult(name="a", predictions=np.ones(2, np.float32), label=None, mask=None, weight=None)
    assert read_heads(write_heads({"a": said})) == {}


def test_ranks_are_joined_in_order_and_one_without_a_batch_adds_nothing() -> None:
    said = [{"a": head("a", 0.1)}, {}, {"a": head("a", 0.2, 0.3)}]
    joined = join_heads([read_heads(write_heads(heads)) for heads in said])
    assert np.round(joined["a"].predictions, 3).tolist() == np.array([0.1, 0.2, 0.3], np.float32).round(3).tolist()

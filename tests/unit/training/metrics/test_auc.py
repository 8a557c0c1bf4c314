"""AUC against the definition: the share of pairs in the right order."""

from __future__ import annotations

import json
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from monolith.core.errors import ConfigError, DataError
from monolith.training.metrics import StreamingAuc

# Few distinct values, so that ties are common; the ends and their neighbours are among them.
SCORES = st.one_of(
    st.sampled_from([0.0, -0.0, 1e-40, 1e-12, 0.25, 0.49999997, 0.5, 0.50000006, 0.75, 0.99999994, 1.0]),
    st.floats(0, 1, width=32),
)
ROWS = st.lists(st.tuples(SCORES, st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.5, 1.0, 3.0])), max_size=60)
Row = tuple[float, float, float]


def brute_force(rows: list[Row]) -> float:
    """Every pair of a positive share and a negative share; equal predictions count half."""
    right = pairs = 0.0
    for p, y, w in rows:
        for q, z, v in rows:
            both = w * y * v * (1 - z)
            pairs += both
            right += both * (float(np.float32(p) > np.float32(q)) + 0.5 * float(np.float32(p) == np.float32(q)))
    return right / pairs if pairs else math.nan


def auc_of(rows: list[Row], auc: StreamingAuc | None = None, batch: int = 7) -> StreamingAuc:
    auc = auc or StreamingAuc()
    for begin in range(0, len(rows), batch):
        p, y, w = np.array(rows[begin : begin + batch], np.float32).T
        auc.update(p, y, weight=w)
    return auc


@given(ROWS)
def test_it_equals_the_definition_with_weights_and_ties(rows: list[Row]) -> None:
    auc = auc_of(rows)
    assert auc.is_exact
    assert auc.error_bound() == 0
    assert auc.result() == pytest.approx(brute_force(rows), abs=1e-12, nan_ok=True)


@given(ROWS)
def test_without_weights_it_equals_the_definition(rows: list[Row]) -> None:
    rows = [(p, y, 1.0) for p, y, _ in rows]
    assert auc_of(rows).result() == pytest.approx(brute_force(rows), abs=1e-12, nan_ok=True)


@given(st.lists(st.tuples(SCORES, st.sampled_from([0.0, 0.25, 1.0]), st.sampled_from([1.0, 2.0])), max_size=30))
def test_a_label_in_between_is_partly_positive_and_partly_negative(rows: list[Row]) -> None:
    assert auc_of(rows).result() == pytest.approx(brute_force(rows), abs=1e-12, nan_ok=True)


@given(ROWS, st.integers(0, 30), st.sampled_from([1 << 7, 1 << 17]))
def test_past_the_exact_size_the_truth_is_within_the_bound(rows: list[Row], exact_size: int, bins: int) -> None:
    auc = auc_of(rows, StreamingAuc(exact_size, bins))
    truth = brute_force(rows)
    if math.isnan(truth):
        assert math.isnan(auc.result())
    else:
        assert abs(auc.result() - truth) <= auc.error_bound() + 1e-12
    if len(rows) > exact_size:
        assert not auc.is_exact


def test_the_bound_is_small_for_predictions_of_a_usual_shape() -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(-3, 1.5, 100_000)
    p = (1 / (1 + np.exp(-logits))).astype(np.float32)
    y = (rng.random(len(p)) < p).astype(np.float32)
    exact, rough = StreamingAuc(), StreamingAuc(1000)
    for auc in (exact, rough):
        auc.update(p, y)
    assert exact.is_exact
    assert 0 < rough.error_bound() < 1e-4
    assert abs(exact.result() - rough.result()) <= rough.error_bound()


@given(ROWS, ROWS, st.integers(0, 70), st.integers(0, 70))
def test_merging_is_counting_both(one: list[Row], other: list[Row], size: int, other_size: int) -> None:
    left, right = auc_of(one, StreamingAuc(size, 1 << 10)), auc_of(other, StreamingAuc(other_size, 1 << 10))
    before = json.dumps(right.state())
    left.merge(right)
    truth = brute_force(one + other)
    assert left.result() == pytest.approx(truth, abs=left.error_bound() + 1e-12, nan_ok=True)
    assert json.dumps(right.state()) == before


@given(ROWS, ROWS, st.integers(0, 70))
def test_a_restored_one_goes_on_exactly(before: list[Row], after: list[Row], size: int) -> None:
    straight = auc_of(after, auc_of(before, StreamingAuc(size, 1 << 10)))
    resumed = auc_of([(0.5, 1.0, 9.0)], StreamingAuc(size, 1 << 10))
    resumed.restore(json.loads(json.dumps(auc_of(before, StreamingAuc(size, 1 << 10)).state())))
    auc_of(after, resumed)
    assert resumed.state() == straight.state()
    assert resumed.error_bound() == straight.error_bound()
    assert str(resumed.result()) == str(straight.result())


def test_masked_rows_do_not_count_even_when_they_are_nan() -> None:
    auc = StreamingAuc()
    auc.update([0.1, math.nan, 0.9], [0, math.nan, 1], mask=[True, False, True])
    assert auc.result() == 1


@pytest.mark.parametrize("label", [[], [0.0, 0.0], [1.0, 1.0]])
def test_no_rows_or_one_class_only_give_nan(label: list[float]) -> None:
    auc = StreamingAuc()
    assert math.isnan(auc.result())
    auc.update([0.5] * len(label), label)
    assert math.isnan(auc.result())
    rough = StreamingAuc(0)
    rough.update([0.5] * len(label), label)
    assert math.isnan(rough.result())
    assert rough.error_bound() == 0


def test_a_batch_may_be_changed_after_it_was_counted() -> None:
    p, y = np.array([0.1, 0.9], np.float32), np.array([0, 1], np.float32)
    auc = StreamingAuc()
    auc.update(p, y)
    p[:] = 0.5
    assert auc.result() == 1


def test_reset_makes_it_exact_again() -> None:
    auc = StreamingAuc(1)
    auc.update([0.1, 0.9], [0, 1])
    auc.reset()
    assert auc.is_exact
    assert math.isnan(auc.result())


@pytest.mark.parametrize(
    ("predictions", "label", "weight", "text"),
    [
        ([0.5, math.nan], [0, 1], None, "1 of 2 predictions are NaN or infinite; lower the learning rates"),
        ([0.5, 0.5], [0, math.inf], None, "1 of 2 labels are NaN or infinite; mask rows"),
        ([0.5, 1.5], [0, 1], None, "a prediction is 1.5, but probabilities lie between 0 and 1"),
        ([0.5, 0.5], [-1, 1], None, "a label is -1, but .* is_classification=False"),
        ([0.5, 0.5], [0, 1], [1, math.nan], "1 of 2 weights are NaN"),
    ],
)
def test_what_cannot_be_counted_is_told(
    predictions: list[float], label: list[float], weight: list[float] | None, text: str
) -> None:
    with pytest.raises(DataError, match=text):
        StreamingAuc().update(predictions, label, weight=weight)


def test_an_undo_row_of_a_joiner_counts_in_no_metric() -> None:
    auc = StreamingAuc()
    auc.update([0.9, 0.1, 0.2, 0.8], [0, 0, 1, 1], weight=[-1, 1, 1, 1])
    plain = StreamingAuc()
    plain.update([0.1, 0.2, 0.8], [0, 1, 1])
    assert auc.result() == plain.result() == 1


def test_arrays_of_other_shapes_are_told() -> None:
    with pytest.raises(ConfigError, match=r"shape \(B,\), got predictions \(2,\), label \(1,\)"):
        StreamingAuc().update([0.5, 0.5], [1])
    with pytest.raises(ConfigError, match=r"predictions \(1, 2\)"):
        StreamingAuc().update([[0.5, 0.5]], [[1, 0]])


@pytest.mark.parametrize("bins", [0, 100, 1 << 6, 1 << 25])
def test_bins_must_be_a_power_of_two(bins: int) -> None:
    with pytest.raises(ConfigError, match=f"bins must be a power of two between .* got {bins}"):
        StreamingAuc(bins=bins)


def test_another_number_of_bins_cannot_be_taken_in() -> None:
    auc = StreamingAuc(bins=1 << 10)
    with pytest.raises(ConfigError, match="an AUC of 131072 bins cannot be taken into one of 1024"):
        auc.merge(StreamingAuc())
    with pytest.raises(ConfigError, match="bins"):
        auc.restore(StreamingAuc().state())

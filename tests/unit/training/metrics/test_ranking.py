"""GAUC, NDCG, recall and the AUC by hour, against plain loops over groups."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith.core.errors import ConfigError, DataError
from monolith.data import Batch
from monolith.data.batch import Ragged, Texts
from monolith.training.config.job import JobConfig
from monolith.training.metrics.ranking import RankingMetrics, auc_of_groups, rank_in_groups
from monolith.training.run import HeadResult, StepResult
from monolith.training.runner import Job


def plain_auc(predictions: Any, labels: Any) -> float:
    positive, negative = predictions[labels > 0], predictions[labels == 0]
    if not len(positive) or not len(negative):
        return math.nan
    return float(np.mean([(p > n) + 0.5 * (p == n) for p in positive for n in negative]))


def plain_rank(predictions: Any, labels: Any, k: int) -> tuple[float, float]:
    order = sorted(range(len(labels)), key=lambda row: -predictions[row])
    best = sorted(labels, reverse=True)
    dcg = sum(labels[row] / math.log2(place + 2) for place, row in enumerate(order[:k]))
    ideal = sum(label / math.log2(place + 2) for place, label in enumerate(best[:k]))
    return dcg / ideal, sum(labels[row] for row in order[:k]) / sum(labels)


@pytest.mark.parametrize("seed", range(5))
def test_groups_agree_with_plain_loops(seed: int) -> None:
    random = np.random.default_rng(seed)
    groups = random.integers(0, 12, 200)
    predictions = random.integers(0, 20, 200) / 20
    labels = random.integers(0, 2, 200).astype(float)
    names, aucs, sizes = auc_of_groups(predictions, labels, groups)
    for name, auc, size in zip(names, aucs, sizes, strict=True):
        own = groups == name
        assert size == own.sum()
        assert auc == pytest.approx(plain_auc(predictions[own], labels[own]), nan_ok=True)
    predictions = random.permutation(200) / 200
    expected = [
        plain_rank(predictions[own], labels[own], 3)
        for own in (groups == name for name in range(12))
        if labels[own].sum()
    ]
    assert rank_in_groups(predictions, labels, groups, 3) == pytest.approx(np.mean(expected, axis=0).tolist())


def step(labels: Any, predictions: Any, mask: Any = None, **fields: Any) -> StepResult:
    batch = Batch.from_arrays(label=labels, **fields)
    head = HeadResult(
        name="ctr",
        predictions=np.asarray(predictions, np.float32),
        label=np.asarray(labels, np.float32),
        mask=None if mask is None else np.asarray(mask),
        weight=None,
    )
    return StepResult(step=1, loss=0.0, heads={"ctr": head}, batch=batch, samples=len(labels), ids=0)


def test_batches_are_counted_together_and_rows_without_a_label_are_not() -> None:
    metrics = RankingMetrics("user", top_k=1)
    metrics.update(step([1, 0, 1], [0.9, 0.2, 0.0], [True, True, False], ids={"user": [[1], [1], [1]]}))
    metrics.update(step([0, 1, 0], [0.8, 0.1, 0.3], ids={"user": [[2], [2], []]}))
    found = metrics.results()
    assert found == {"ctr/gauc": 0.5, "ctr/ndcg@1": 0.5, "ctr/recall@1": 0.5}


def test_undo_rows_are_not_counted() -> None:
    found = step([1, 0, 0], [0.9, 0.1, 0.9], [True, True, True], ids={"user": [[1], [1], [1]]})
    undone = dataclasses.replace(found.heads["ctr"], weight=np.array([1, 0, -1], np.float32))
    metrics = RankingMetrics("user", by_hour=True)
    metrics.update(dataclasses.replace(found, heads={"ctr": undone}))
    assert metrics.results()["ctr/gauc"] == 1.0
    assert metrics.results()["ctr/auc_by_hour"] == 1.0


@pytest.mark.parametrize("mask", [None, [True, True, False]])
def test_a_feature_that_is_stored_once_for_all_rows_is_the_group_of_all_rows(mask: list[bool] | None) -> None:
    found = step([1, 0, 0], [0.9, 0.2, 0.1], mask)
    shared = dataclasses.replace(found.batch, ids={"user": Ragged(np.array([7]), np.array([0, 1]), shared=True)})
    metrics = RankingMetrics("user")
    metrics.update(dataclasses.replace(found, batch=shared))
    metrics.update(step([1, 0], [0.1, 0.3], ids={"user": [[7], [7]]}))
    expected = 3.5 / 6 if mask is None else 2 / 4
    assert metrics.results()["ctr/gauc"] == pytest.approx(expected)


def test_numbers_of_any_type_are_groups_by_their_value() -> None:
    labels, predictions = [1, 0, 1, 0], [0.9, 0.2, 0.1, 0.8]
    large = Ragged(np.array([2**63 + 1, 2**63 + 1, 2**63 + 2, 2**63 + 2], np.uint64), np.arange(5))
    for fields in (
        {"ids": {"user": large}},
        {"dense": {"user": [[0.25], [0.25], [0.75], [0.75]]}},
        {"dense": {"user": [[0.0], [-0.0], [math.nan], [math.nan]]}},
        {"uid": [3, 3, 4, 4]},
    ):
        metrics = RankingMetrics("uid" if "uid" in fields else "user")
        metrics.update(step(labels, predictions, **fields))
        assert metrics.results()["ctr/gauc"] == 0.5


@pytest.mark.parametrize("group_by", ["uid", "user", "age"])
def test_a_batch_without_rows_counts_nothing(group_by: str) -> None:
    metrics = RankingMetrics(group_by, by_hour=True)
    metrics.update(step([], [], ids={"user": []}, dense={"age": np.zeros((0, 1))}))
    assert metrics.results() == {}


def test_a_text_is_refused_as_a_group() -> None:
    texts = Texts(np.frombuffer(b"abcb", np.uint8), np.array([0, 2, 4]))
    found = step([1, 0], [0.9, 0.2], ids={"user": [[1], [2]]})
    batch = dataclasses.replace(found.batch, dense={"name": texts})
    with pytest.raises(ConfigError, match="group_by is 'name', which is text, expected ids or numbers; declare it"):
        RankingMetrics("name").update(dataclasses.replace(found, batch=batch))


def test_each_hour_of_event_time_has_an_auc() -> None:
    metrics = RankingMetrics(by_hour=True)
    times = [1_700_000_000, 1_700_000_100, 1_700_003_600, 1_700_003_700, 1_700_003_800]
    metrics.update(step([1, 0, 1, 0, 0], [0.9, 0.2, 0.1, 0.5, 0.4], event_time_s=times))
    assert metrics.results() == {
        "ctr/auc_by_hour": pytest.approx(2 / 5),
        "ctr/auc/2023-11-14T22": 1.0,
        "ctr/auc/2023-11-14T23": 0.0,
    }


def test_an_unknown_group_and_too_many_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"group_by is 'usr', expected a feature: .*user"):
        RankingMetrics("usr").update(step([1], [0.5], ids={"user": [[1]]}))
    with pytest.raises(DataError, match="more than 1 rows"):
        RankingMetrics("uid", most_rows=1).update(step([1, 0], [0.5, 0.5], uid=[3, 4]))


def test_nothing_is_measured_unless_asked() -> None:
    metrics = RankingMetrics()
    metrics.update(step([1], [0.5]))
    assert not metrics.is_on
    assert metrics.results() == {}


def test_jobs_measure_groups_and_hours_in_training_and_evaluation(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    table = {
        "user": random.integers(0, 9, 300),
        "movie": random.integers(0, 9, 300),
        "click": random.integers(0, 2, 300),
        "at": 1_700_000_000 + np.arange(300) * 30,
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    settings: dict[str, Any] = {
        "data": str(tmp_path / "a.parquet"),
        "label_features": ("click",),
        "time_column": "at",
        "model_dir": str(tmp_path / "run"),
        "group_by": "user",
        "top_k": 3,
        "auc_by_hour": True,
        "threads": 1,
        "log_step_count_steps": 0,
        "save_summary_steps": 0,
        "batch_size": 50,
    }
    trained = Job(JobConfig(task="deepfm", task_options={"dim": 2, "hidden": [4]}, **settings)).train()
    evaluated = Job(JobConfig(**settings)).evaluate()
    for metrics in (trained, evaluated):
        assert {"ctr/auc", "ctr/gauc", "ctr/ndcg@3", "ctr/recall@3", "ctr/auc_by_hour"} <= set(metrics)
        assert len([name for name in metrics if name.startswith("ctr/auc/2023-11-1")]) == 3

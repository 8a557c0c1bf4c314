"""Inputs that are NaN or infinite are named where a training stops and where rows are scored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import monolith as mt
from monolith.core.errors import TrainingDiverged
from monolith.training.config.job import JobConfig
from monolith.training.finite_inputs import describe_not_finite
from monolith.training.runner import Job


def make_batch(*ages: float) -> mt.Batch:
    rows = len(ages)
    dense = {"age": np.array(ages, np.float32)[:, None], "price": np.ones((rows, 1), np.float32)}
    return mt.Batch.from_arrays(ids={"user": [[7]] * rows}, dense=dense, label=[1.0] * rows)


def make_estimator() -> mt.Estimator:
    def make() -> mt.Model:
        return mt.models.DeepFM(sparse=["user"], dense=["age", "price"], dim=2, hidden=[4])

    return mt.Estimator(make, mt.RunConfig(log_step_count_steps=0, threads=1))


def test_rows_are_counted_per_feature() -> None:
    assert describe_not_finite(make_batch(1, np.nan, np.inf)) == "feature 'age' is NaN or infinite in 2 of 3 rows"
    assert describe_not_finite(make_batch(1, 2)) == ""


def test_a_missing_key_is_not_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ages = np.arange(8, dtype=np.float32)
    columns = {"user": np.arange(8), "age": ages, "price": np.array([0.5, np.nan] * 4), "label": ages % 2}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    config = JobConfig(
        data=str(tmp_path / "rows.parquet"), model_dir=str(tmp_path / "model"), task="deepfm", batch_size=4,
        keys=("price",), label_features=("label",), exclude=("price",), log_step_count_steps=0, threads=1, epochs=1,
    )  # fmt: skip
    Job(config).train()
    caplog.clear()
    found = list(Job(config).predict())
    assert [key for batch in found for key in batch["price"]] == [0.5, None] * 4
    assert "not finite" not in caplog.text


def test_a_diverged_training_names_the_feature() -> None:
    with pytest.raises(TrainingDiverged, match=r"ctr = nan; feature 'age' is NaN or infinite in 1 of 2 rows"):
        make_estimator().train([make_batch(1, np.nan)])


def test_scores_of_inputs_that_are_not_finite_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    estimator = make_estimator()
    estimator.train([make_batch(1, 2)])
    assert "not finite" not in caplog.text
    list(estimator.predict([make_batch(1, 2), make_batch(np.inf), make_batch(np.nan)]))
    assert caplog.text.count("inputs not finite") == 1
    assert "'age' is NaN or infinite in 1 of 1 rows" in caplog.text

"""The report of the columns of a training: roles, types, missing values, and warnings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import monolith as mt
from monolith.data import Schema, SparseFeature
from monolith.data.profile import profile_rows
from monolith.training.config.job import JobConfig
from monolith.training.data_report import DataReport, make_report
from monolith.training.runner import Job

ROWS = 400
RANDOM = np.random.default_rng(3)
CLICK = RANDOM.integers(0, 2, ROWS)


def report(columns: dict[str, Any], schema: Schema, **options: Any) -> DataReport:
    table = pa.table({"click": CLICK, **columns})
    return make_report(profile_rows(mt.data.frame(table)), schema, **options)


def schema_of(*names: str, dense: tuple[str, ...] = ()) -> Schema:
    sparse = [SparseFeature(name, slot + 1) for slot, name in enumerate(names)]
    return Schema(sparse=sparse, dense=dense, label_features=["click"])


def test_each_column_has_a_role_a_type_its_missing_share_and_first_values() -> None:
    columns = {
        "user": RANDOM.integers(0, 9, ROWS),
        "genres": [["a", "b"], []] * (ROWS // 2),
        "price": pa.array([0.5, None, 1.5, 2.5] * (ROWS // 4)),
        "instance_weight": np.full(ROWS, 2.0),
        "note": ["x"] * ROWS,
    }
    made = report(columns, schema_of("user", "genres", dense=("price",)))
    shown = {each.name: (each.role, each.type, each.missing) for each in made.columns}
    assert shown == {
        "click": ("label", "int", 0),
        "user": ("sparse", "int", 0),
        "genres": ("sparse", "list of text", 0.5),
        "price": ("dense", "float", 0.25),
        "note": ("not read", "text", 0),
        "instance_weight": ("weight", "float", 0),
    }
    assert {each.name: each.first for each in made.columns}["price"] == ("0.5", "1.5", "2.5")
    assert {each.name: each.first for each in made.columns}["genres"][0] == "[a, b]"
    assert made.warnings == ()


def test_weights_of_which_some_are_0_are_one_column_without_missing_values() -> None:
    made = report({"user": RANDOM.integers(0, 9, ROWS), "instance_weight": [0.0, 2.0] * (ROWS // 2)}, schema_of("user"))
    assert [(each.name, each.missing) for each in made.columns if each.role == "weight"] == [("instance_weight", 0)]


def test_a_label_that_the_model_does_not_learn_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    columns = {"user": RANDOM.integers(0, 9, ROWS), "click": CLICK, "like": RANDOM.integers(0, 2, ROWS)}
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")
    for task in ("mmoe", "deepfm"):
        assert "is not learned" not in caplog.text
        config = JobConfig(task=task, data=str(tmp_path / "data.parquet"), label_features=("click", "like"), threads=1)
        Job(config).train()
    assert "label 'like' is not learned: the model learns 1" in caplog.text


@pytest.mark.parametrize(
    ("values", "is_leak"),
    [
        (CLICK * 3 + RANDOM.integers(0, 3, ROWS), True),
        (CLICK + RANDOM.random(ROWS) * 0.9, True),
        (["yes" if each else "no" for each in CLICK], True),
        (np.arange(ROWS), False),
        (RANDOM.integers(0, 9, ROWS), False),
        (np.where(np.arange(ROWS) == 5, 1 - CLICK, CLICK), False),
    ],
    ids=["rating", "threshold", "text", "unique", "random", "nearly"],
)
def test_a_feature_that_predicts_the_label_perfectly_is_a_warning(values: Any, is_leak: bool) -> None:
    made = report({"rating": values}, schema_of("rating"))
    assert ("column 'rating' predicts label 'click' perfectly" in " ".join(made.warnings)) == is_leak
    assert not report({"rating": values}, schema_of()).warnings, "a column that is not read does no harm"


def test_ids_that_are_stored_as_reals_are_a_warning() -> None:
    users = pa.array([None if number % 7 == 0 else float(number % 11) for number in range(ROWS)])
    assert (
        "'user' has whole numbers and missing values" in report({"user": users}, schema_of(dense=("user",))).warnings[0]
    )


def test_a_column_that_numbers_the_rows_is_a_warning() -> None:
    made = report({"row": np.arange(ROWS) + 7}, schema_of("row"))
    assert "column 'row' grows by one in every row" in made.warnings[0]
    assert "--exclude row" in made.warnings[0]
    assert not report({"row": np.arange(ROWS) * 2}, schema_of("row")).warnings
    assert not report({"row": np.arange(ROWS)}, schema_of()).warnings


def test_times_that_are_read_as_text_are_a_warning() -> None:
    times = [f"2026-03-29T0{row % 10}:{row % 60:02}:07.25+02:00" for row in range(ROWS)]
    made = report({"at": times}, schema_of("at"))
    assert "column 'at' has times as text" in made.warnings[0]
    assert "--time-column at" in made.warnings[0]
    assert not report({"at": times}, schema_of()).warnings
    assert not report({"at": [*times[1:], "now"]}, schema_of("at")).warnings
    assert not report({"day": ["2026-03-29", "2026-03-30"] * (ROWS // 2)}, schema_of("day")).warnings


def test_expiry_without_event_times_is_a_warning() -> None:
    columns = {"user": RANDOM.integers(0, 9, ROWS)}
    made = report(columns, schema_of("user"), expire_days={"user": 30})
    assert "tables user have expire_days, and no row" in made.warnings[0]
    assert "--time-column" in made.warnings[0]
    assert not report(columns, schema_of("user"), expire_days={"user": 36500}).warnings
    columns["__REQ_TIME__"] = RANDOM.integers(1_700_000_000, 1_700_009_999, ROWS)
    assert not report(columns, schema_of("user"), expire_days={"user": 30}).warnings


def test_sorted_rows_without_shuffling_are_a_warning() -> None:
    columns = {"user": np.sort(RANDOM.integers(0, 99, ROWS))}
    made = report(columns, schema_of("user"), is_shuffled=False)
    assert "sorted by 'user' and not shuffled" in made.warnings[0]
    assert "--shuffle-buffer" in made.warnings[0]
    assert not report(columns, schema_of("user"), is_shuffled=True).warnings


def taste_table(path: Path) -> str:
    """Write clicks that are sorted by movie, as a trained model must not see them."""
    random = np.random.default_rng(1)  # not RANDOM, whose state depends on the tests before
    movie, user = np.sort(random.integers(0, 40, 8000)), random.integers(0, 60, 8000)
    chance = 1 / (1 + np.exp(-3 * np.sin(user) * np.cos(movie)))
    click = (random.random(8000) < chance).astype(int)
    pq.write_table(pa.table({"user": user, "movie": movie, "click": click}), path)
    return str(path)


def job(path: str, **options: Any) -> Job:
    fixed: dict[str, Any] = {"threads": 1, "log_step_count_steps": 0, "save_summary_steps": 0, "batch_size": 64}
    return Job(JobConfig(task="deepfm", data=path, label_features=("click",), **{**fixed, **options}))


def test_a_job_reports_its_columns_and_warns_of_a_lost_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, reports = taste_table(tmp_path / "sorted.parquet"), []
    made = job(path, max_steps=2, exclude=("user",))
    made._on_report = reports.append
    with caplog.at_level(logging.INFO):
        made.train()
    assert "columns read label=click weight=none time=none sparse=movie dense=none" in caplog.text
    assert "the trained model is lost at the end; give --model-dir" in caplog.text
    assert [each.names("sparse") for each in reports] == [["movie"]]


def test_sorted_files_train_as_well_as_shuffled_ones_by_default(tmp_path: Path) -> None:
    path = taste_table(tmp_path / "sorted.parquet")
    aucs = {}
    for name, options in {
        "default": {},
        "in order": {"shuffle_buffer": 0},
        "explicit": {"shuffle_buffer": 8000},
    }.items():
        aucs[name] = job(path, eval_data=path, **options).train()["ctr/auc"]
    assert aucs["default"] == pytest.approx(aucs["explicit"], abs=1e-6)
    assert aucs["default"] > aucs["in order"] + 0.01


def test_a_resumed_training_keeps_the_window_of_its_folder(tmp_path: Path) -> None:
    path, folder = taste_table(tmp_path / "sorted.parquet"), str(tmp_path / "run")
    job(path, max_steps=3, shuffle_buffer=1000, model_dir=folder).train()
    resumed = job(path, model_dir=folder)
    resumed.train()
    assert resumed.estimator.step == 125
    whole = job(path, shuffle_buffer=1000)
    whole.train()
    assert resumed.evaluate()["ctr/auc"] == pytest.approx(whole.evaluate()["ctr/auc"], abs=1e-6)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_the_log_of_a_file_has_total_percent_epoch_and_time_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str
) -> None:
    path = taste_table(tmp_path / "a.parquet")
    if suffix == "csv":
        pa.csv.write_csv(pq.read_table(path), tmp_path / "a.csv")
        path = str(tmp_path / "a.csv")
    folder = str(tmp_path / "run")
    options: dict[str, Any] = {"batch_size": 500, "epochs": 2, "log_step_count_steps": 4, "model_dir": folder}
    with caplog.at_level(logging.INFO):
        job(path, max_steps=8, **options).train()
        assert "step finished step=4 total=8 percent=50.0 epoch=1/2" in caplog.text
        job(path, **options).train()
    assert "step finished step=20 total=32 percent=62.5 epoch=2/2" in caplog.text
    assert "step finished step=32 total=32 percent=100.0 epoch=2/2" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        job(path, more=True, **options).train()
    assert "step finished step=40 total=64 percent=25.0 epoch=1/2" in caplog.text, "a new pass starts at its own step"

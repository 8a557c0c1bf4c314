"""Jobs that must not train or measure: missing columns, missing labels, a folder in use, a contradicting task."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from monolith.core.errors import ConfigError, DataError, MonolithError, SchemaMismatch
from monolith.training.config.job import JobConfig
from monolith.training.folder_lock import lock_folder
from monolith.training.runner import Job

ROWS = 200


def columns(**changes: Any) -> dict[str, Any]:
    random = np.random.default_rng(5)
    made: dict[str, Any] = {
        "user": random.integers(0, 20, ROWS),
        "movie": random.integers(0, 20, ROWS),
        "age": random.random(ROWS),
        "click": random.integers(0, 2, ROWS),
    }
    made.update(changes)
    return {name: values for name, values in made.items() if values is not None}


def write(path: Path, **changes: Any) -> str:
    pq.write_table(pa.table(columns(**changes)), path)
    return str(path)


def job(folder: Path | None, data: str, **options: Any) -> Job:
    fixed: dict[str, Any] = {"batch_size": 50, "threads": 1, "log_step_count_steps": 0, "save_summary_steps": 0}
    options = {"task": "deepfm", "task_options": {"dim": 2, "hidden": [4]}, "label_features": ("click",), **options}
    return Job(JobConfig(model_dir="" if folder is None else str(folder), data=data, **{**fixed, **options}))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    job(tmp_path / "run", write(tmp_path / "train.parquet")).train()
    return tmp_path / "run"


def test_a_renamed_column_is_an_error_in_evaluate_predict_and_train(trained: Path, tmp_path: Path) -> None:
    renamed = write(tmp_path / "renamed.parquet", movie=None, movie_id=columns()["movie"])
    before = files_of(trained)
    text = r"renamed.parquet has no column 'movie', expected by the schema as feature; .*renamed to 'movie_id'"
    with pytest.raises(SchemaMismatch, match=text):
        job(trained, renamed, task=None).evaluate()
    with pytest.raises(SchemaMismatch, match=text):
        list(job(trained, renamed, task=None).predict())
    with pytest.raises(SchemaMismatch, match=text):
        job(trained, renamed, resume_data=False).train()
    assert files_of(trained) == before


@pytest.mark.parametrize("allowed", ["movie", "*"])
def test_an_allowed_missing_column_is_a_warning(
    trained: Path, tmp_path: Path, allowed: str, caplog: pytest.LogCaptureFixture
) -> None:
    renamed = write(tmp_path / "renamed.parquet", movie=None)
    assert job(trained, renamed, task=None, allow_missing=(allowed,)).evaluate()["samples"] == ROWS
    assert f"columns missing file={renamed} columns=movie" in caplog.text


def test_evaluate_without_the_label_column_is_an_error_and_predict_needs_no_label(
    trained: Path, tmp_path: Path
) -> None:
    bare = write(tmp_path / "bare.parquet", click=None)
    with pytest.raises(SchemaMismatch, match=r"has no column 'click', expected by the schema as label"):
        job(trained, bare, task=None).evaluate()
    assert sum(len(batch["ctr"]) for batch in job(trained, bare, task=None).predict()) == ROWS


def test_data_without_a_label_is_an_error_in_evaluate_and_train(trained: Path, tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.parquet", click=pa.nulls(ROWS, pa.float32()))
    with pytest.raises(DataError, match=f"none of the {ROWS} rows has a label, so there is nothing to measure"):
        job(trained, empty, task=None).evaluate()
    with pytest.raises(DataError, match="none of the first 4 batches has a label"):
        job(tmp_path / "new", empty).train()
    assert not list((tmp_path / "new").rglob("step-*")), "no checkpoint is saved"


def test_a_label_of_text_is_an_error_with_column_and_type(tmp_path: Path) -> None:
    text = write(tmp_path / "text.parquet", click=["yes"] * ROWS)
    with pytest.raises(SchemaMismatch, match=r"label column 'click' has type string, expected numbers"):
        job(tmp_path / "run", text).train()
    assert not (tmp_path / "run").exists(), "a refused training leaves no folder"


def test_a_training_that_the_data_refuses_leaves_no_summaries(tmp_path: Path) -> None:
    data = write(tmp_path / "train.parquet")
    with pytest.raises(SchemaMismatch, match="has no column 'clikc'"):
        job(tmp_path / "run", data, label_features=("clikc",), save_summary_steps=1).train()
    assert not (tmp_path / "run").exists()
    job(tmp_path / "run", data, save_summary_steps=1).train()
    assert len(list((tmp_path / "run").glob("events.*"))) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"task_options": {"dim": 8, "hidden": [4]}},
        {"label_features": ("clikc",)},
        {"task": "dcnv2", "task_options": {}},
    ],
    ids=["options", "label", "task"],
)
def test_a_refused_training_leaves_the_folder_as_it_was(trained: Path, tmp_path: Path, options: Any) -> None:
    before, metrics = files_of(trained), job(trained, str(tmp_path / "train.parquet"), task=None).evaluate()
    with pytest.raises(MonolithError):
        job(trained, str(tmp_path / "train.parquet"), **options).train()
    assert files_of(trained) == before
    assert job(trained, str(tmp_path / "train.parquet"), task=None).evaluate() == metrics


def test_another_task_names_that_of_the_folder(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task is 'dcnv2', expected 'deepfm' as in .*job.json"):
        job(trained, str(tmp_path / "train.parquet"), task="dcnv2").train()


def test_a_model_folder_that_is_a_file_is_refused_by_its_setting(tmp_path: Path) -> None:
    data = write(tmp_path / "train.parquet")
    with pytest.raises(ConfigError, match=r"model_dir is '.*train.parquet', expected a folder.* --model-dir"):
        job(Path(data), data).train()


def _hold(folder: str, connection: Any) -> None:
    with lock_folder(Path(folder)):
        connection.send(os.getpid())
        connection.recv()


def test_a_folder_in_use_names_the_other_process(trained: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_hold, args=(str(trained), there))
    process.start()
    try:
        assert here.poll(60)
        pid = here.recv()
        with pytest.raises(ConfigError, match=rf"is in use by process {pid} on .*; stop that process"):
            job(trained, str(tmp_path / "train.parquet")).train()
        assert json.loads((trained / "running.json").read_text())["pid"] == pid
        process.kill()  # the lock ends with its process, and the leftover file does not block
        process.join(30)
        job(trained, str(tmp_path / "train.parquet"), epochs=2).train()
        assert not (trained / "running.json").exists()
    finally:
        process.kill()
        process.join(30)


def test_the_job_is_on_disk_with_the_first_step(trained: Path) -> None:
    body = json.loads((trained / "job.json").read_text())
    assert (body["task"], body["label_features"]) == ("deepfm", ["click"])


def test_predictions_carry_the_keys_of_their_rows(trained: Path, tmp_path: Path) -> None:
    names = [f"row {number}" for number in range(ROWS)]
    path = write(tmp_path / "keyed.parquet", name=names, click=None)
    plain = [score for batch in job(trained, path, task=None).predict() for score in batch["ctr"].tolist()]
    keyed = list(job(trained, path, task=None, keys=("name", "user"), exclude=("name",)).predict())
    assert [name for batch in keyed for name in batch["name"]] == names
    assert [int(user) for batch in keyed for user in batch["user"]] == columns()["user"].tolist()
    assert [score for batch in keyed for score in batch["ctr"].tolist()] == plain
    assert list(keyed[0]) == ["name", "user", "ctr"]
    with pytest.raises(ConfigError, match=r"keys names 'nam', expected a column of the data; .*name"):
        list(job(trained, path, task=None, keys=("nam",)).predict())


def test_the_folder_remembers_the_keys_of_its_training(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet")
    job(tmp_path / "run", path, keys=("user",)).train()
    assert list(next(iter(job(tmp_path / "run", path, task=None).predict()))) == ["user", "ctr"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "arrow"])
def test_files_of_every_format_train_alike(tmp_path: Path, suffix: str) -> None:
    table = pa.table(columns())
    path = tmp_path / f"train.{suffix}"
    if suffix == "csv":
        pa.csv.write_csv(table, path)
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        pa.feather.write_feather(table, path)
    reference = job(None, write(tmp_path / "train.parquet")).train()
    assert job(None, str(path)).train() == pytest.approx(reference, abs=1e-6)


def test_a_finished_training_does_nothing_without_more(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, data = files_of(trained), str(tmp_path / "train.parquet")
    assert job(trained, data).train() == {}
    assert "training is finished, nothing trained step=4" in caplog.text
    assert files_of(trained) == before
    again = job(trained, data, more=True)
    again.train()
    assert again.estimator.step == 8


def test_new_files_train_a_finished_folder_further(trained: Path, tmp_path: Path) -> None:
    following = job(trained, write(tmp_path / "next.parquet"))
    following.train()
    assert following.estimator.step == 8


def test_a_stopped_training_is_not_finished(tmp_path: Path) -> None:
    data = write(tmp_path / "train.parquet")
    job(tmp_path / "run", data, max_steps=2).train()
    rest = job(tmp_path / "run", data)
    rest.train()
    assert rest.estimator.step == 4


@pytest.mark.parametrize("setting", ["grow_nn", "clear_nn"])
def test_a_feature_that_the_options_name_is_added_to_the_folder(tmp_path: Path, setting: str) -> None:
    first = {"sparse": ["user"], "dense": [], "dim": 2, "hidden": [4]}
    old = write(tmp_path / "old.parquet", movie=None)
    new = write(tmp_path / "new.parquet")
    job(tmp_path / "run", old, task_options=first).train()
    grown = {**first, "sparse": ["user", "movie"]}
    with pytest.raises(SchemaMismatch, match=r"do not fit the model: other shape.*grow_nn.*clear_nn"):
        job(tmp_path / "run", new, task_options=grown).train()
    added = job(tmp_path / "run", new, task_options=grown, **{setting: True})
    added.train()
    assert [each.name for each in added.schema.sparse_features] == ["user", "movie"]
    assert job(tmp_path / "run", new, task=None, task_options={}).evaluate()["samples"] == ROWS

"""The first hour of a new user: ratings from Parquet and CSV by the command line alone, and the usual mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from commands import Shell

ROWS = 12_000
TRAIN = [
    "train", "--task", "deepfm", "--label-features", "click", "--exclude", "rating", "--batch-size", 256,
    "--model-dir", "run", "--threads", 1, "--log-step-count-steps", 0,
]  # fmt: skip


def ratings() -> dict[str, Any]:
    """Return ratings that are sorted by time, in which each user and movie has a taste, as MovieLens has them."""
    random = np.random.default_rng(11)
    movie = np.sort(random.integers(0, 60, ROWS))  # old movies are rated first
    user = random.integers(0, 90, ROWS)
    tastes = random.normal(size=(90, 3)), random.normal(size=(60, 3))
    score = 1.2 * (tastes[0][user] * tastes[1][movie]).sum(1) + random.normal(size=ROWS)
    rating = np.clip(np.round(3.2 + score), 1, 5).astype(int)
    return {
        "user": user,
        "movie": movie,
        "age": random.integers(18, 60, ROWS),
        "rating": rating,
        "click": (rating > 3).astype(int),
        "note": [f"n{number}" for number in random.integers(0, 9, ROWS)],
    }


def split() -> tuple[pa.Table, pa.Table]:
    table, test = pa.table(ratings()), np.random.default_rng(1).random(ROWS) < 0.2
    return table.filter(pa.array(~test)), table.filter(pa.array(test))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    for name, table in zip(("train", "test"), split(), strict=True):
        pq.write_table(table, tmp_path / f"{name}.parquet")
        pa.csv.write_csv(table, tmp_path / f"{name}.csv")
    return Shell(tmp_path)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_ratings_are_trained_evaluated_and_predicted_with_keys(shell: Shell, suffix: str) -> None:
    shell.run(*TRAIN, "--data", f"train.{suffix}", "--epochs", 2)
    found = shell.json("evaluate", "--model-dir", "run", "--data", f"test.{suffix}", "--group-by", "user")
    assert found["ctr/auc"] > 0.7
    assert 0.5 < found["ctr/gauc"] < 1
    shell.run("predict", "--model-dir", "run", "--data", f"test.{suffix}", "--keys", "user,note", "--out", "s.parquet")
    scores = pq.read_table(shell.folder / "s.parquet")
    assert scores.column_names == ["user", "note", "ctr"]
    assert scores.num_rows == found["samples"]
    assert scores["note"].to_pylist() == pq.read_table(shell.folder / "test.parquet")["note"].to_pylist()


def test_sorted_ratings_reach_the_auc_of_shuffled_ones_with_the_defaults(shell: Shell) -> None:
    train = pq.read_table(shell.folder / "train.parquet")
    shuffled = train.take(np.random.default_rng(2).permutation(train.num_rows))
    pq.write_table(shuffled, shell.folder / "shuffled.parquet")
    aucs = {}
    for name, window in (("train", None), ("train", 0), ("shuffled", 0)):
        options = [] if window is None else ["--shuffle-buffer", window]
        folder = ["--model-dir", f"{name}-{window}", "--epochs", 2]
        shell.run(*TRAIN, "--data", f"{name}.parquet", *options, *folder)
        metrics = shell.json("evaluate", *folder[:2], "--data", "test.parquet")
        aucs[name, window] = metrics["ctr/auc"]
    assert aucs["train", None] == pytest.approx(aucs["shuffled", 0], abs=0.03)
    assert aucs["train", None] > aucs["train", 0] + 0.005


@pytest.fixture
def trained(shell: Shell) -> Shell:
    shell.run(*TRAIN, "--data", "train.parquet", "--max-steps", 20)
    return shell


def test_mistakes_are_errors_that_name_the_column_and_change_nothing(trained: Shell) -> None:
    job = (trained.folder / "run" / "job.json").read_bytes()
    good = trained.json("evaluate", "--model-dir", "run", "--data", "test.parquet")
    table = pq.read_table(trained.folder / "test.parquet")
    pq.write_table(table.rename_columns({"movie": "movie_id"}), trained.folder / "renamed.parquet")
    pq.write_table(table.drop_columns(["click"]), trained.folder / "bare.parquet")
    texts = pa.array(["yes" if value.as_py() else "no" for value in table["click"]])
    pq.write_table(table.drop_columns(["click"]).append_column("click", texts), trained.folder / "text.parquet")
    evaluate = ["evaluate", "--model-dir", "run", "--data"]
    mistakes = {
        "no column 'movie'": [*evaluate, "renamed.parquet"],
        "no column 'click', expected by the schema as label": [*evaluate, "bare.parquet"],
        "label column 'click' has type string": [*evaluate, "text.parquet"],
        "task is 'dcnv2', expected 'deepfm'": [*TRAIN[:2], "dcnv2", *TRAIN[3:], "--data", "train.parquet"],
        "label_features is ['clikc'], expected ['click']": [*TRAIN[:4], "clikc", *TRAIN[5:], "--data", "train.parquet"],
        "no file matches 'day-": [*evaluate, "day-*.parquet"],
    }
    for text, command in mistakes.items():
        assert text in trained.fail(*command), command
    assert (trained.folder / "run" / "job.json").read_bytes() == job
    assert trained.json("evaluate", "--model-dir", "run", "--data", "test.parquet") == good


def test_a_finished_training_does_nothing_without_more(shell: Shell) -> None:
    first = shell.json(*TRAIN, "--data", "test.csv")
    assert first["ctr/auc"] > 0.4
    assert json.loads((shell.folder / "run" / "job.json").read_text())["finished"]
    assert shell.json(*TRAIN, "--data", "test.csv") == {}
    assert shell.json(*TRAIN, "--data", "test.csv", "--more")

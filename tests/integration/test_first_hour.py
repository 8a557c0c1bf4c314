"""The first hour of a new user: ratings from Parquet and CSV, a news stream live against daily, and usual mistakes.

Kills with the commands of the README are in test_launch_failures.py, requests to servers in test_bad_requests.py, the
README itself in test_readme.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

import monolith as mt
from commands import Shell
from monolith.core.errors import MonolithError

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


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    tmp_path = tmp_path_factory.mktemp("ratings")
    for name, table in zip(("train", "test"), split(), strict=True):
        pq.write_table(table, tmp_path / f"{name}.parquet")
        pa.csv.write_csv(table, tmp_path / f"{name}.csv")
    return Shell(tmp_path)


def train(folder: str, *options: object) -> list[object]:
    return [*TRAIN, "--model-dir", folder, *options]


@pytest.fixture(scope="module", params=["parquet", "csv"])
def trained(request: pytest.FixtureRequest, shell: Shell) -> tuple[str, str]:
    """Train with the defaults from a file format; return the format and the model folder."""
    folder = f"run-{request.param}"
    shell.run(*train(folder), "--data", f"train.{request.param}", "--epochs", 2)
    return request.param, folder


def test_ratings_are_evaluated_and_predicted_with_keys(shell: Shell, trained: tuple[str, str]) -> None:
    suffix, folder = trained
    metrics = shell.json("evaluate", "--model-dir", folder, "--data", f"test.{suffix}", "--group-by", "user")
    assert metrics["ctr/auc"] > 0.7
    assert 0.5 < metrics["ctr/gauc"] < 1
    out = f"{suffix}-scores.parquet"
    shell.run("predict", "--model-dir", folder, "--data", f"test.{suffix}", "--keys", "user,note", "--out", out)
    scores = pq.read_table(shell.folder / out)
    assert scores.column_names == ["user", "note", "ctr"]
    assert scores.num_rows == metrics["samples"]
    assert scores["note"].to_pylist() == pq.read_table(shell.folder / "test.parquet")["note"].to_pylist()


def test_sorted_ratings_reach_the_auc_of_shuffled_ones_with_the_defaults(shell: Shell) -> None:
    table = pq.read_table(shell.folder / "train.parquet")
    shuffled = table.take(np.random.default_rng(2).permutation(table.num_rows))
    pq.write_table(shuffled, shell.folder / "shuffled.parquet")
    aucs = {}
    for name, window in (("train", None), ("train", 0), ("shuffled", 0)):
        options = [] if window is None else ["--shuffle-buffer", window]
        folder = f"{name}-{window}"
        shell.run(*train(folder), "--data", f"{name}.parquet", *options)
        aucs[name, window] = shell.json("evaluate", "--model-dir", folder, "--data", "test.parquet")["ctr/auc"]
    # Seeds and orders of shuffled rows give AUCs from 0.76 to 0.80 after one epoch; rows in order give 0.59.
    assert aucs["train", None] == pytest.approx(aucs["shuffled", 0], abs=0.05)
    assert aucs["train", None] > aucs["train", 0] + 0.1


def news(rows: int = 6_000) -> pa.Table:
    """Return clicks of two days in order of time; articles live for four hours."""
    random = np.random.default_rng(7)
    hour = np.sort(random.integers(0, 48, rows))
    article = 10 * (hour - random.integers(0, 4, rows)) + random.integers(0, 10, rows) + 100
    appeal = random.normal(size=article.max() + 1)
    click = random.random(rows) < 1 / (1 + np.exp(-3 * appeal[article]))
    return pa.table({"time": 1_700_006_400 + 3_600 * hour, "article": article, "click": click.astype(int)})


def test_a_live_model_beats_a_daily_one_by_the_command_line_alone(tmp_path: Path) -> None:
    shell, table = Shell(tmp_path), news()
    is_second = np.asarray(table["time"]) >= 1_700_006_400 + 24 * 3_600
    for day, rows in ((1, ~is_second), (2, is_second)):
        pa.csv.write_csv(table.filter(pa.array(rows)), tmp_path / f"day-{day}.csv")
    options = ["train", "--task", "deepfm", "--label-features", "click", "--time-column", "time", "--batch-size", 32]
    options = [*options, "--threads", 1, "--log-step-count-steps", 0]
    shell.run(*options, "--data", "day-1.csv", "--model-dir", "daily")
    daily = shell.json("evaluate", "--model-dir", "daily", "--data", "day-2.csv", "--auc-by-hour")
    restore = ["--model-dir", "live", "--restore-dir", "daily", "--no-resume-data", "--auc-by-hour"]
    live = shell.json(*options, "--data", "day-2.csv", *restore)
    assert live["ctr/auc_by_hour"] > daily["ctr/auc_by_hour"] + 0.1
    hours = [name for name in live if name.startswith("ctr/auc/")]
    assert sorted(hours) == sorted(name for name in daily if name.startswith("ctr/auc/"))
    assert len(hours) > 20
    assert sum(live[hour] > daily[hour] for hour in hours) > 0.8 * len(hours)


class Own(mt.Model):
    """A user's own model, with one mistake."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake
        self.embedding_feature("user")
        self.embedding_feature("movie")
        names = ["user", "moive" if mistake == "slice" else "movie"]
        self.vectors = self.embedding_slice(names, "vec", dim=4, out="concat")
        self.tower = mt.layers.MLP([1], input_dim=7 if mistake == "width" else 8)

    def forward(self, batch: Any) -> Any:
        logits = self.tower(self.vectors(batch))
        if self.mistake == "tensor":
            return logits
        if self.mistake == "dense":
            logits = logits + batch.dense["price"]
        if self.mistake != "shape":
            logits = logits.squeeze(1)
        return mt.Output(head="like", logits=logits, label=batch.label[:, 0])


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("slice", "feature 'moive' is not declared"),
        ("width", "last dim 8, expected 7"),
        ("shape", "give one number per example"),
        ("tensor", "return a monolith.Output"),
        ("dense", "dense feature 'price' is not declared"),
        ("labels", "a label is 5, but probabilities lie between 0 and 1"),
        ("text", "label column 'like' has type string"),
        ("column", "no column 'like'"),
        ("batch", "add .batch(n)"),
    ],
)
def test_a_mistake_in_an_own_model_is_named_with_its_remedy(mistake: str, text: str) -> None:
    like: dict[str, Callable[[int], Any]] = {"labels": lambda row: row % 6, "text": lambda row: "yn"[row % 2]}
    label = "likes" if mistake == "column" else "like"
    columns = {"user": range(64), "movie": range(64), label: map(like.get(mistake, lambda row: row % 2), range(64))}
    with pytest.raises(MonolithError) as caught:  # noqa: PT012 - the mistake may be in any of the steps
        schema = Own("").declaration.schema(label_features=["like"])
        data = mt.data.frame({name: list(column) for name, column in columns.items()}, schema=schema)
        if mistake != "batch":
            data = data.batch(16)
        mt.Estimator(lambda: Own(mistake), mt.RunConfig(log_step_count_steps=0, threads=1)).train(data)
    assert text in str(caught.value)
    assert torch.is_grad_enabled(), "a failed step leaves torch as it was"


def test_mistakes_are_errors_that_name_the_column_and_change_nothing(shell: Shell) -> None:
    shell.run(*TRAIN, "--data", "train.parquet", "--max-steps", 20)
    job = (shell.folder / "run" / "job.json").read_bytes()
    good = shell.json("evaluate", "--model-dir", "run", "--data", "test.parquet")
    table = pq.read_table(shell.folder / "test.parquet")
    pq.write_table(table.rename_columns({"movie": "movie_id"}), shell.folder / "renamed.parquet")
    pq.write_table(table.drop_columns(["click"]), shell.folder / "bare.parquet")
    texts = pa.array(["yes" if value.as_py() else "no" for value in table["click"]])
    pq.write_table(table.drop_columns(["click"]).append_column("click", texts), shell.folder / "text.parquet")
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
        assert text in shell.fail(*command), command
    assert (shell.folder / "run" / "job.json").read_bytes() == job
    assert shell.json("evaluate", "--model-dir", "run", "--data", "test.parquet") == good


def test_a_finished_training_does_nothing_without_more(shell: Shell) -> None:
    first = shell.json(*train("finished"), "--data", "test.csv")
    assert first["ctr/auc"] > 0.4
    assert json.loads((shell.folder / "finished" / "job.json").read_text())["finished"]
    assert shell.json(*train("finished"), "--data", "test.csv") == {}
    assert shell.json(*train("finished"), "--data", "test.csv", "--more")

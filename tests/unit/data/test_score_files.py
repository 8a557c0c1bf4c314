"""Files of predictions: JSON lines and Parquet, whole or not at all."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from monolith.core.errors import ConfigError, DataError
from monolith.data import score_files
from monolith.data.score_files import open_score_file

COLUMNS = {"user": ["a", "b"], "ctr": np.array([0.25, 0.5], np.float32), "vector": np.ones((2, 3), np.float32)}


@pytest.mark.parametrize("name", ["scores.jsonl", "scores.parquet"])
def test_rows_are_written_in_order(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_files, "_GROUP_ROWS", 3)
    path = tmp_path / name
    with open_score_file(str(path)) as file:
        for _ in range(4):
            file.write(COLUMNS)
        assert not path.exists(), "the file appears when it is complete"
    if name.endswith(".parquet"):
        rows = pq.read_table(path).to_pylist()
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [{"user": user, "ctr": ctr, "vector": [1, 1, 1]} for user, ctr in (("a", 0.25), ("b", 0.5))] * 4
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["scores.jsonl", "scores.parquet"])
def test_a_failed_writer_leaves_no_file(tmp_path: Path, name: str) -> None:
    def fail() -> None:
        with open_score_file(str(tmp_path / name)) as file:
            file.write(COLUMNS)
            file.write({"user": ["a"], "ctr": [1, 2]})

    with pytest.raises(ConfigError, match=r"the outputs have .* rows, expected one row per example"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_json_lines_have_null_for_numbers_that_json_cannot_write(capsys: pytest.CaptureFixture[str]) -> None:
    with open_score_file(None) as file:
        file.write({"ctr": np.array([np.nan, 0.5]), "vector": np.array([[1, np.inf], [1, 2]])})
    assert capsys.readouterr().out == '{"ctr": null, "vector": [1.0, null]}\n{"ctr": 0.5, "vector": [1.0, 2.0]}\n'


def test_batches_with_and_without_values_of_a_key_fit_one_parquet_file(tmp_path: Path) -> None:
    with open_score_file(str(tmp_path / "scores.parquet")) as file:
        for user in ([None], [7], [None]):
            file.write({"user": user})
    assert pq.read_table(tmp_path / "scores.parquet").to_pydict() == {"user": [None, 7, None]}


@pytest.mark.parametrize(("first", "later"), [(None, "a"), (1, 1.5), ([], ["a"])])
def test_a_column_that_changes_its_type_is_named_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: object, later: object
) -> None:
    monkeypatch.setattr(score_files, "_GROUP_ROWS", 2)
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)

    def fail() -> None:
        with open_score_file(str(tmp_path / "scores.parquet")) as file:
            file.write({"user": [first] * 2, "ctr": [0.5] * 2})
            file.write({"user": [later] * 2, "ctr": [0.5] * 2})

    with pytest.raises(DataError, match=r"columns of .*scores\.parquet have the types \{'user': .*write JSON lines"):
        fail()
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert ignored == [], "the end of the writer of pyarrow prints no second error"


def test_a_path_that_cannot_be_a_file_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"out is '.*', a folder, expected the path of a file"):
        open_score_file(str(tmp_path))
    with pytest.raises(ConfigError, match=r"out is '.*none/scores.jsonl', expected a path in an existing folder"):
        open_score_file(str(tmp_path / "none" / "scores.jsonl"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["scores.jsonl", "scores.parquet"])
def test_a_file_that_cannot_be_renamed_is_removed(tmp_path: Path, name: str) -> None:
    def fail() -> None:
        with open_score_file(str(tmp_path / name)) as file:
            file.write(COLUMNS)
            (tmp_path / name).mkdir()

    with pytest.raises(OSError, match=name):
        fail()
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_no_rows_are_an_empty_file(tmp_path: Path) -> None:
    with open_score_file(str(tmp_path / "none.parquet")):
        pass
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0


def test_standard_output_gets_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with open_score_file(None) as file:
        file.write({"ctr": np.array([0.5])})
    assert capsys.readouterr().out == '{"ctr": 0.5}\n'

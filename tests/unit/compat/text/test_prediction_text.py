from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from monolith.compat.text.prediction_text import PredictionText
from monolith.core.errors import ConfigError, DataError
from monolith.data import Batch, Texts


def batch(uid: list[int]) -> Batch:
    size = len(uid)
    return Batch.from_arrays(
        label=np.ones((size, 2)), uid=uid, ids={"tags": [[1, 2]] + [[]] * (size - 1)}, dense={"price": [[0.1]] * size}
    )


def test_a_line_has_the_chosen_fields_and_then_the_heads(tmp_path: Path) -> None:
    predictions = np.array([0.1, 0.5], np.float32)
    with PredictionText(tmp_path / "out", ["uid", "label", "tags"], worker=3) as text:
        text.write(batch([5, -6]), {"ctr": predictions, "cvr": predictions * 2})
        text.write(batch([7]), {"cvr": predictions[:1], "ctr": predictions[1:]})
        assert not text.path.exists()
    assert text.path == tmp_path / "out" / "part-00003"
    rows = [line.split("\t") for line in text.path.read_text().splitlines()]
    assert [row[:3] for row in rows] == [["5", "1.0,1.0", "1,2"], ["-6", "1.0,1.0", ""], ["7", "1.0,1.0", "1,2"]]
    read = np.array([row[3:] for row in rows], np.float32)
    assert read.tolist() == [[predictions[0], predictions[0] * 2], [0.5, 1], [0.5, predictions[0]]]


def test_another_delimiter_and_tensors(tmp_path: Path) -> None:
    tensors = batch([5]).as_torch()
    with PredictionText(tmp_path, ["uid", "price"], delimiter=" | ") as text:
        text.write(tensors, {"ctr": tensors.label[:, 0]})
    assert text.path.read_text() == "5 | 0.10000000149011612 | 1.0\n"


def test_an_error_leaves_no_file(tmp_path: Path) -> None:
    def breaks() -> None:
        with PredictionText(tmp_path, ["uid"]) as text:
            text.write(batch([5]), {"ctr": [0.5]})
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        breaks()
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_does_not_fit_a_line_is_refused(tmp_path: Path) -> None:
    rows = batch([5])
    texts = Texts(np.frombuffer(b"a\tb", np.uint8), np.array([0, 3]))
    rows = Batch(**{name: getattr(rows, name) for name in rows.__slots__} | {"extras": {"city": texts}})
    with PredictionText(tmp_path, ["city"]) as text, pytest.raises(DataError, match=r"'city' has the value 'a\\tb'"):
        text.write(rows, {})
    with PredictionText(tmp_path, ["nothing"]) as text, pytest.raises(ConfigError, match="the batch has no 'nothing'"):
        text.write(rows, {})
    with PredictionText(tmp_path) as text:
        text.write(rows, {"ctr": [0.5]})
        with pytest.raises(ConfigError, match=r"the heads \['ctr'\], this batch has \['cvr'\]"):
            text.write(rows, {"cvr": [0.5]})


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_value_with_a_line_end_is_refused(tmp_path: Path, end: str) -> None:
    content = f"a{end}b".encode()
    texts = Texts(np.frombuffer(content, np.uint8), np.array([0, len(content)]))
    row = batch([5])
    row = Batch(**{name: getattr(row, name) for name in row.__slots__} | {"extras": {"city": texts}})
    with PredictionText(tmp_path, ["city"]) as text, pytest.raises(DataError, match=r"'city'.*remove the line end"):
        text.write(row, {})


@pytest.mark.parametrize("delimiter", ["", "\n", "\r", "1", ",", "-"])
def test_a_delimiter_must_differ_from_numbers(tmp_path: Path, delimiter: str) -> None:
    with pytest.raises(ConfigError, match="delimiter must be"):
        PredictionText(tmp_path, delimiter=delimiter)

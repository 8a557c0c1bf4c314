"""Predictions in files: which folder, which line, when a new file begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monolith.core.errors import ConfigError, DataError
from monolith.data.prediction_files import PredictionFiles, folder_of, line_of
from monolith.testing import FakeClock


def message(day: int = 20220927, user: int = 1854) -> dict[str, Any]:
    return {
        "model_name": "test_model",
        "req_time": day,
        "userid": user,
        "predict": {"ctr": 0.25, "cvr": 0.5},
        "label": {"ctr": 1, "cvr": 0},
    }


def test_the_layout_of_a_line_and_of_folders(tmp_path: Path) -> None:  # vector 30
    assert line_of(message()) == '20220927;gid;1854;{"ctr": 0.25, "cvr": 0.5};{"ctr": 1, "cvr": 0}'
    assert line_of({"__REQ_TIME__": 1, "__FEED_ID__": 2, "__UID__": 3}) == "1;2;3;{};{}"
    assert folder_of(message(), 0, tmp_path) == tmp_path / "test_model" / "20220927" / "worker_0"


def test_files_are_cut_after_so_many_lines(tmp_path: Path) -> None:  # vector 28
    files = PredictionFiles(tmp_path, buffer_lines=8, lines_per_file=32)
    for day in (20220927, 20220928):
        for user in range(64):
            files.write(message(day, user))
    files.close()
    files.close()
    for day in (20220927, 20220928):
        folder = tmp_path / "test_model" / str(day) / "worker_0"
        assert sorted(path.name for path in folder.iterdir()) == ["part_000000.txt", "part_000001.txt"]
        lines = [line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
        assert [line.split(";")[2] for line in lines] == [str(user) for user in range(64)]
        assert all(len(path.read_text().splitlines()) == 32 for path in folder.iterdir())


def test_lines_wait_until_there_are_enough_of_them_or_flush(tmp_path: Path) -> None:
    files = PredictionFiles(tmp_path, buffer_lines=3)
    path = tmp_path / "test_model" / "20220927" / "worker_0" / "part_000000.txt"
    files.write(message())
    assert path.read_text() == ""
    files.flush()
    assert len(path.read_text().splitlines()) == 1
    files.close()


def test_a_restarted_writer_continues_with_the_next_file(tmp_path: Path) -> None:
    for user in (1, 2):
        files = PredictionFiles(tmp_path)
        files.write(message(user=user))
        files.close()
    folder = tmp_path / "test_model" / "20220927" / "worker_0"
    assert [path.read_text().split(";")[2] for path in sorted(folder.iterdir())] == ["1", "2"]


def test_an_idle_file_is_closed(tmp_path: Path) -> None:
    clock = FakeClock()
    files = PredictionFiles(tmp_path, clock=clock, idle_close_s=60)
    files.write(message(1))
    clock.advance_s(61)
    files.write(message(2))
    assert len((tmp_path / "test_model" / "1" / "worker_0" / "part_000000.txt").read_text().splitlines()) == 1
    files.close()


def test_a_message_that_cannot_be_filed_is_refused(tmp_path: Path) -> None:
    files = PredictionFiles(tmp_path)
    for bad in ({"model_name": "../x"}, {"req_time": 1}, {"model_name": "m", "req_time": "../../etc"}):
        with pytest.raises(DataError, match="model_name and req_time"):
            files.write(bad)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="buffer_lines"):
        PredictionFiles(tmp_path, buffer_lines=0)

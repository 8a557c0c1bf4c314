from __future__ import annotations

from pathlib import Path

import pytest

from fake_run import FakeRun
from monolith.compat.entry_dump.writable_file import WritableFile
from monolith.training.hooks import FileCloseHook, Hook, Run


class Appends(Hook):
    def __init__(self, file: WritableFile, fail_at: int = 0) -> None:
        self._file = file
        self._fail_at = fail_at

    def before_step(self, run: Run) -> None:
        if run.step + 1 == self._fail_at:
            raise RuntimeError("broken")
        self._file.append("x")


def test_files_appear_when_the_run_ends_well(tmp_path: Path) -> None:
    file = WritableFile(tmp_path / "log.txt")
    FakeRun(tmp_path, [FileCloseHook([file]), Appends(file)]).train(3)
    assert file.path.read_text() == "xxx"


def test_files_of_a_failed_run_do_not(tmp_path: Path) -> None:
    file = WritableFile(tmp_path / "log.txt")
    with pytest.raises(RuntimeError, match="broken"):
        FakeRun(tmp_path, [FileCloseHook([file]), Appends(file, fail_at=2)]).train(3)
    assert not file.path.exists()

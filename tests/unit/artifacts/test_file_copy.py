from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from monolith.artifacts import copy_file, copy_folder
from monolith.core import storage
from monolith.core.errors import ConfigError, RetriesExhausted
from monolith.core.retry import RetryPolicy
from monolith.testing import FakeClock


def make_tree(root: Path) -> dict[str, bytes]:
    files = {"a.bin": os.urandom(5_000_000), "in/b.txt": b"b", "in/deeper/c": b"", ".hidden/d": b"d"}
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return files


def tree_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


class FlakyDisk:
    """Opens files only after a number of failures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int, error: OSError) -> None:
        self.calls = 0
        opens = storage.open_file

        def open_file(path: str) -> Any:
            self.calls += 1
            if self.calls <= failures:
                raise error
            return opens(path)

        monkeypatch.setattr(storage, "open_file", open_file)


def test_a_file_is_copied_whole_and_replaces_the_target(tmp_path: Path) -> None:
    files = make_tree(tmp_path / "s")
    (tmp_path / "t").write_bytes(b"old")
    assert copy_file(str(tmp_path / "s/a.bin"), str(tmp_path / "t"))
    assert (tmp_path / "t").read_bytes() == files["a.bin"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "t"]


def test_an_existing_target_is_refused_without_overwrite(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"new")
    (tmp_path / "t").write_bytes(b"old")
    with pytest.raises(ConfigError, match="exists"):
        copy_file(str(tmp_path / "s"), str(tmp_path / "t"), overwrite=False)
    assert (tmp_path / "t").read_bytes() == b"old"


def test_a_missing_source_is_an_error_or_skipped(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        copy_file(str(tmp_path / "nothing"), str(tmp_path / "t"))
    assert not copy_file(str(tmp_path / "nothing"), str(tmp_path / "t"), skip_missing=True)
    assert list(tmp_path.iterdir()) == []


def test_skip_missing_does_not_hide_a_missing_target_folder(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"x")
    with pytest.raises(FileNotFoundError):
        copy_file(str(tmp_path / "s"), str(tmp_path / "no/t"), skip_missing=True)


def test_a_passing_failure_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").write_bytes(b"x")
    clock = FakeClock()
    disk = FlakyDisk(monkeypatch, 4, OSError(5, "Input/output error"))
    assert copy_file(str(tmp_path / "s"), str(tmp_path / "t"), clock=clock)
    assert (tmp_path / "t").read_bytes() == b"x"
    assert disk.calls == 5
    assert len(clock.slept_s) == 4


def test_a_lasting_failure_ends_after_the_attempts_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s").write_bytes(b"x")
    disk = FlakyDisk(monkeypatch, 99, OSError(5, "Input/output error"))
    with pytest.raises(RetriesExhausted, match="2 attempts"):
        copy_file(str(tmp_path / "s"), str(tmp_path / "t"), policy=RetryPolicy(attempts=2), clock=FakeClock())
    assert disk.calls == 2


def test_a_permanent_error_is_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FlakyDisk(monkeypatch, 99, PermissionError(13, "Permission denied"))
    with pytest.raises(PermissionError):
        copy_file(str(tmp_path / "s"), str(tmp_path / "t"), clock=FakeClock())
    assert disk.calls == 1


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_folder_is_copied_with_all_that_is_in_it(tmp_path: Path, workers: int) -> None:
    files = make_tree(tmp_path / "s")
    assert copy_folder(str(tmp_path / "s"), str(tmp_path / "t"), workers=workers) == len(files)
    assert tree_of(tmp_path / "t") == files


def test_a_folder_copied_over_another_leaves_nothing_of_it(tmp_path: Path) -> None:
    files = make_tree(tmp_path / "s")
    (tmp_path / "t/in").mkdir(parents=True)
    (tmp_path / "t/in/old").write_bytes(b"old")
    (tmp_path / "t/in/b.txt").write_bytes(b"old")
    copy_folder(str(tmp_path / "s") + "/", str(tmp_path / "t"))
    assert tree_of(tmp_path / "t") == files


def test_a_failed_copy_of_a_folder_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(tmp_path / "s")
    (tmp_path / "t").mkdir()
    (tmp_path / "t/old").write_bytes(b"old")
    FlakyDisk(monkeypatch, 99, PermissionError(13, "Permission denied"))
    with pytest.raises(PermissionError):
        copy_folder(str(tmp_path / "s"), str(tmp_path / "t"))
    assert (tmp_path / "t/old").read_bytes() == b"old"


def test_a_missing_folder_is_an_error_or_skipped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected an existing folder"):
        copy_folder(str(tmp_path / "nothing"), str(tmp_path / "t"))
    assert copy_folder(str(tmp_path / "nothing"), str(tmp_path / "t"), skip_missing=True) == 0
    assert not (tmp_path / "t").exists()


def test_a_folder_is_not_copied_into_itself(tmp_path: Path) -> None:
    make_tree(tmp_path / "s")
    for target in ("s", "s/in/copy", "."):
        with pytest.raises(ConfigError, match="expected a folder outside"):
            copy_folder(str(tmp_path / "s"), str((tmp_path / target).resolve()))


def test_folders_go_to_a_url_and_come_back(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    files = make_tree(tmp_path / "s")
    url = f"memory://copy-{tmp_path.name}/tree"
    assert copy_folder(str(tmp_path / "s"), url) == len(files)
    assert copy_folder(url, str(tmp_path / "back")) == len(files)
    assert tree_of(tmp_path / "back") == files

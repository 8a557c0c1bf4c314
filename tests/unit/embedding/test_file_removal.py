"""Removed files disappear immediately; their space is released later, also by forked processes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from monolith.embedding import file_removal
from monolith.embedding.file_removal import remove_files, wait_for_removals


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make every file large, and keep the background thread from closing files until the event is set."""
    allowed = threading.Event()
    close_all = file_removal._close_all

    def close_when_allowed(handles: list[int]) -> None:
        assert allowed.wait(30)
        close_all(handles)

    monkeypatch.setattr(file_removal, "LARGE_FILE_BYTES", 1)
    monkeypatch.setattr(file_removal, "_close_all", close_when_allowed)
    return allowed


def open_files(folder: Path) -> list[str]:
    names = []
    for handle in Path("/proc/self/fd").iterdir():
        try:
            names.append(os.readlink(handle))
        except OSError:  # the descriptor of the listing itself
            continue
    return [name for name in names if name.startswith(str(folder))]


def make_files(folder: Path, count: int) -> list[Path]:
    files = [folder / f"{number}.rows" for number in range(count)]
    for file in files:
        file.write_bytes(b"x" * 100)
    return files


def test_the_names_of_large_files_disappear_before_their_space_is_released(
    tmp_path: Path, closing: threading.Event
) -> None:
    remove_files([*make_files(tmp_path, 3), tmp_path / "missing"])
    assert list(tmp_path.iterdir()) == []
    assert len(open_files(tmp_path)) == 3
    closing.set()
    wait_for_removals()
    assert open_files(tmp_path) == []


def test_a_small_file_is_released_by_the_caller(tmp_path: Path) -> None:
    remove_files(make_files(tmp_path, 3))
    assert list(tmp_path.iterdir()) == []
    assert open_files(tmp_path) == []


def test_a_forked_process_keeps_no_removed_file(tmp_path: Path, closing: threading.Event) -> None:
    remove_files(make_files(tmp_path, 2))
    child = os.fork()
    if child == 0:
        os._exit(len(open_files(tmp_path)))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(open_files(tmp_path)) == 2
    closing.set()
    wait_for_removals()


def test_a_removal_that_fails_closes_the_files(tmp_path: Path, closing: threading.Event) -> None:
    closing.set()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        remove_files([*make_files(tmp_path, 1), tmp_path / "folder"])
    wait_for_removals()
    assert open_files(tmp_path) == []


def test_without_further_threads_the_caller_releases_the_space_and_later_removals_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_removal, "LARGE_FILE_BYTES", 1)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        remove_files(make_files(tmp_path, 2))
    assert open_files(tmp_path) == []
    wait_for_removals()
    remove_files(make_files(tmp_path, 1))
    wait_for_removals()
    assert open_files(tmp_path) == []


def test_a_wait_never_meets_a_thread_that_has_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_removal, "LARGE_FILE_BYTES", 1)
    start = threading.Thread.start

    def wait_and_start(thread: threading.Thread) -> None:
        wait_for_removals()  # of another save, at this moment
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", wait_and_start)
    remove_files(make_files(tmp_path, 2))
    wait_for_removals()
    assert open_files(tmp_path) == []

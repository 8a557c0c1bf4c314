"""Folders of killed processes are removed, those of living ones stay."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monolith.core.durable_files import only_writer
from monolith.core.scratch_folder import ScratchFolder

_OWNER = """
import sys, time
from monolith.core.scratch_folder import ScratchFolder
folder = ScratchFolder("scratch-")
(folder.path / "rows").write_text("1")
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@contextmanager
def _owner() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def _make_old(path: Path) -> None:
    os.utime(path, (1.0, 1.0), follow_symlinks=False)


def test_a_folder_lives_as_long_as_its_context() -> None:
    with ScratchFolder("scratch-") as folder:
        (folder / "rows").write_text("1")
        assert folder.parent.stat().st_mode & 0o077 == 0  # only this user may enter
    assert not folder.parent.exists()


def test_closing_twice_removes_nothing_else(tmp_path: Path) -> None:
    scratch = ScratchFolder("scratch-")
    scratch.close()
    scratch.path.mkdir(parents=True)
    scratch.close()
    assert list(tmp_path.iterdir()) == [scratch.path.parent]


def test_a_writer_may_lock_the_folder() -> None:
    with ScratchFolder("scratch-") as folder, only_writer(folder):
        pass


def test_the_folder_of_a_killed_process_is_removed() -> None:
    with _owner() as (process, folder):
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
        assert (folder / "rows").exists()
        _make_old(folder.parent)
        with ScratchFolder("scratch-"):
            assert not folder.parent.exists()


def test_the_folder_of_a_living_process_stays() -> None:
    with _owner() as (_, folder):
        _make_old(folder.parent)
        with ScratchFolder("scratch-"):
            assert (folder / "rows").exists()


def test_no_folder_is_removed_where_locks_do_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    other = tmp_path / "scratch-other"
    other.mkdir()
    _make_old(other)
    with ScratchFolder("scratch-") as folder:
        assert folder.exists()
        assert other.exists()
    assert not folder.exists()


def test_young_folders_and_other_names_and_links_stay(tmp_path: Path) -> None:
    young, other, target = tmp_path / "scratch-young", tmp_path / "other-1", tmp_path / "target"
    for folder in (young, other, target):
        folder.mkdir()
    link, file = tmp_path / "scratch-link", tmp_path / "scratch-file"
    link.symlink_to(target)
    file.write_text("1")
    for path in (other, target, link, file):
        _make_old(path)
    with ScratchFolder("scratch-"):
        assert all(path.exists() for path in (young, other, target, link, file))


def _printed(end: str) -> list[str]:
    code = _OWNER.replace("time.sleep(600)", end)
    return subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).splitlines()


def test_a_folder_that_is_not_closed_is_removed_at_exit() -> None:
    (folder,) = _printed("")
    assert not Path(folder).parent.exists()


def test_a_forked_child_leaves_the_folder_of_its_parent_at_exit() -> None:
    end = "import os; child = os.fork(); child or sys.exit(); os.waitpid(child, 0); print(folder.path.exists())"
    assert _printed(end)[1] == "True"

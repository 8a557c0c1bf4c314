from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from monolith.core import storage


@pytest.fixture(params=["local", "url"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "root")
    pytest.importorskip("fsspec")
    return f"memory://{tmp_path.name}/root"


def write(path: str, content: bytes) -> None:
    new = storage.NewFile(path)
    new.write(content)
    new.publish()


def test_files_under_a_folder_are_listed_by_relative_name(root: str) -> None:
    assert not storage.is_folder(root)
    for folder in (root, f"{root}/in/deeper"):
        storage.make_folder(folder)
        storage.make_folder(folder)
    for name in ("z", "in/deeper/a", ".hidden"):
        write(f"{root}/{name}", b"x")
    assert storage.is_folder(root)
    assert not storage.is_folder(f"{root}/z")
    assert storage.walk_files(root) == [".hidden", "in/deeper/a", "z"]


def test_a_removed_file_is_gone_and_a_missing_one_is_an_error(root: str) -> None:
    storage.make_folder(root)
    write(f"{root}/a", b"x")
    storage.remove_file(f"{root}/a")
    assert storage.walk_files(root) == []
    with pytest.raises(FileNotFoundError):
        storage.remove_file(f"{root}/a")


def test_names_directly_in_a_folder_are_listed(root: str) -> None:
    assert storage.list_names(root) == []
    storage.make_folder(f"{root}/in")
    write(f"{root}/in/a", b"x")
    write(f"{root}/z", b"x")
    assert storage.list_names(root) == ["in", "z"]
    assert storage.list_names(f"{root}/z") == []


def test_a_pipe_gets_the_bytes_and_stays_a_pipe(tmp_path: Path) -> None:
    path, received = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()), daemon=True)
    reader.start()
    write(str(path), b"content")
    assert stat.S_ISFIFO(path.stat().st_mode)
    reader.join(30)
    assert received == [b"content"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_discarded_write_to_a_pipe_leaves_the_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        new = storage.NewFile(str(path))
        new.discard()
    finally:
        os.close(handle)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_name_of_an_open_file_is_written_through(tmp_path: Path) -> None:
    path = tmp_path / "redirected"
    with path.open("wb") as file:
        write(f"/proc/self/fd/{file.fileno()}", b"content")
    assert path.read_bytes() == b"content"


def test_a_folder_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IsADirectoryError, match="folder"):
        storage.NewFile(str(folder))
    with pytest.raises(FileNotFoundError) as caught:
        storage.NewFile(str(tmp_path / "absent" / "part.pb"))
    assert caught.value.filename == str(tmp_path / "absent" / "part.pb")
    assert list(tmp_path.iterdir()) == [folder]

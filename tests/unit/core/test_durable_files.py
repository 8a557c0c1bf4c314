from __future__ import annotations

import threading
from pathlib import Path

import pytest

from monolith.core.durable_files import only_writer, replace_file, seal, unseal, write_synced


def test_a_sealed_body_comes_back_and_an_altered_one_does_not() -> None:
    content = seal({"b": [1, 2.5], "a": "ä"})
    assert unseal(content) == {"a": "ä", "b": [1, 2.5]}
    for altered in (content[:-1], content + b" ", content.replace(b"2.5", b"2.6"), b"", b"[]"):
        with pytest.raises(ValueError):
            unseal(altered)


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    replace_file(tmp_path / "f", b"one")
    replace_file(tmp_path / "f", b"two")
    assert (tmp_path / "f").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_file_that_cannot_be_written_is_named() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_synced(Path("/dev/full"), b"x")


def test_writers_of_one_folder_come_one_after_the_other(tmp_path: Path) -> None:
    inside, seen = [], []

    def write() -> None:
        for _ in range(50):
            with only_writer(tmp_path):
                inside.append(1)
                seen.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {1}
    assert len(seen) == 150

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from file_limit import file_limit
from monolith.compat.entry_dump import WritableFile
from monolith.compat.entry_dump.dump import read_entry_dump, write_entry_dump, write_multi_entry_dump
from monolith.compat.hooks import FileCloseHook
from monolith.core.errors import ConfigError
from monolith.embedding.entry import Entry


def test_a_thousand_appends_are_one_text(tmp_path: Path) -> None:
    with WritableFile(tmp_path / "log") as file:
        for _ in range(1000):
            file.append("1234")
    assert (tmp_path / "log").read_text() == "1234" * 1000


def test_bytes_and_text_keep_their_order(tmp_path: Path) -> None:
    with WritableFile(str(tmp_path / "log")) as file:
        file.append(b"\x00\xff")
        file.append("é")
        file.append(b"")
    assert (tmp_path / "log").read_bytes() == b"\x00\xff\xc3\xa9"


def test_the_file_appears_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old")
    file = WritableFile(path)
    file.append("new")
    assert path.read_text() == "old"
    file.close()
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["log"]


def test_closing_twice_does_nothing_and_writing_after_it_is_refused(tmp_path: Path) -> None:
    file = WritableFile(tmp_path / "log")
    file.append("1234")
    file.close()
    file.close()
    with pytest.raises(ConfigError, match=r"append on .*log, which is closed"):
        file.append("5")
    with pytest.raises(ConfigError, match="closed"):
        file.append_entry_dump(1, 0.0, [1.0])
    assert (tmp_path / "log").read_text() == "1234"


def test_an_exception_publishes_nothing(tmp_path: Path) -> None:
    def stop() -> None:
        with WritableFile(tmp_path / "log") as file:
            file.append("1234")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_dropped_publishes_nothing(tmp_path: Path) -> None:
    file = WritableFile(tmp_path / "log")
    file.append("1234")
    del file
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    def fill() -> None:
        with WritableFile(tmp_path / "log") as file:
            for _ in range(10):
                file.append(bytes(5000))

    with file_limit(16384), pytest.raises(OSError, match=r"'.*log'"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_at_the_close_leaves_nothing(tmp_path: Path) -> None:
    file = WritableFile(tmp_path / "log")
    file.append(bytes(2000))
    with file_limit(1024), pytest.raises(OSError, match=r"'.*log'"):
        file.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_the_name_of_the_file_stays_alone(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    file = WritableFile(tmp_path / "log")
    with pytest.raises(IsADirectoryError):
        file.close()
    assert [each.name for each in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_on_a_full_disk_leaves_nothing(tmp_path: Path, shards: int) -> None:
    entries = [Entry(number, np.ones(16, np.float32), (), 1) for number in range(3000)]
    noise = np.random.default_rng(0).random((3000, 64), np.float32)
    wide = [Entry(number, row, (), 1) for number, row in enumerate(noise)]
    with file_limit(16384):
        with pytest.raises(OSError, match=r"'.*t-0000"):
            write_entry_dump(tmp_path / "t", entries, shards=shards)
        with pytest.raises(OSError, match=r"'.*m-0000"):
            write_multi_entry_dump(tmp_path / "m", {"a": wide}, shards=shards)
    assert list(tmp_path.iterdir()) == []


def test_an_item_cache_is_an_entry_dump_of_bias_and_vector(tmp_path: Path) -> None:
    with WritableFile(tmp_path / "items-00000-of-00001") as file:
        file.append_entry_dump(-7, 0.5, np.array([1, 2], np.float32))
        file.append_entry_dump([8, 9], [[0.25], [0.75]], [[3, 4], [5, 6]])
    read = list(read_entry_dump(tmp_path / "items"))
    assert [each.id for each in read] == [-7, 8, 9]
    assert [each.values.tolist() for each in read] == [[0.5, 1, 2], [0.25, 3, 4], [0.75, 5, 6]]
    assert all(each.state == () and each.time_s == 0 for each in read)


@pytest.mark.parametrize(
    ("item_id", "bias", "embedding"),
    [
        (1, [0.0, 1.0], [1.0]),
        (1, 0.0, 1.0),
        (1, 0.0, [[1.0]]),
        ([1, 2], [0.0, 0.0], [[1.0]]),
        ([1, 2], 0.0, [[1.0], [1.0]]),
        ([[1]], [0.0], [[[1.0]]]),
    ],
)
def test_shapes_that_do_not_fit_are_refused(tmp_path: Path, item_id: object, bias: object, embedding: object) -> None:
    with WritableFile(tmp_path / "items") as file, pytest.raises(ConfigError, match="item_id has shape"):
        file.append_entry_dump(item_id, bias, embedding)  # type: ignore[arg-type]


def test_content_that_is_neither_text_nor_integer_is_refused(tmp_path: Path) -> None:
    with WritableFile(tmp_path / "items") as file:
        with pytest.raises(ConfigError, match="got int"):
            file.append(7)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="dtype float64"):
            file.append_entry_dump(1.5, 0.0, [1.0])


def test_a_folder_that_does_not_exist_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        WritableFile(tmp_path / "nowhere" / "log")


def test_the_hook_closes_all_files_at_the_end(tmp_path: Path) -> None:
    files = [WritableFile(tmp_path / name) for name in ("a", "b")]
    hook = FileCloseHook(files)
    for file in files:
        file.append("1234")
    assert list(tmp_path.glob("[ab]")) == []
    hook.end()
    assert [(tmp_path / name).read_text() for name in ("a", "b")] == ["1234", "1234"]
    hook.end()


def test_the_hook_closes_the_other_files_when_one_fails_and_raises_the_first_error(tmp_path: Path) -> None:
    class Broken(WritableFile):
        def close(self) -> None:
            raise OSError(f"no room for {self.path.name}")

    files = [WritableFile(tmp_path / "a"), Broken(tmp_path / "b"), Broken(tmp_path / "c"), WritableFile(tmp_path / "d")]
    with pytest.raises(OSError, match="no room for b"):
        FileCloseHook(files).end()
    assert sorted(each.name for each in tmp_path.glob("[abcd]")) == ["a", "d"]


@pytest.mark.parametrize("files", [["log"], [None], "log", None])
def test_the_hook_takes_only_a_list_of_writable_files(files: object) -> None:
    with pytest.raises(ConfigError, match="WritableFile"):
        FileCloseHook(files)  # type: ignore[arg-type]


def test_the_hook_refuses_a_single_file(tmp_path: Path) -> None:
    with WritableFile(tmp_path / "log") as file, pytest.raises(ConfigError, match="expected a list"):
        FileCloseHook(file)  # type: ignore[arg-type]

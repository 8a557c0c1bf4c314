from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from file_recorder import FileRecorder
from monolith.core.durable_files import only_writer, replace_file, seal, unseal, write_synced


def test_a_sealed_body_comes_back_and_an_altered_one_does_not() -> None:
    content = seal({"b": [1, 2.5], "a": "ä"})
    assert unseal(content) == {"a": "ä", "b": [1, 2.5]}
    for altered in (content[:-1], content + b" ", content.replace(b"2.5", b"2.6"), b"", b"[]"):
        with pytest.raises(ValueError):
            unseal(altered)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.data(),
)
def test_any_sealed_body_comes_back_and_a_flipped_bit_is_detected(value: object, data: st.DataObject) -> None:
    content = bytearray(seal({"value": value}))
    assert unseal(bytes(content)) == {"value": value}
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError):
        unseal(bytes(content))


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    replace_file(tmp_path / "f", b"one")
    replace_file(tmp_path / "f", b"two")
    assert (tmp_path / "f").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_file_that_cannot_be_written_is_named() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_synced(Path("/dev/full"), b"x")


def test_a_written_file_is_on_disk_before_the_call_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = FileRecorder(monkeypatch)
    write_synced(tmp_path / "f", b"content")
    assert recorder.synced_content(tmp_path / "f") == b"content"


def test_a_replaced_file_survives_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = FileRecorder(monkeypatch)
    for content in (b"old", b"new"):
        replace_file(tmp_path / "f", content)
        assert recorder.content_after_power_loss(tmp_path / "f") == content
    kinds = [event[0] for event in recorder.events]
    assert kinds == ["sync", "rename", "sync"] * 2, "the bytes before the rename, the name after it"


def test_a_file_that_cannot_be_replaced_keeps_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file(tmp_path / "f", b"old")
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="Input/output error"):
        replace_file(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_writer_of_a_folder_shuts_every_other_writer_out(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        with only_writer(tmp_path):
            for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX):
                with pytest.raises(BlockingIOError):
                    fcntl.flock(handle, kind | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)


def test_a_second_writer_of_a_folder_waits_for_the_first(tmp_path: Path) -> None:
    entered = threading.Event()

    def write() -> None:
        with only_writer(tmp_path):
            entered.set()

    thread = threading.Thread(target=write, daemon=True)
    with only_writer(tmp_path):
        thread.start()
        assert not entered.wait(0.2), "the second writer entered beside the first"
    assert entered.wait(30)
    thread.join(30)

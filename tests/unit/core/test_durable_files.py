from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
def test_whatever_is_in_it_a_sealed_body_comes_back_and_a_flipped_bit_is_seen(
    value: object, data: st.DataObject
) -> None:
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

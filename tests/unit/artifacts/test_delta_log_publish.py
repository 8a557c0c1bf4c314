from __future__ import annotations

from pathlib import Path

import pytest

from monolith.artifacts.delta_log import Cut, publish, read_cut
from monolith.core.durable_files import seal
from monolith.core.errors import ConfigError, ManifestInvalid, VersionConflict
from monolith.testing.fakes.clock import FakeClock


def test_the_published_cut_is_the_one_that_is_read(tmp_path: Path) -> None:
    clock = FakeClock(now_s=100.0)
    assert read_cut(tmp_path) is None
    first = publish(tmp_path / "logs", Cut(sequences={0: 4, 1: 7}, dense=3, newest_event_s=90), clock=clock)
    assert first == Cut(sequences={0: 4, 1: 7}, dense=3, newest_event_s=90, number=1, published_at_s=100.0)
    assert read_cut(tmp_path / "logs") == first
    second = publish(tmp_path / "logs", Cut(sequences={0: 5, 1: 7}, dense=3), clock=clock)
    assert second.number == 2
    assert read_cut(tmp_path / "logs") == second
    assert [file.name for file in (tmp_path / "logs").iterdir()] == ["cut.json"]


def test_an_altered_cut_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, Cut(sequences={0: 4}, dense=3), clock=FakeClock())
    content = (tmp_path / "cut.json").read_bytes()
    for place in range(len(content)):
        damaged = content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
        (tmp_path / "cut.json").write_bytes(damaged)
        with pytest.raises(ManifestInvalid, match="is corrupt"):
            read_cut(tmp_path)


def test_another_format_or_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_bytes(seal({"format": "other", "version": 1}))
    with pytest.raises(ManifestInvalid, match="expected a cut"):
        read_cut(tmp_path)
    (tmp_path / "cut.json").write_bytes(seal({"format": "monolith.cut", "version": 2}))
    with pytest.raises(VersionConflict, match="is 2, expected 1"):
        read_cut(tmp_path)


@pytest.mark.parametrize(
    ("sequences", "dense", "message"),
    [
        ({}, 0, r"shards of sequences are \[\], expected every shard from 0"),
        ({0: 1, 2: 1}, 0, r"shards of sequences are \[0, 2\]"),
        ({0: -1}, 0, "sequence of shard 0 is -1"),
        ({0: 1}, -1, "dense is -1, expected a version from 0"),
    ],
)
def test_a_cut_that_names_no_state_is_refused(sequences: dict[int, int], dense: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Cut(sequences=sequences, dense=dense)

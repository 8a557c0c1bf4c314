from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch

from monolith.core.errors import ConfigError
from monolith.embedding import Adagrad, MultiTable, OneBit, Sgd, SliceSpec, SlidingHashFilter, Table, TableSpec
from monolith.embedding.ranks import Channel, RankStore
from monolith.embedding.snapshot import read_manifest

Result = TypeVar("Result")

SPECS = [
    TableSpec("item", [SliceSpec(2, optimizer=Sgd(1.0))]),
    TableSpec(
        "user",
        [SliceSpec(1, optimizer=Adagrad(0.1))],
        admission=SlidingHashFilter(300),
        slot_thresholds={1: 2},
    ),
]


def make_tables() -> MultiTable:
    tables = MultiTable(SPECS)
    tables["item"].assign(np.arange(100), np.ones((100, 2), np.float32))
    tables["user"].assign(np.arange(50), np.ones((50, 1), np.float32))
    return tables


def test_a_cut_holds_the_earlier_tables_after_any_update_before_it_is_written(tmp_path: Path) -> None:
    tables = make_tables()
    cut = tables.cut()
    tables["item"].assign(np.arange(200), np.full((200, 2), 7, np.float32))
    tables["user"].delete(np.arange(25))
    written = []
    writer = threading.Thread(target=lambda: written.append(cut.write(tmp_path, shards=2)))
    writer.start()
    writer.join()
    assert dict(written[0].rows) == {"item": 100, "user": 50}
    loaded = MultiTable.load(tmp_path)
    assert loaded["item"].lookup(np.arange(100)).tolist() == np.ones((100, 2)).tolist()
    assert len(loaded["item"]) == 100
    assert len(loaded["user"]) == 50
    assert len(tables["item"]) == 200


def test_a_cut_is_written_once(tmp_path: Path) -> None:
    cut = make_tables().cut()
    cut.write(tmp_path)
    with pytest.raises(ConfigError, match="take another"):
        cut.write(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_dropped_cut_lets_the_next_one_be_taken(tmp_path: Path) -> None:
    tables = make_tables()
    cut = tables.cut()
    cut.drop()
    with pytest.raises(ConfigError, match="take another"):
        cut.write(tmp_path)
    assert dict(tables.cut().write(tmp_path).rows) == {"item": 100, "user": 50}


@pytest.mark.parametrize("obstacle", [".rows", ".filter", "folder"])
def test_a_failed_write_releases_the_tables_although_its_error_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    tables = make_tables()
    cut = tables.cut()
    target = tmp_path / "t"
    with monkeypatch.context() as patched:
        if obstacle == "folder":
            target.write_bytes(b"a file")
        else:
            # Every new file of the snapshot has this number in its name: one of them is a folder already.
            patched.setattr("secrets.randbits", lambda bits: 5)
            (target / f"{5:016x}-0001{'.filter' if obstacle == '.filter' else '-00000-of-00001.rows'}").mkdir(
                parents=True
            )
        with pytest.raises((OSError, ConfigError)) as kept:
            cut.write(target)
    # Would wait for ever if the frames of the error still held a cut.
    assert dict(tables.cut().write(tmp_path / "other").rows) == {"item": 100, "user": 50}
    assert kept.value is not None


def test_a_refused_copy_of_admission_counts_ends_its_cut_and_changes_nothing(tmp_path: Path) -> None:
    def make(capacity: int) -> Table:
        piece = SliceSpec(1, optimizer=Sgd(1.0), compressor=OneBit())
        admission = SlidingHashFilter(capacity)
        return Table(TableSpec("t", [piece], admission=admission, occurrence_threshold=2))

    table, other = make(1000), make(2000)
    other.apply_gradients([1], [[1.0]], step=40_000)
    with pytest.raises(ConfigError, match="capacity") as refused:
        table.copy_admission_of(other)
    _finished(lambda: MultiTable.of({"t": other}).save(tmp_path / "other"))
    assert refused.value is not None  # the error, and with it the frame of the call, exists until here
    table.save(tmp_path / "table")
    (shard,) = read_manifest(tmp_path / "table")[0].shards
    assert (shard.turn, shard.scales) == (0, [1.0])


class _Alone(Channel):
    """The channel of the only rank."""

    def __init__(self) -> None:
        super().__init__(None, 0, 1, torch.device("cpu"))

    def broadcast_bytes(self, content: bytes = b"", source: int = 0) -> bytes:
        return content

    def gather_bytes(self, content: bytes) -> list[bytes]:
        return [content]


class _OneRank:
    rank, size, is_chief = 0, 1, True
    steps = rows = saves = _Alone()


def test_a_snapshot_of_ranks_that_fails_before_its_first_row_ends_its_cut(tmp_path: Path) -> None:
    store = RankStore(_OneRank(), SPECS)
    store.tables["item"].assign([1], [[1, 2]])
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file") as refused:
        store.snapshot(tmp_path / "file")
    assert dict(_finished(lambda: store.snapshot(tmp_path / "folder")).rows) == {"item": 1, "user": 0}
    assert refused.value is not None  # the error, and with it the frame of the call, exists until here


def _finished(call: Callable[[], Result]) -> Result:
    """Return the result of a call that must not wait for the end of a lost cut."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(20)
    assert results, "the call has not returned"
    return results[0]

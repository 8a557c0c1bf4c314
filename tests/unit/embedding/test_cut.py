from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from monolith.core.errors import ConfigError
from monolith.embedding import Adagrad, MultiTable, Sgd, SliceSpec, SlidingHashFilter, TableSpec

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

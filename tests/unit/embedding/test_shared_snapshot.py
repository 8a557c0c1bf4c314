"""A snapshot that several processes write together is whole, or not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from monolith import _native
from monolith.core.errors import SchemaMismatch, SnapshotCorrupt
from monolith.embedding import MultiTable, Sgd, SliceSpec, SlidingHashFilter, TableSpec
from monolith.embedding.snapshot import SharedSnapshot, read_manifest

SPEC = TableSpec(
    "t", [SliceSpec(2, optimizer=Sgd(1.0))], admission=SlidingHashFilter(capacity=300), slot_thresholds={1: 5}
)
IDS = np.arange(30)


def shards(count: int, spec: TableSpec = SPEC) -> list[MultiTable]:
    tables = [MultiTable([spec]) for _ in range(count)]
    for index, table in enumerate(tables):
        mine = IDS[IDS % count == index]
        table.push({"t": mine}, {"t": np.repeat(-mine[:, None], 2, 1).astype(np.float32)}, time_s=index)
    return tables


def write(folder: Path, tables: list[MultiTable]) -> None:
    with SharedSnapshot(folder) as shared:
        parts = [
            table.cut().write_part(folder, shared.generation, index, len(tables)) for index, table in enumerate(tables)
        ]
        shared.publish(parts, {})


def test_any_reader_finds_the_rows_of_all(tmp_path: Path) -> None:
    write(tmp_path, shards(3))
    (saved,) = read_manifest(tmp_path)
    assert (saved.rows, saved.max_time_s, len(saved.parts), len(saved.shards)) == (30, 2, 3, 3)
    assert saved.bytes == sum(file.stat().st_size for file in tmp_path.iterdir() if file.name != "manifest.json")
    assert MultiTable.load(tmp_path).lookup({"t": IDS})["t"][:, 0].tolist() == IDS.tolist()
    half = MultiTable([SPEC])
    half.restore(tmp_path, shard=(1, 2))
    assert len(half["t"]) == 15


def test_a_new_one_takes_the_place_of_the_old(tmp_path: Path) -> None:
    write(tmp_path, shards(3))
    write(tmp_path, shards(2))
    (saved,) = read_manifest(tmp_path)
    assert len(saved.parts) == 2
    assert len(list(tmp_path.iterdir())) == 5  # two parts, two filters, the manifest


def test_an_unpublished_snapshot_leaves_no_files(tmp_path: Path) -> None:
    write(tmp_path, shards(1))
    before = sorted(tmp_path.iterdir())
    with SharedSnapshot(tmp_path) as shared:
        shards(2)[0].cut().write_part(tmp_path, shared.generation, 0, 2)
        assert len(list(tmp_path.iterdir())) > len(before)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("suffix", ["rows", "filter"])
def test_a_file_that_did_not_arrive_is_missed(tmp_path: Path, suffix: str) -> None:
    with SharedSnapshot(tmp_path) as shared:
        parts = [table.cut().write_part(tmp_path, shared.generation, index, 2) for index, table in enumerate(shards(2))]
        victim = sorted(tmp_path.glob(f"*.{suffix}"))[1]
        content = victim.read_bytes()
        victim.unlink()
        with pytest.raises(SnapshotCorrupt, match="folder"):
            shared.publish(parts, {})
        victim.write_bytes(content[:-1])
        with pytest.raises(SnapshotCorrupt, match=r"it has \d+ bytes, expected"):
            shared.publish(parts, {})
    assert not list(tmp_path.iterdir())


def test_processes_with_other_tables_cannot_save_together(tmp_path: Path) -> None:
    wide = TableSpec("t", [SliceSpec(3, optimizer=Sgd())])
    with SharedSnapshot(tmp_path) as shared:
        parts = [
            MultiTable([spec]).cut().write_part(tmp_path, shared.generation, index, 2)
            for index, spec in enumerate([SPEC, wide])
        ]
        with pytest.raises(SchemaMismatch, match="2 processes"):
            shared.publish(parts, {})
        with pytest.raises(SchemaMismatch, match="2 processes"):
            shared.publish([parts[0], []], {})


def test_a_part_that_cannot_be_written_releases_the_tables(tmp_path: Path) -> None:
    (tables,) = shards(1)
    with pytest.raises(OSError):
        tables.cut().write_part(tmp_path / "absent", 1, 0, 1)
    tables.save(tmp_path / "s")


def test_a_budget_can_change_while_the_table_is_used() -> None:
    table = MultiTable([SPEC])["t"]
    native: _native.Table = table._native
    table.assign(np.arange(100), np.ones((100, 2), np.float32))
    native.set_budget(table.memory_bytes)
    with pytest.raises(Exception, match="max_bytes"):
        table.assign(np.arange(100_000), np.ones((100_000, 2), np.float32))
    native.set_budget(0)
    table.assign(np.arange(100_000), np.ones((100_000, 2), np.float32))

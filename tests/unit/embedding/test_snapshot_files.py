"""Torn and altered snapshot files are refused with the name of the file; never loaded, never a crash."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import numpy as np
import pytest

from monolith.core.errors import SnapshotCorrupt
from monolith.embedding import Table
from monolith.embedding.admission import SlidingHashFilter
from monolith.embedding.optimizers import Adagrad, Adam, Sgd
from monolith.embedding.specs import SliceSpec, TableSpec


def save_small(path: Path) -> None:
    """Five rows in two parts, with optimizer state and sightings: every kind of content in few bytes."""
    slices = [SliceSpec(1, optimizer=Sgd()), SliceSpec(2, optimizer=Adam())]
    spec = TableSpec("t", slices, admission=SlidingHashFilter(300), slot_thresholds={1: 2})
    table = Table(spec)
    table.apply_gradients(np.arange(5), np.ones((5, 3), np.float32), time_s=7)
    table.assign(np.array([1 << 48]), np.ones((1, 3), np.float32))
    table.save(path, shards=2)


def save_large(path: Path) -> None:
    table = Table(TableSpec("t", [SliceSpec(4, optimizer=Adagrad())]))
    table.apply_gradients(np.arange(500), np.ones((500, 4), np.float32), time_s=7)
    table.save(path, shards=3)


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def expect_refusal(path: Path, file: Path, what: str) -> None:
    refusal = ""
    try:
        Table.load(path)
    except SnapshotCorrupt as exc:
        refusal = str(exc)
    assert refusal, f"{what} was loaded as if nothing had happened"
    assert file.name in refusal, f"{what}: the message does not name the file: {refusal}"


def test_a_snapshot_is_a_manifest_and_numbered_parts(tmp_path: Path) -> None:
    save_large(tmp_path / "t")
    names = [file.name for file in files_of(tmp_path / "t")]
    assert "manifest.json" in names
    parts = [name for name in names if name != "manifest.json"]
    generations = {part[:16] for part in parts}
    assert len(generations) == 1
    assert all(re.fullmatch(rf"[0-9a-f]{{16}}-.*0000{i}-of-00003\.rows", part) for i, part in enumerate(parts))


def test_a_snapshot_of_many_files_is_read_with_few_descriptors(tmp_path: Path) -> None:
    table = Table(TableSpec("t", [SliceSpec(4, optimizer=Adagrad())]))
    table.apply_gradients(np.arange(2000), np.ones((2000, 4), np.float32), time_s=7)
    table.save(tmp_path / "t", shards=400)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = max(int(each) for each in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors + 128, before[1]))
    try:
        loaded = Table.load(tmp_path / "t")
        loaded.restore(tmp_path / "t")  # rows present: every file is checked before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert np.array_equal(loaded.lookup(np.arange(2000)), table.lookup(np.arange(2000)))
    file = next((tmp_path / "t").glob("*.rows"))
    damaged = bytearray(file.read_bytes())
    damaged[-40] ^= 1  # in the last block
    file.write_bytes(damaged)
    expect_refusal(tmp_path / "t", file, "an altered byte")


def test_a_file_cut_at_any_block_is_refused(tmp_path: Path) -> None:
    save_large(tmp_path / "t")
    for file in files_of(tmp_path / "t"):
        whole = file.read_bytes()
        for length in [*range(0, len(whole), 512), len(whole) - 1]:
            file.write_bytes(whole[:length])
            expect_refusal(tmp_path / "t", file, f"{file.name} cut to {length} of {len(whole)} bytes")
        file.write_bytes(whole)
    assert len(Table.load(tmp_path / "t")) == 500


def test_a_file_with_bytes_added_is_refused(tmp_path: Path) -> None:
    save_large(tmp_path / "t")
    for file in files_of(tmp_path / "t"):
        whole = file.read_bytes()
        file.write_bytes(whole + b"\0")
        expect_refusal(tmp_path / "t", file, f"{file.name} with a byte added")
        file.write_bytes(whole)


def test_a_file_with_any_one_bit_flipped_is_refused(tmp_path: Path) -> None:
    save_small(tmp_path / "t")
    for file in files_of(tmp_path / "t"):
        whole = bytearray(file.read_bytes())
        assert len(whole) < 20_000
        for position in range(len(whole)):
            altered = whole.copy()
            altered[position] ^= 1 << (position % 8)
            file.write_bytes(altered)
            expect_refusal(tmp_path / "t", file, f"{file.name} with byte {position} flipped")
        file.write_bytes(whole)
    assert len(Table.load(tmp_path / "t")) == 5


def test_a_refused_restore_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    save_large(tmp_path / "t")
    table = Table.load(tmp_path / "t")
    table.assign(np.array([9999]), np.ones((1, 4), np.float32))
    part = files_of(tmp_path / "t")[0]
    part.write_bytes(part.read_bytes()[:-40])
    with pytest.raises(SnapshotCorrupt):
        table.restore(tmp_path / "t")
    assert len(table) == 501


def test_a_part_of_an_older_generation_in_place_of_a_new_one_is_refused(tmp_path: Path) -> None:
    save_large(tmp_path / "old")
    table = Table.load(tmp_path / "old")
    table.apply_gradients(np.arange(500), np.ones((500, 4), np.float32), time_s=8)
    table.save(tmp_path / "new", shards=3)
    for index in range(3):
        (old,) = (tmp_path / "old").glob(f"*-0000{index}-of-00003.rows")
        (new,) = (tmp_path / "new").glob(f"*-0000{index}-of-00003.rows")
        whole = new.read_bytes()
        new.write_bytes(old.read_bytes())
        expect_refusal(tmp_path / "new", new, "a part of another snapshot")
        new.write_bytes(whole)


def test_saving_again_to_the_same_path_replaces_the_snapshot_and_leaves_no_litter(tmp_path: Path) -> None:
    table = Table(TableSpec("t", [SliceSpec(1, optimizer=Sgd())]))
    for round_number in range(1, 4):
        table.assign(np.arange(100 * round_number), np.ones((100 * round_number, 1), np.float32))
        table.save(tmp_path / "t", shards=round_number)
        assert len(Table.load(tmp_path / "t")) == 100 * round_number
        assert len(files_of(tmp_path / "t")) == 1 + round_number


@pytest.mark.parametrize("shards", [1, 2, 7, 64, 100])
def test_a_snapshot_of_any_number_of_parts_loads(tmp_path: Path, shards: int) -> None:
    table = Table(TableSpec("t", [SliceSpec(3, optimizer=Adagrad())]))
    ids = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 1000)
    table.apply_gradients(ids, np.random.default_rng(2).normal(size=(1000, 3)).astype(np.float32), time_s=3)
    table.save(tmp_path / "t", shards=shards)
    copy = Table.load(tmp_path / "t")
    assert np.array_equal(copy.lookup(ids), table.lookup(ids))
    assert len(list((tmp_path / "t").glob("*.rows"))) == shards


def test_rows_wider_than_a_page_come_back_from_several_blocks(tmp_path: Path) -> None:
    table = Table(TableSpec("t", [SliceSpec(3001, optimizer=Adagrad())]))
    ids = np.arange(400) * 7919
    table.assign(ids, np.random.default_rng(3).normal(size=(400, 3001)).astype(np.float32), time_s=5)
    table.save(tmp_path / "t", shards=1)
    (file,) = (tmp_path / "t").glob("*.rows")
    assert file.read_bytes().count(b"BLCK") >= 64  # one per part of the table at least
    assert np.array_equal(Table.load(tmp_path / "t").lookup(ids), table.lookup(ids))

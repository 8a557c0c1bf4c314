"""Serving tables that are used where they lie: like tables in memory, with files that never change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.core.errors import ConfigError, SnapshotCorrupt
from monolith.embedding import FixedR8, Fp16, Fp32, MultiTable, OneBit, Sgd, SliceSpec, TableSpec

DIM = 3


def spec(name: str = "t", **options: Any) -> TableSpec:
    return TableSpec(
        name,
        [
            SliceSpec(1, optimizer=Sgd(), compressor=options.pop("compressor", Fp32())),
            SliceSpec(DIM - 1, optimizer=Sgd(), compressor=Fp32()),
        ],
        **options,
    )


def filled(rows: dict[int, float], **serving: Any) -> MultiTable:
    tables = MultiTable([spec()])
    tables["t"].assign(list(rows), np.repeat(np.float32(list(rows.values())), DIM).reshape(-1, DIM), time_s=5)
    return tables.to_serving(**serving)


def content(tables: MultiTable, name: str = "t") -> dict[int, list[float]]:
    return {int(key): row.tolist() for ids, rows in tables[name].items() for key, row in zip(ids, rows, strict=True)}


KEYS = st.integers(-20, 20) | st.integers(-(2**63), 2**63 - 1)
VALUES = st.sampled_from([0.0, 1.0, -2.5, 1024.0])
CHANGES = st.lists(
    st.tuples(st.just("assign"), KEYS, VALUES)
    | st.tuples(st.just("add"), KEYS, VALUES)
    | st.tuples(st.just("delete"), KEYS, st.just(0.0)),
    max_size=30,
)


@settings(max_examples=25, deadline=None)
@given(start=st.dictionaries(KEYS, VALUES, max_size=60), changes=CHANGES)
def test_a_mapped_table_is_the_dictionary_that_was_saved_with_the_changes_since(
    tmp_path_factory: pytest.TempPathFactory, start: dict[int, float], changes: list[tuple[str, int, float]]
) -> None:
    root = tmp_path_factory.mktemp("images")
    filled(start).save_images(root / "0")
    tables = MultiTable.load_images(root / "0")
    expected = dict(start)
    for what, key, value in changes:
        if what == "assign":
            tables["t"].assign([key], [[value] * DIM])
            expected[key] = value
        elif what == "add":
            tables["t"].assign_add([key], [[value] * DIM])
            expected[key] = expected.get(key, 0.0) + value
        else:
            assert tables["t"].delete([key]) == (expected.pop(key, None) is not None)
    assert content(tables) == {key: [value] * DIM for key, value in expected.items()}
    asked = [*expected, *start, 123456789]
    rows, found = tables["t"].lookup(asked, return_found=True)
    assert found.tolist() == [key in expected for key in asked]
    assert rows[:, 0].tolist() == [expected.get(key, 0.0) for key in asked]
    assert content(MultiTable.load_images(root / "0")) == {key: [value] * DIM for key, value in start.items()}


@pytest.mark.parametrize("compressor", [Fp16(), FixedR8(r=1.0), OneBit()], ids=lambda each: each.kind)
def test_every_compressed_form_is_kept(tmp_path: Path, compressor: Any) -> None:
    tables = MultiTable([spec("a", compressor=compressor), spec("b")])
    ids = np.arange(5000)
    tables["a"].assign(ids, np.random.default_rng(1).uniform(-1, 1, (5000, DIM)), time_s=77)
    served = tables.to_serving()
    served.save_images(tmp_path / "x")
    for in_memory in (False, True):
        loaded = MultiTable.load_images(tmp_path / "x", in_memory=in_memory)
        assert loaded.names == ("a", "b")
        assert loaded["a"].spec == served["a"].spec
        np.testing.assert_array_equal(loaded["a"].lookup(ids), served["a"].lookup(ids))
        assert (len(loaded["a"]), len(loaded["b"]), loaded["a"].max_time_s) == (5000, 0, 77)
        entry = loaded["a"].entry(17)
        assert entry is not None
        assert entry.time_s == 77


def test_zero_rows_stay_out_of_a_table_that_skips_them(tmp_path: Path) -> None:
    filled({1: 0.0, 2: 3.0}, skip_zero_rows=True).save_images(tmp_path / "x")
    tables = MultiTable.load_images(tmp_path / "x")
    assert content(tables) == {2: [3.0] * DIM}
    tables["t"].assign([2, 3], [[0.0] * DIM, [1.0] * DIM])
    assert content(tables) == {3: [1.0] * DIM}


@pytest.mark.skipif("MONOLITH_SANITIZED" in os.environ, reason="a sanitizer keeps memory of its own")
def test_a_mapping_is_shared_and_ends_with_the_table(tmp_path: Path) -> None:
    """The rows are in no memory of the process's own, and the mapping ends with the table."""
    wide = TableSpec("t", [SliceSpec(1024, optimizer=Sgd(), compressor=Fp32())])
    tables = MultiTable([wide]).to_serving()
    rows = 12_000
    tables["t"].assign(np.arange(rows), np.ones((rows, 1024), np.float32))
    tables.save_images(tmp_path / "x")
    program = """
        import gc, sys
        import numpy as np
        from monolith.embedding import MultiTable

        def amount(name):
            text = open("/proc/self/smaps_rollup").read()
            return int(text.split(name + ":")[1].split()[0]) * 1024

        def maps():
            return open("/proc/self/maps").read().count(".table")

        before = amount("Private_Dirty")
        tables = MultiTable.load_images(sys.argv[1])
        assert (tables["t"].lookup(np.arange(12_000)) == 1).all()
        gc.collect()
        print(amount("Private_Dirty") - before, tables.memory_bytes, maps())
        tables["t"].clear()
        print(maps())
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "x")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"},
    )
    assert ended.returncode == 0, ended.stderr
    grown, own, maps, left = (int(word) for word in ended.stdout.split())
    payload = rows * 4096
    # Rows behind the last whole slab of each of 64 parts are copied: up to 16 MiB.
    assert own < payload / 2
    assert grown < payload * 0.6
    assert (maps, left) == (1, 0)


# --- refused folders ---


def test_training_tables_and_used_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="training table"):
        MultiTable([spec()]).save_images(tmp_path / "x")
    filled({1: 1.0}).save_images(tmp_path / "x")
    with pytest.raises(ConfigError, match="not empty"):
        filled({1: 1.0}).save_images(tmp_path / "x")


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotCorrupt, match="holds no tables"):
        MultiTable.load_images(tmp_path)
    filled({1: 1.0}).save(tmp_path / "snapshot")
    with pytest.raises(SnapshotCorrupt, match="export the model again"):
        MultiTable.load_images(tmp_path / "snapshot")
    filled({1: 1.0}).save_images(tmp_path / "x")
    image = tmp_path / "x" / "0000.table"
    whole = image.read_bytes()
    image.unlink()
    with pytest.raises(SnapshotCorrupt, match=r"0000\.table"):
        MultiTable.load_images(tmp_path / "x")
    image.write_bytes(whole)
    manifest = tmp_path / "x" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"rows": 1', b'"rows": 2'))
    with pytest.raises(SnapshotCorrupt, match="manifest"):
        MultiTable.load_images(tmp_path / "x")


DAMAGED_ROWS = {key: 1.0 for key in range(300)}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    folder = tmp_path_factory.mktemp("damaged") / "x"
    filled(DAMAGED_ROWS).save_images(folder)
    return folder, (folder / "0000.table").read_bytes()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_is_refused_or_changes_values_only(sound: tuple[Path, bytes], data: st.DataObject) -> None:
    folder, whole = sound
    content_of = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content_of) - 1))
        content_of[at] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        content_of = content_of[: data.draw(st.integers(0, len(content_of)))]
    (folder / "0000.table").write_bytes(content_of)
    try:
        tables = MultiTable.load_images(folder)
    except SnapshotCorrupt:
        return
    assert tables["t"].contains(list(DAMAGED_ROWS)).all()
    assert tables["t"].delete(list(DAMAGED_ROWS)) == len(DAMAGED_ROWS)


SANITIZED = pytest.mark.skipif("MONOLITH_SANITIZED" in os.environ, reason="sanitizers handle SIGBUS themselves")


@SANITIZED
def test_a_mapped_file_that_is_cut_off_fails_lookups_and_does_not_end_the_process(tmp_path: Path) -> None:
    script = """
import os, sys
import numpy as np
from monolith.core.errors import SnapshotCorrupt
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec

folder = sys.argv[1]
trained = MultiTable([TableSpec("t", [SliceSpec(64, optimizer=Sgd(1.0))])])
ids = np.arange(1, 100001)
trained["t"].assign(ids, np.ones((100000, 64), np.float32))
trained.to_serving().save_images(folder)
tables = MultiTable.load_images(folder)
assert tables["t"].lookup(ids[:100]).sum() == 6400
(path,) = [name for name in os.listdir(folder) if name.endswith(".table")]
size = os.path.getsize(os.path.join(folder, path))
os.truncate(os.path.join(folder, path), 4096)
for call in (
    lambda: tables.save(folder + "-saved"),
    lambda: tables.save_images(folder + "-copy"),
    lambda: tables["t"].lookup(ids),
    lambda: tables["t"].lookup(ids[:1]),
):
    try:
        call()
    except SnapshotCorrupt as error:
        assert "cut off while it was mapped" in str(error), error
    else:
        raise AssertionError("zeros were returned")
assert not [name for name in os.listdir(folder + "-saved") if name.endswith(".json")]
assert os.listdir(folder + "-copy") == []
os.truncate(os.path.join(folder, path), 0)
import shutil
shutil.rmtree(folder)
trained.to_serving().save_images(folder)
assert MultiTable.load_images(folder)["t"].lookup(ids).sum() == 100000 * 64
print("alive")
"""
    command = [sys.executable, "-c", script, str(tmp_path / "images")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (0, "alive\n"), result.stderr


@SANITIZED
def test_a_bus_error_elsewhere_still_ends_the_process(tmp_path: Path) -> None:
    script = """
import mmap, os, sys
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec

folder = sys.argv[1]
MultiTable([TableSpec("t", [SliceSpec(2, optimizer=Sgd(1.0))])]).to_serving().save_images(folder)
tables = MultiTable.load_images(folder)
with open(os.path.join(folder, "other"), "w+b") as file:
    file.truncate(1 << 16)
    mapped = mmap.mmap(file.fileno(), 1 << 16)
    file.truncate(0)
    mapped[5000]
"""
    command = [sys.executable, "-c", script, str(tmp_path / "images")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == -signal.SIGBUS, result.stderr

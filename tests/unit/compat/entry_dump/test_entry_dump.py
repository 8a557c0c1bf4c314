from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith import _native
from monolith.compat.entry_dump.dump import (
    count_entries,
    read_entry_dump,
    read_multi_entry_dump,
    write_entry_dump,
    write_multi_entry_dump,
)
from monolith.compat.entry_dump.entry_codec import STATE_FIELDS, decode_entry, encode_entry
from monolith.compat.entry_dump.shard_files import find_shards
from monolith.core.errors import CheckpointMissing, ConfigError, RecordCorrupt
from monolith.embedding.entry import Entry, SliceState


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def entry(row_id: int, dim: int = 3, time_s: int = 7) -> Entry:
    values = np.arange(dim, dtype=np.float32) + row_id
    return Entry(row_id, values, (SliceState("adagrad", {"norm": values + 0.5}),), time_s)


def assert_same(ours: Entry, theirs: Entry) -> None:
    assert (ours.id, ours.time_s) == (theirs.id, theirs.time_s)
    assert ours.values.tobytes() == theirs.values.tobytes()
    assert len(ours.state) == len(theirs.state)
    for mine, other in zip(ours.state, theirs.state, strict=True):
        assert mine.kind == other.kind
        assert {name: numbers.tobytes() for name, numbers in mine.items()} == {
            name: numbers.tobytes() for name, numbers in other.items()
        }


numbers = st.lists(st.floats(width=32), max_size=20).map(lambda values: np.array(values, np.float32))
int64s = st.integers(-(2**63), 2**63 - 1)


@st.composite
def states(draw: st.DrawFn) -> SliceState:
    kind = draw(st.sampled_from(sorted(set(STATE_FIELDS) - {"moving_average"})))
    fields = {}
    for name in STATE_FIELDS[kind]:
        if name in ("last_update_step", "global_step"):
            fields[name] = np.array([draw(int64s)], np.int64)
        else:
            fields[name] = draw(st.lists(st.floats(width=32), min_size=1, max_size=9).map(lambda v: floats(*v)))
    return SliceState(kind, fields)


entries = st.builds(Entry, int64s, numbers, st.lists(states(), max_size=3).map(tuple), int64s)


@given(entries)
def test_any_entry_survives_the_round_trip(each: Entry) -> None:
    assert_same(decode_entry(encode_entry(each)), each)


@given(entries, st.data())
def test_a_cut_record_is_refused_or_shorter(each: Entry, data: st.DataObject) -> None:
    record = encode_entry(each)
    cut = record[: data.draw(st.integers(0, len(record) - 1))]
    try:
        decoded = decode_entry(cut)
    except RecordCorrupt:
        return
    assert decoded.id == each.id
    assert each.values.tobytes().startswith(decoded.values.tobytes())


@given(st.binary(max_size=200))
def test_noise_never_crashes_the_decoder(noise: bytes) -> None:
    with contextlib.suppress(RecordCorrupt):
        decode_entry(noise, "place")


@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_survives_the_round_trip(tmp_path: Path, shards: int) -> None:
    written = {row_id: entry(row_id) for row_id in (-(2**63), -1, 0, 1, 5, 2**63 - 1)}
    assert write_entry_dump(tmp_path / "t", written.values(), shards=shards) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"t-{i:05d}-of-{shards:05d}" for i in range(shards)]
    read = list(read_entry_dump(tmp_path / "t"))
    assert len(read) == 6
    for each in read:
        assert_same(each, written[each.id])


def test_ids_go_to_the_file_of_their_shard(tmp_path: Path) -> None:
    write_entry_dump(tmp_path / "t", [entry(-1), entry(4)], shards=3)
    sizes = [path.stat().st_size > 0 for path in find_shards(tmp_path / "t")]
    assert sizes == [True, True, False]  # 2^64 - 1 is a multiple of 3; 4 mod 3 is 1


def test_an_empty_checkpoint_is_one_empty_file(tmp_path: Path) -> None:
    assert write_entry_dump(tmp_path / "t", []) == 0
    assert list(read_entry_dump(tmp_path / "t")) == []


def test_progress_is_reported(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    write_entry_dump(tmp_path / "t", [entry(i) for i in range(5000)], progress=lambda *call: calls.append(call))
    assert calls == [(4096, 5000)]
    calls.clear()
    assert sum(1 for _ in read_entry_dump(tmp_path / "t", progress=lambda *call: calls.append(call))) == 5000
    assert calls[-1] == (find_shards(tmp_path / "t")[0].stat().st_size,) * 2


def test_records_larger_than_a_piece_are_read(tmp_path: Path) -> None:
    big = Entry(1, np.zeros(1_500_000, np.float32), (), 0)
    write_entry_dump(tmp_path / "t", [entry(0), big, entry(2)])
    assert [(each.id, each.values.size) for each in read_entry_dump(tmp_path / "t")] == [(0, 3), (1, 1_500_000), (2, 3)]


def test_state_without_a_kind_needs_the_optimizers_only_where_it_is_ambiguous(tmp_path: Path) -> None:
    plain = Entry(1, floats(1), ({"norm": floats(2)},), 0)
    assert decode_entry(encode_entry(plain)).state[0].kind == "adagrad"
    ambiguous = Entry(1, floats(1), ({"n": floats(2)},), 0)
    with pytest.raises(ConfigError, match=r"momentum.*rmsprop.*name the optimizers"):
        encode_entry(ambiguous)
    assert decode_entry(encode_entry(ambiguous, ["rmsprop"])).state[0].kind == "rmsprop"
    with pytest.raises(ConfigError, match="is not 'adam' state"):
        encode_entry(ambiguous, ["adam"])
    with pytest.raises(ConfigError, match="names 2"):
        encode_entry(ambiguous, ["rmsprop", "sgd"])


def test_an_entry_outside_int64_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Entry\.id is"):
        write_entry_dump(tmp_path / "t", [entry(2**63)])
    assert list(tmp_path.iterdir()) == []


# --- sets of files ---------------------------------------------------------------------------------------------------


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).touch()
    return folder / "t"


def test_a_complete_set_is_found_and_temporary_files_are_ignored(tmp_path: Path) -> None:
    base = touch(
        tmp_path, "t-00001-of-00002", "t-00000-of-00002", "t-00000-of-00002-tmp-123", "t-0-of-2", "t-00000-of-000021"
    )
    assert [path.name for path in find_shards(base)] == ["t-00000-of-00002", "t-00001-of-00002"]


def test_a_longer_name_is_another_set(tmp_path: Path) -> None:
    write_entry_dump(tmp_path / "table1", [entry(1)])
    write_entry_dump(tmp_path / "table10", [entry(10)], shards=2)
    write_multi_entry_dump(tmp_path / "table", {"x": [entry(3)]})
    assert [each.id for each in read_entry_dump(tmp_path / "table1")] == [1]
    assert [each.id for each in read_entry_dump(tmp_path / "table10")] == [10]
    assert [each.id for _, each in read_multi_entry_dump(tmp_path / "table")] == [3]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ((), "no file"),
        (("t-00000-of-00001-tmp-1",), "no file"),
        (("t-00000-of-00002",), "t-00001-of-00002 is missing"),
        (("t-00000-of-00001", "t-00000-of-00002", "t-00001-of-00002"), "sets of 1 and 2"),
        (("t-00000-of-00001", "t-00001-of-00001"), "index beyond its own count of 1"),
        (("t-00000-of-00000",), "index beyond"),
    ],
)
def test_an_incomplete_set_is_refused(tmp_path: Path, names: tuple[str, ...], reason: str) -> None:
    base = touch(tmp_path, *names)
    with pytest.raises(CheckpointMissing, match=reason):
        list(read_entry_dump(base))


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match="no file"):
        find_shards(tmp_path / "nowhere" / "t")


def test_existing_files_are_replaced_only_on_request(tmp_path: Path) -> None:
    write_entry_dump(tmp_path / "t", [entry(1)], shards=3)
    with pytest.raises(ConfigError, match="exist"):
        write_entry_dump(tmp_path / "t", [entry(2)])
    write_entry_dump(tmp_path / "t", [entry(2)], shards=2, overwrite=True)
    assert [each.id for each in read_entry_dump(tmp_path / "t")] == [2]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("shards", [0, 100000])
def test_an_impossible_number_of_files_is_refused(tmp_path: Path, shards: int) -> None:
    with pytest.raises(ConfigError, match=f"shards is {shards}"):
        write_entry_dump(tmp_path / "t", [], shards=shards)


def test_a_failure_while_writing_leaves_nothing_and_keeps_the_old(tmp_path: Path) -> None:
    write_entry_dump(tmp_path / "t", [entry(1)], shards=2)

    def failing() -> Iterator[Entry]:
        yield entry(2)
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="gone"):
        write_entry_dump(tmp_path / "t", failing(), shards=1, overwrite=True)
    with pytest.raises(OSError, match="gone"):
        write_multi_entry_dump(tmp_path / "m", {"a": failing()})
    assert [each.id for each in read_entry_dump(tmp_path / "t")] == [1]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_replacement_that_fails_half_way_never_mixes_old_and_new_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_entry_dump(tmp_path / "t", [entry(0), entry(1)], shards=2)
    write_multi_entry_dump(tmp_path / "m", {"a": [entry(0)]})
    replace, calls = os.replace, iter((True, False, True, False))

    def failing(source: str, target: str) -> None:
        if not next(calls):
            raise OSError("the disk is gone")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="gone"):
        write_entry_dump(tmp_path / "t", [entry(2), entry(3)], shards=2, overwrite=True)
    with pytest.raises(OSError, match="gone"):
        write_multi_entry_dump(tmp_path / "m", {"a": [entry(2)]}, overwrite=True)
    with pytest.raises(CheckpointMissing, match="t-00001-of-00002 is missing"):
        list(read_entry_dump(tmp_path / "t"))
    with pytest.raises(CheckpointMissing, match=r"no file .*m\.meta"):
        list(read_multi_entry_dump(tmp_path / "m"))


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_file_cut_at_any_byte_is_refused_unless_between_records(tmp_path: Path) -> None:
    write_entry_dump(tmp_path / "t", [entry(1), entry(2)])
    (path,) = find_shards(tmp_path / "t")
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size in (0, len(whole) // 2):
            assert len(list(read_entry_dump(tmp_path / "t"))) == (size > 0)
        else:
            with pytest.raises(RecordCorrupt, match=r"t-00000-of-00001: record at byte \d+: "):
                list(read_entry_dump(tmp_path / "t"))


def test_a_flipped_bit_in_any_byte_is_refused(tmp_path: Path) -> None:
    write_entry_dump(tmp_path / "t", [entry(1), entry(2)])
    (path,) = find_shards(tmp_path / "t")
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(RecordCorrupt):
            list(read_entry_dump(tmp_path / "t"))


# --- several tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2])
def test_a_multi_table_checkpoint_survives_the_round_trip(tmp_path: Path, shards: int) -> None:
    tables = {"slot2": [entry(i, dim=200) for i in range(3000)], "slot1": [entry(-5)], "slot3": []}
    counts = write_multi_entry_dump(tmp_path / "m", tables, shards=shards)
    assert counts == {"slot1": 1, "slot2": 3000, "slot3": 0}
    assert list(counts) == ["slot1", "slot2", "slot3"]
    assert count_entries(tmp_path / "m") == counts
    assert len(list(tmp_path.iterdir())) == 2 * shards
    read: dict[str, dict[int, Entry]] = {name: {} for name in tables}
    for name, each in read_multi_entry_dump(tmp_path / "m"):
        read[name][each.id] = each
    for name, rows in tables.items():
        assert len(read[name]) == len(rows)
        for each in rows:
            assert_same(read[name][each.id], each)


def test_compressed_blocks_stay_within_the_limit_of_tensorflow(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 2**32, 400_000, dtype=np.uint32).view(np.float32)
    write_multi_entry_dump(tmp_path / "m", {"t": [Entry(1, noise, (), 0)]})
    data = find_shards(tmp_path / "m")[0].read_bytes()
    at = blocks = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        assert 0 < size <= 256 << 10
        at += 4 + size
        blocks += 1
    assert at == len(data)
    assert blocks > 5


def test_damaged_compressed_files_are_refused(tmp_path: Path) -> None:
    write_multi_entry_dump(tmp_path / "m", {"a": [entry(1)], "b": [entry(2)]})
    for base in ("m", "m.meta"):
        (path,) = find_shards(tmp_path / base)
        whole = path.read_bytes()
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            with pytest.raises(RecordCorrupt):
                # An empty metadata file, or one cut between its records, announces less than there is.
                list(read_multi_entry_dump(tmp_path / "m"))
        path.write_bytes(whole)
    (path,) = find_shards(tmp_path / "m")
    whole = path.read_bytes()
    expected = list(read_multi_entry_dump(tmp_path / "m"))
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            read = list(read_multi_entry_dump(tmp_path / "m"))
        except RecordCorrupt:
            continue
        # A copy may point to another place with the same bytes; then nothing is lost.
        for (name, ours), (other, theirs) in zip(read, expected, strict=True):
            assert name == other
            assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xff\xff\xff" + b"x" * 20, "is not possible"),
        (b"\x00\x00\x00\x10" + b"x" * 5, "ends inside a snappy block"),
        (b"\x00\x00\x00\x06" + b"\xff\xff\xff\xff\x0f\x00", "claims to be larger"),
        (b"\x00\x00\x00\x03" + b"\x05\xff\xff", "not a snappy block"),
    ],
)
def test_hostile_compressed_blocks_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "m-00000-of-00001").write_bytes(content)
    (tmp_path / "m.meta-00000-of-00001").write_bytes(_native.frame_metadata("t", 1))
    with pytest.raises(RecordCorrupt, match=reason):
        list(read_multi_entry_dump(tmp_path / "m"))


def test_data_and_metadata_must_agree(tmp_path: Path) -> None:
    write_multi_entry_dump(tmp_path / "m", {"t": [entry(1), entry(2)]})
    meta = tmp_path / "m.meta-00000-of-00001"
    meta.write_bytes(_native.frame_metadata("t", 3))
    with pytest.raises(RecordCorrupt, match=r"ends after 2 of 3 entries of table 't'"):
        list(read_multi_entry_dump(tmp_path / "m"))
    meta.write_bytes(_native.frame_metadata("t", 1))
    with pytest.raises(RecordCorrupt, match="more records than announced"):
        list(read_multi_entry_dump(tmp_path / "m"))
    os.remove(meta)
    with pytest.raises(CheckpointMissing, match=r"m\.meta"):
        list(read_multi_entry_dump(tmp_path / "m"))

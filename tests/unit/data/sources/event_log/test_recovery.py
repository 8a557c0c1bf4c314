"""A partition that is opened after a crash: torn tails are cut, damage in the middle stays, epochs grow."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monolith import _native
from monolith.core.errors import ClusterError, ConfigError, DataError, RecordCorrupt

LOG = 0x1122334455667788
T0 = 1_700_000_000_000
HEADER = bytes.fromhex(
    "4d4c4f4753454731 0100400000000000 0000000000000000 8877665544332211"
    "0000000001000000 0068e5cf8b010000 0100000000000000 000000000acdf0d2"
)
FIRST = bytes.fromhex(
    "4d42543117000000 0000000000000000 0100000001000000 0068e5cf8b010000"
    "0a68e5cf8b010000 0000000000000000 0000000000000000 e9309c147f179e07"
    "0200000005000000 0068e5cf8b010000 6b3168656c6c6f"
)
SECOND = bytes.fromhex(
    "4d42543125000000 0100000000000000 0200000001000000 e86be5cf8b010000"
    "fc6be5cf8b010000 0700000000000000 0100000000000000 771e380f754855c9"
    "0200000001000000 e86be5cf8b010000 6b32610000000002 000000f469e5cf8b"
    "0100006263"
)
TINY = HEADER + FIRST + SECOND
INDEX = bytes.fromhex(
    "4d4c4f4749445831 0000000000000000 0000000000000000 4000000000000000"
    "0000000000000080 0100000000000000 9700000000000000 0068e5cf8b010000"
)
SEGMENT = "seg-00000000000000000000.log"


def settings(folder: Path, **changes: Any) -> _native.EventLogSettings:
    values: dict[str, Any] = {
        "stream": "log tiny[0]",
        "folder": str(folder),
        "log": LOG,
        "partition": 0,
        "partitions": 1,
        "durability": "interval",
        "segment_bytes": 1 << 20,
        "segment_age_ms": 0,
        "retain_bytes": 0,
        "retain_ms": 0,
    }
    return _native.EventLogSettings(**{**values, **changes})


def open_tiny(folder: Path, content: bytes = TINY, **changes: Any) -> _native.EventLogPartition:
    folder.mkdir(exist_ok=True)
    (folder / SEGMENT).write_bytes(content)
    return _native.EventLogPartition(settings(folder, **changes))


def reader(
    partition: _native.EventLogPartition, folder: Path, *, skips_lost: bool = False, skips_corrupt: bool = False
) -> _native.EventLogReader:
    return _native.EventLogReader([partition], str(folder / "WAKE"), skips_lost, skips_corrupt)


def values(reading: _native.EventLogReader) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while (chunk := reading.read(100, 0)) is not None:
        found += [(chunk.begin + index, chunk.records[index]) for index in range(len(chunk))]
    return found


def flip_in_place(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def change_boot(head: Path) -> None:
    """Write the hash of another boot to a HEAD."""
    with head.open("r+b") as file:
        file.seek(8)
        file.write(b"another.")


def flip(*places: int) -> bytes:
    content = bytearray(TINY)
    for place in places:
        content[place] ^= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "end", "size", "epoch"),
    [
        pytest.param(TINY, 3, 252, 1, id="R1 whole"),
        pytest.param(TINY[:171], 1, 151, 2, id="R2 batch header torn"),
        pytest.param(TINY[:240], 1, 151, 2, id="R3 body torn"),
        pytest.param(flip(251), 1, 151, 2, id="R4 last body damaged"),
        pytest.param(flip(150), 3, 252, 1, id="R5 first body damaged"),
        pytest.param(flip(68), 3, 252, 1, id="R6 first length damaged"),
        pytest.param(TINY + bytes(4096), 3, 252, 2, id="R7 zeros appended"),
        pytest.param(TINY + bytes.fromhex("4d425431250000"), 3, 252, 2, id="R8 part of a header appended"),
        pytest.param(TINY[:40], 0, 64, 2, id="R9 segment header torn"),
        pytest.param(TINY[:64], 0, 64, 1, id="R11 cut after the segment header"),
        pytest.param(TINY + SECOND, 3, 252, 2, id="R12 second batch again"),
        pytest.param(flip(150, 251), 0, 64, 2, id="R14 both bodies damaged"),
    ],
)
def test_a_partition_recovers_from_a_crash(tmp_path: Path, content: bytes, end: int, size: int, epoch: int) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder, content)
    assert (partition.written_end, partition.durable_end, partition.epoch) == (end, end, epoch)
    assert (folder / SEGMENT).stat().st_size == size
    if epoch == 2:
        assert len(list(folder.glob("*.torn-*"))) == 1
        assert partition.counts().torn_tails == 1
    again = _native.EventLogPartition(settings(folder))
    assert (again.written_end, again.epoch, again.counts().recoveries) == (end, epoch, 0)


def test_a_damaged_segment_header_before_whole_batches_changes_nothing(tmp_path: Path) -> None:  # R10
    folder = tmp_path / "part"
    with pytest.raises(RecordCorrupt, match="monolith log repair"):
        open_tiny(folder, flip(60))
    assert (folder / SEGMENT).read_bytes() == flip(60)
    assert _native.EventLogPartition.repair(settings(folder)) == ["rebuilt the header of the last segment"]
    partition = _native.EventLogPartition(settings(folder))
    assert [value for _, value in values(reader(partition, folder))] == [b"hello", b"a", b"bc"]


@pytest.mark.parametrize(
    "index", [None, INDEX[:40] + (1).to_bytes(8, "little") + (150).to_bytes(8, "little") + INDEX[56:]]
)
def test_a_missing_or_wrong_index_is_rebuilt(tmp_path: Path, index: bytes | None) -> None:  # R13
    folder = tmp_path / "part"
    folder.mkdir()
    path = folder / SEGMENT.replace(".log", ".idx")
    if index is not None:
        path.write_bytes(index)
    open_tiny(folder)
    assert path.read_bytes() == INDEX[:40]  # the second batch lies within 64 KiB of the first entry
    assert (folder / SEGMENT).read_bytes() == TINY


def test_an_index_that_fits_stays(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    folder.mkdir()
    path = folder / SEGMENT.replace(".log", ".idx")
    path.write_bytes(INDEX)
    open_tiny(folder)
    assert path.read_bytes() == INDEX


@pytest.mark.parametrize("place", [150, 68])  # R5, R6
def test_a_reader_raises_at_damage_or_skips_it(tmp_path: Path, place: int) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder, flip(place))
    assert json.loads((folder / SEGMENT.replace(".log", ".bad")).read_text()) == [
        {"begin": 0, "end": 1, "first_byte": 64, "end_byte": 151}
    ]
    reading = reader(partition, folder)
    for _ in range(2):
        with pytest.raises(RecordCorrupt, match=r"log tiny\[0\]: offsets 0 to 0 at byte 64 .* on_corrupt='skip'"):
            reading.read(10, 0)
    skipping = reader(partition, folder, skips_corrupt=True)
    assert values(skipping) == [(1, b"a"), (2, b"bc")]
    assert (skipping.corrupt_batches(0), skipping.corrupt_records(0)) == (1, 1)


@pytest.mark.parametrize("place", [4, 80])  # of the batch of offset 1: header, body
def test_damage_before_the_wanted_offset_hides_no_record(tmp_path: Path, place: int) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder, HEADER)
    for value in (b"a", b"b", b"c", b"d"):
        partition.append([value], [b""], [T0])  # 81 bytes; the index names the first of them only
    flip_in_place(folder / SEGMENT, 64 + 81 + place)
    reading = reader(partition, folder)
    for offset, expected in ((2, [(2, b"c"), (3, b"d")]), (3, [(3, b"d")])):
        reading.seek(0, offset)
        assert values(reading) == expected
    assert (reading.corrupt_batches(0), reading.corrupt_records(0)) == (0, 0)
    with pytest.raises(DataError, match="offset 2 has epoch 1, expected 5"):  # checked behind the damage too
        reading.seek(0, 3, 5)
    reading.seek(0, 1)
    with pytest.raises(RecordCorrupt, match="offsets 1 to 1 at byte 145"):
        reading.read(10, 0)


def test_damage_that_begins_before_the_wanted_offset_counts_from_there_on(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder, HEADER)
    for value in (b"a", b"b", b"c", b"d"):
        partition.append([value], [b""], [T0])
    for batch in (1, 2):
        flip_in_place(folder / SEGMENT, 64 + 81 * batch + 4)
    reading = reader(partition, folder, skips_corrupt=True)
    reading.seek(0, 2)
    assert values(reading) == [(3, b"d")]
    assert (reading.corrupt_batches(0), reading.corrupt_records(0)) == (1, 1)


def test_a_reader_seeks_by_offset(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    reading = reader(open_tiny(folder), folder)
    reading.seek(0, 0)
    assert [offset for offset, _ in values(reading)] == [0, 1, 2]  # S1
    reading.seek(0, 2)
    assert values(reading) == [(2, b"bc")]  # S2
    reading.seek(0, 3)
    assert reading.read(10, 0) is None  # S3
    with pytest.raises(DataError, match="offset 4 is above the end 3"):  # S4
        reading.seek(0, 4)


@pytest.mark.parametrize(
    ("time_ms", "offset"),
    [(T0, 0), (T0 + 1, 1), (T0 + 600, 1), (T0 + 1001, 3), (0, 0)],  # S5 to S9
)
def test_a_reader_seeks_by_time(tmp_path: Path, time_ms: int, offset: int) -> None:
    folder = tmp_path / "part"
    assert reader(open_tiny(folder), folder).find_time(0, time_ms) == offset


def test_a_reader_keeps_keys_and_times(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    chunk = reader(open_tiny(folder), folder).read(10, 0)
    assert chunk is not None
    assert chunk.keys == [b"k1", b"k2", b""]
    assert chunk.times_ms.tolist() == [T0, T0 + 1000, T0 + 500]
    assert chunk.append_ms.tolist() == [T0 + 10, T0 + 1020, T0 + 1020]
    assert (chunk.begin, chunk.end, chunk.epoch, chunk.partition) == (0, 3, 1, 0)
    assert chunk.records.source == "log tiny[0]"


def test_a_position_in_a_cut_tail_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder, flip(251))  # R4
    reading = reader(partition, folder)
    with pytest.raises(DataError, match="above the end 1"):  # S10
        reading.seek(0, 3, 1)
    partition.append([b"x", b"y"], [b"", b""], [T0, T0])
    assert partition.written_end == 3
    with pytest.raises(DataError, match="has epoch 2, expected 1"):  # S11
        reading.seek(0, 3, 1)
    reading.seek(0, 3, 2)


@pytest.mark.parametrize("lose", [change_boot, Path.unlink])
def test_a_position_in_whole_batches_that_a_power_loss_took_is_refused(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    folder = tmp_path / "part"
    reading = reader(open_tiny(folder), folder)
    assert len(values(reading)) == 3
    os.truncate(folder / SEGMENT, 151)  # the second batch was not on the disk, and left no torn bytes
    lose(folder / "HEAD")
    partition = _native.EventLogPartition(settings(folder))
    assert (partition.written_end, partition.counts().torn_tails) == (1, 0)
    assert partition.append([b"x", b"y"], [b"", b""], [T0, T0]) == 1
    with pytest.raises(DataError, match="offset 2 has epoch 2, expected 1"):
        reader(partition, folder).seek(0, reading.next(0), reading.epoch(0))


@pytest.mark.parametrize("lose", [change_boot, Path.unlink])
def test_readers_continue_after_a_boot_that_took_nothing(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    folder = tmp_path / "part"
    follower = reader(open_tiny(folder), folder)
    assert len(values(follower)) == 3
    position = (follower.next(0), follower.epoch(0))
    for boot in range(2, 4):
        lose(folder / "HEAD")
        partition = _native.EventLogPartition(settings(folder))
        assert partition.epoch == boot
        resumed = reader(partition, folder)
        resumed.seek(0, *position)
        offset = partition.append([b"x"], [b""], [T0])
        assert values(resumed) == [(offset, b"x")]
        position = (resumed.next(0), resumed.epoch(0))
        assert position == (offset + 1, boot)
        chunk = follower.read(10, 30_000)
        assert chunk is not None
        assert (chunk.begin, chunk.end) == (offset, offset + 1)


def test_a_reader_behind_retention_raises_or_continues_at_the_first_offset(tmp_path: Path) -> None:  # S12
    folder = tmp_path / "part"
    partition = open_tiny(folder, TINY[:151])
    partition.roll()
    partition.append([b"a", b"bc"], [b"", b""], [T0, T0])
    assert partition.trim(1) == 1
    assert partition.first == 1
    late = reader(partition, folder)
    late.seek(0, 0)
    with pytest.raises(DataError, match="offset 0 is removed, the first offset is 1"):
        late.read(10, 0)
    skipping = reader(partition, folder, skips_lost=True)
    skipping.seek(0, 0)
    assert values(skipping) == [(1, b"a"), (2, b"bc")]
    assert skipping.lost(0) == 1


def test_a_reader_inside_a_removed_segment_reads_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder)
    reading = reader(partition, folder)
    first = reading.read(1, 0)
    assert first is not None
    partition.roll()
    partition.append([b"next"], [b""], [T0])
    assert partition.trim(3) == 1
    assert not (folder / SEGMENT).exists()
    assert values(reading) == [(1, b"a"), (2, b"bc"), (3, b"next")]


def test_a_removed_head_is_rebuilt_while_writers_and_readers_run(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    partition, other = open_tiny(folder), _native.EventLogPartition(settings(folder))
    (folder / "HEAD").unlink()
    assert partition.append([b"d"], [b""], [T0]) == 3
    assert other.append([b"e"], [b""], [T0]) == 4
    assert [offset for offset, _ in values(reader(other, folder))] == [0, 1, 2, 3, 4]


def test_a_waiting_reader_finds_a_head_that_was_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder)
    waiting = reader(partition, folder)
    assert len(values(waiting)) == 3
    (folder / "HEAD").unlink()
    assert _native.EventLogPartition(settings(folder)).append([b"d"], [b""], [T0]) == 3
    chunk = waiting.read(10, 30_000)  # maps the new HEAD after a wait
    assert chunk is not None
    assert (chunk.begin, chunk.records[0]) == (3, b"d")


def test_an_older_owner_of_a_producer_is_fenced(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    old, new = open_tiny(folder), _native.EventLogPartition(settings(folder))
    assert old.last_sequence(7) == 1
    owner = old.take_producer(7)
    assert old.append([b"x"], [b""], [T0], 7, owner, 2) == 3
    assert new.take_producer(7) == owner + 1
    with pytest.raises(ClusterError, match="another process has taken over"):
        old.append([b"y"], [b""], [T0], 7, owner, 3)
    assert new.append([b"y"], [b""], [T0], 7, owner + 1, 3) == 4
    assert new.last_sequence(7) == 3
    assert old.append([b"z"], [b""], [T0]) == 5  # no producer: not fenced


def test_the_last_sequence_survives_rolls_and_retention(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder)
    owner = partition.take_producer(9)
    for sequence in range(1, 6):
        partition.append([b"v"], [b""], [T0], 9, owner, sequence)
        partition.roll()
    partition.trim(partition.written_end)
    assert partition.last_sequence(9) == 5
    assert partition.last_sequence(7) == 1
    assert partition.last_sequence(8) == 0


def test_owners_that_cannot_be_read_double_no_batch(tmp_path: Path) -> None:
    partition = _native.EventLogPartition(settings(tmp_path, segment_bytes=300))
    owners = tmp_path / "OWNERS"
    writer = _native.EventLogWriter([partition], str(tmp_path / "WAKE"), 60_000, 60_000, 1 << 20, 10, 1 << 20)
    owners.write_text("damaged")
    writer.write(bytes(400), b"", T0)
    for _ in range(3):
        with pytest.raises(RecordCorrupt, match="OWNERS' is not a list of owners; restore it, or delete it"):
            writer.flush()
    owners.unlink()
    writer.flush()
    assert (partition.written_end, partition.segments()) == (1, [0, 1])
    writer.stop()


def test_the_last_sequence_is_found_behind_damage(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder)
    owner = partition.take_producer(9)
    partition.append([b"v"], [b""], [T0], 9, owner, 5)
    flip_in_place(folder / SEGMENT, 68)  # the length of the first batch
    assert (partition.last_sequence(7), partition.last_sequence(9)) == (1, 5)
    partition.roll()
    partition.trim(partition.written_end)
    assert (partition.last_sequence(7), partition.last_sequence(9)) == (1, 5)


def test_segments_roll_by_size_and_retention_removes_the_oldest(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder, TINY[:64], segment_bytes=4096, retain_bytes=3 * 4096)
    for _ in range(40):
        partition.append([bytes(1000)], [b""], [T0])
    kept = partition.segments()
    assert kept[0] == partition.first > 0
    assert sum((folder / f"seg-{base:020d}.log").stat().st_size for base in kept) <= 4 * 4096
    reading = reader(partition, folder, skips_lost=True)
    assert [offset for offset, _ in values(reading)] == list(range(partition.first, 40))


def test_old_segments_are_removed_by_their_last_append(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder, retain_ms=1000)
    partition.roll()  # the old segment was written in 2023
    assert partition.segments() == [3]
    partition.append([b"new"], [b""], [T0])
    assert partition.retain(partition.append_ms + 10_000) == 0  # never the active segment


def test_a_clock_that_was_ahead_keeps_no_old_segment(tmp_path: Path) -> None:
    header = bytearray(SECOND[:60])
    struct.pack_into("<q", header, 32, T0 * 2)  # the append time
    ahead = bytes(header) + struct.pack("<I", _native.crc32c(bytes(header))) + SECOND[64:]
    partition = open_tiny(tmp_path / "part", HEADER + FIRST + ahead, retain_ms=60_000)
    partition.roll()
    partition.append([b"new"], [b""], [T0])
    assert partition.append_ms == T0 * 2
    now_ms = time.time_ns() // 1_000_000
    assert partition.retain(now_ms) == 0
    assert partition.retain(now_ms + 70_000) == 1
    assert partition.segments() == [3]


@pytest.mark.parametrize(
    ("value", "key", "time_ms", "text"),
    [
        (bytes((16 << 20) + 1), b"", T0, "record has 16777217 bytes"),
        (b"", bytes(65536), T0, "key has 65536 bytes"),
        (b"", b"", -1, "time_ms is -1"),
        (b"", b"", (1 << 53) + 1, "time_ms is"),
    ],
)
def test_a_record_beyond_the_limits_is_refused(
    tmp_path: Path, value: bytes, key: bytes, time_ms: int, text: str
) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder)
    with pytest.raises(ConfigError, match=text):
        partition.append([value], [key], [time_ms])
    assert (folder / SEGMENT).read_bytes() == TINY


def test_verify_finds_damage_in_any_segment(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder)
    partition.roll()
    partition.append([b"x"], [b""], [T0])
    assert [(s.base, s.end, s.bad, s.is_torn, s.has_header) for s in partition.verify()] == [
        (0, 3, [], False, True),
        (3, 4, [], False, True),
    ]
    (folder / SEGMENT).write_bytes(flip(150))
    assert partition.verify()[0].bad == [(0, 1, 64, 151)]


def test_verify_passes_over_a_segment_that_is_removed_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder)
    partition.roll()
    partition.append([b"x"], [b""], [T0])
    (folder / SEGMENT).unlink()
    (folder / SEGMENT).symlink_to("gone")  # listed, and cannot be opened
    assert [(s.base, s.end) for s in partition.verify()] == [(3, 4)]


def test_offsets_and_append_times_never_fall(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    partition = open_tiny(folder)
    future = partition.append_ms
    bases = [partition.append([b"v"] * count, [b""] * count, [T0] * count) for count in (1, 3, 2)]
    assert bases == [3, 4, 7]
    assert partition.append_ms >= future
    chunk = reader(partition, folder).read(100, 0)
    assert chunk is not None
    assert sorted(chunk.append_ms.tolist()) == chunk.append_ms.tolist()


def test_the_sources_of_partitions_agree_with_the_contract() -> None:
    check: Callable[[bytes, int], int] = _native.event_log_partition
    assert [check(b"k", n) for n in (2, 4, 8)] == [1, 3, 3]
    assert [check(b"req-1", n) for n in (2, 4, 8)] == [0, 0, 4]

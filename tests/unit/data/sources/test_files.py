from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from monolith.core.errors import ConfigError, DataError, RecordCorrupt, SchemaMismatch
from monolith.data.records._channel import ThreadChannel
from monolith.data.records.framing import Framing
from monolith.data.records.writer import RecordWriter
from monolith.data.sources.files import FileSource
from monolith.data.sources.work_list import FilesReassigned, FolderWorkList, MemoryWorkList

INSTANCE = bytes.fromhex(
    "0a10 0100000000000000 0200000000000000 1a08 00000000 0000803f 2a03 320101 4a0d 0a0161 1208 0300000000000000"
)
EXAMPLE_BATCH = bytes.fromhex(
    "0a13 0a0161 120c120a0a08 6400000000000100 2001 0a15 0a095f5f4c4142454c5f5f 1208 1a060a04 0000803f 1801"
)


def write(path: Path, payload: bytes = INSTANCE, count: int = 20, framing: Framing | None = None) -> str:
    with RecordWriter(path, framing=framing) as writer:
        for _ in range(count):
            writer.write(payload)
    return str(path)


def count(source: FileSource) -> int:
    total = 0
    while (lot := source.read()) is not None:
        total += len(lot)
    return total


@pytest.mark.parametrize("read_ahead", [0, 4])
@pytest.mark.parametrize(
    ("written", "asked"),
    [
        (Framing(lagrangex_header=True), Framing(kafka_dump=True)),
        (Framing(kafka_dump=True), Framing()),
        (Framing(), Framing(sort_id=False)),
        (Framing(sort_id=False), Framing()),
        (Framing(), Framing.tfrecord()),
        (Framing.tfrecord(), Framing()),
        (Framing(kafka_dump_prefix=True, kafka_dump=True), Framing(kafka_dump=True)),
    ],
    ids=repr,
)
def test_wrong_flags_are_an_error_that_names_the_right_ones(
    written: Framing, asked: Framing, read_ahead: int, tmp_path: Path
) -> None:
    path = write(tmp_path / "records", EXAMPLE_BATCH, framing=written)
    source = FileSource(path, record="example_batch", framing=asked, read_ahead=read_ahead)
    with pytest.raises(RecordCorrupt, match=r"records.*; the file reads well with (Framing.*)$") as raised:
        count(source)
    right = eval(str(raised.value).rpartition(" with ")[2], {"Framing": Framing})
    source.close()
    fixed = FileSource(path, record="example_batch", framing=right, read_ahead=read_ahead)
    assert count(fixed) == 20
    fixed.close()


def test_wrong_flags_that_read_the_same_records_are_accepted(tmp_path: Path) -> None:
    path = write(tmp_path / "records")
    source = FileSource(path, record="instance", framing=Framing(lagrangex_header=True))
    assert count(source) == 20
    source.close()


def test_another_message_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = write(tmp_path / "records", EXAMPLE_BATCH)
    source = FileSource(path, record="instance")
    with pytest.raises(SchemaMismatch, match="not instance but example_batch; give record='example_batch'"):
        source.read()
    source.close()


def test_text_and_other_compressions_are_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("fid: 1\n" * 10)
    source = FileSource(tmp_path / "text", record="instance")
    with pytest.raises(RecordCorrupt, match="the file is pbtxt and contains no framed records"):
        source.read()
    source.close()
    path = write(tmp_path / "records.gz")
    source = FileSource(path, record="instance", compression="none")
    with pytest.raises(RecordCorrupt, match="compressed with gzip; give compression='gzip' or 'auto'"):
        source.read()
    source.close()


@pytest.mark.parametrize("read_ahead", [0, 2])
def test_damage_is_raised_after_the_good_records_and_again(read_ahead: int, tmp_path: Path) -> None:
    path = tmp_path / "records.gz"
    write(path, INSTANCE, 1000)
    path.write_bytes(path.read_bytes()[:-4])
    source = FileSource(path, record="instance", read_ahead=read_ahead)
    lot = source.read()
    assert lot is not None
    assert len(lot) == 1000
    for _ in range(2):
        with pytest.raises(RecordCorrupt, match="compressed byte"):
            source.read()
    source.close()


def test_a_file_that_changed_or_is_gone_cannot_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monolith.data.records.reader.CHUNK_RECORDS", 5)
    path = Path(write(tmp_path / "records"))
    source = FileSource(path, record="instance")
    source.read()
    position = source.position()
    source.close()
    content = path.read_bytes()
    for changed in (content[:-1], content + b"x", content[:100]):
        path.write_bytes(changed)
        with pytest.raises(DataError, match=r"bytes, expected|cannot resume at byte"):
            FileSource(path, record="instance").resume(position)
    path.write_bytes(content)
    moved = FileSource(path, record="instance")
    path.unlink()
    with pytest.raises(DataError, match="cannot be opened"):
        moved.resume(position)


def test_files_may_be_added_at_the_end_but_not_before(tmp_path: Path) -> None:
    for name in "bcd":
        write(tmp_path / name)
    source = FileSource(str(tmp_path / "*"), record="instance")
    source.read()
    position = source.position()
    source.close()
    write(tmp_path / "e")
    again = FileSource(str(tmp_path / "*"), record="instance")
    again.resume(position)
    assert count(again) == 60
    again.close()
    write(tmp_path / "a")
    with pytest.raises(DataError, match="the first 1 files"):
        FileSource(str(tmp_path / "*"), record="instance").resume(position)


@pytest.mark.parametrize("position", [{}, {"open": 3}, {"open": [{}], "turn": 0, "next": 0, "names": 0}, {"open": []}])
def test_an_invalid_position_is_refused(position: dict[str, object], tmp_path: Path) -> None:
    source = FileSource(write(tmp_path / "records"), record="instance")
    with pytest.raises(DataError, match="not the position of a file source"):
        source.resume(position)
    source.close()


def test_resuming_after_a_read_is_refused(tmp_path: Path) -> None:
    source = FileSource(write(tmp_path / "records"), record="instance")
    source.read()
    with pytest.raises(ConfigError, match="before the first read"):
        source.resume(source.position())
    source.close()


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "records")
    shared = MemoryWorkList([path])
    for options, reason in [
        ({"record": "csv"}, "record is 'csv'"),
        ({"interleave": 0}, "interleave is 0"),
        ({"repeat": 0}, "repeat is 0"),
        ({"read_ahead": -1}, "read_ahead is -1"),
        ({"compression": "lz4"}, "compression is 'lz4'"),
        ({"shard": (2, 2)}, "shard is"),
        ({"work_list": shared}, "files or a work_list"),
        ({"files": None}, "files or a work_list"),
        ({"files": None, "work_list": shared}, "worker is not set"),
        ({"files": None, "work_list": shared, "worker": "a", "repeat": 2}, "shard or repeat"),
        ({"worker": "a"}, "worker is .a."),
    ]:
        with pytest.raises(ConfigError, match=reason):
            FileSource(**{"files": path, "record": "instance", **options})  # type: ignore[arg-type]


def test_files_without_a_record_do_not_go_round_for_ever(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    source = FileSource(str(tmp_path / "*"), record="instance", repeat=None, interleave=2)
    with pytest.raises(DataError, match="none of the 2 files has a record"):
        source.read()
    source.close()


def test_repeat_none_never_ends(tmp_path: Path) -> None:
    source = FileSource(write(tmp_path / "records"), record="instance", repeat=None)
    assert sum(len(source.read() or []) for _ in range(50)) == 1000
    source.close()


def test_two_sources_share_a_work_list_and_a_file_is_done_when_more_is_asked_for(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"part-{number}") for number in range(4)]
    shared = FolderWorkList(tmp_path / "list", paths)
    first = FileSource(record="instance", work_list=shared, worker="first", read_ahead=0)
    second = FileSource(record="instance", work_list=shared, worker="second", read_ahead=0)
    assert first.read() is not None
    assert second.read() is not None
    assert shared.state()["claimed"] == {paths[0]: "first", paths[1]: "second"}
    assert shared.state()["done"] == []
    assert count(first) == 40
    assert shared.state()["done"] == [paths[0], paths[2], paths[3]]
    assert count(second) == 0
    assert shared.state()["done"] == [paths[0], paths[2], paths[3], paths[1]]


def test_a_file_that_another_has_taken_over_is_not_resumed(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"part-{number}") for number in range(3)]
    shared = MemoryWorkList(paths)
    source = FileSource(record="instance", work_list=shared, worker="slow", interleave=2, read_ahead=0)
    source.read()
    position = source.position()
    source.close()
    shared.requeue("slow")
    assert shared.claim("other") == paths[0]
    again = FileSource(record="instance", work_list=shared, worker="slow", interleave=2, read_ahead=0)
    with pytest.raises(FilesReassigned):
        again.resume(position)
    fresh = FileSource(record="instance", work_list=shared, worker="slow", interleave=2, read_ahead=0)
    assert count(fresh) == 40
    fresh.close()


def test_a_source_that_is_dropped_takes_its_thread_with_it(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "records", framing=Framing()) as writer:
        for _ in range(24):
            writer.write(b"\x12\x80\x80\x40" + bytes(1 << 20))  # an Instance with many values
    source = FileSource(tmp_path / "records", record="instance", read_ahead=1)
    others = set(threading.enumerate())
    source.read()
    (thread,) = [each for each in set(threading.enumerate()) - others if each.name == "monolith-read-ahead"]
    del source
    gc.collect()
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_a_read_that_waits_ends_when_the_channel_is_closed() -> None:
    channel: ThreadChannel[int] = ThreadChannel(1)
    assert channel.put(1)
    waiting = threading.Thread(target=channel.put, args=(2,))
    waiting.start()
    channel.close()
    waiting.join(timeout=60)
    assert not waiting.is_alive()
    assert channel.get() is None
    assert not channel.put(3)

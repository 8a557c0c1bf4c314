"""One suite for all sources of records.

To add a source, add a ``Case`` to ``CASES``: how to prepare its input once, and how to make a fresh, equal source of
it. Lots are made small, so that a position lies after (nearly) every record.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from monolith.data.records.framing import Framing
from monolith.data.records.messages import ExampleBatch, LineId
from monolith.data.records.writer import RecordWriter
from monolith.data.sources.arrow_files import ArrowFormat
from monolith.data.sources.base import Position, RecordKind, Source
from monolith.data.sources.csv_files import CsvFormat
from monolith.data.sources.event_log.source import EventLogSource
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.data.sources.files import FileSource
from monolith.data.sources.frame import FrameSource
from monolith.data.sources.json_files import JsonLinesFormat
from monolith.data.sources.parquet import ParquetSource
from monolith.data.sources.queue import QueueSource
from monolith.data.sources.stdin import StdinSource
from monolith.data.sources.table_files import TableFilesSource
from monolith.data.sources.work_list import MemoryWorkList

LINE_ID = b"\x2a\x09\x11"  # line_id { uid: ... } of an Instance


def record(number: int) -> bytes:
    return LINE_ID + number.to_bytes(8, "little")


@dataclass(frozen=True)
class Case:
    name: str
    prepare: Callable[[Path], Callable[[], Source]]
    """Write the input under a folder, and return the factory of its source."""
    expected: list[Any]
    """Its records, in order, as ``show`` shows them."""
    lot_records: int = 1
    """How large lots are, for sources whose lots the suite can set."""
    record: RecordKind = "instance"
    show: Callable[[bytes], Any] = bytes


def write_files(folder: Path, files: int, rows: int, suffix: str = "", framing: Framing | None = None) -> list[str]:
    """Files of ``rows`` records each, numbered on and on."""
    paths = []
    for index in range(files):
        path = folder / f"part-{index}{suffix}"
        with RecordWriter(path, framing=framing) as writer:
            for row in range(rows):
                writer.write(record(index * rows + row))
        paths.append(str(path))
    return paths


def files(suffix: str = "", framing: Framing | None = None, **options: Any) -> Callable[[Path], Callable[[], Source]]:
    def prepare(folder: Path) -> Callable[[], Source]:
        write_files(folder, 3, 5, suffix, framing)
        return lambda: FileSource(str(folder / "part-*"), record="instance", framing=framing, **options)

    return prepare


class Checkpointed(FileSource):
    """A source with a work list, and both kept together, as a checkpoint does."""

    def __init__(self, shared: MemoryWorkList) -> None:
        self.shared = shared
        super().__init__(record="instance", work_list=shared, worker="one")

    def position(self) -> Position:
        return {"source": super().position(), "list": self.shared.state()}

    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        self.shared.restore(position["list"])
        super().resume(position["source"])


def shared_files(folder: Path) -> Callable[[], Source]:
    paths = write_files(folder, 3, 5)
    return lambda: Checkpointed(MemoryWorkList(paths))


def stream(codec_suffix: str) -> Callable[[Path], Callable[[], Source]]:
    def prepare(folder: Path) -> Callable[[], Source]:
        (path,) = write_files(folder, 1, 15, codec_suffix)
        content = Path(path).read_bytes()
        return lambda: StdinSource(io.BytesIO(content), record="instance")

    return prepare


def with_an_empty_file(folder: Path) -> Callable[[], Source]:
    paths = write_files(folder, 2, 3)
    (folder / "empty").touch()
    order = [str(folder / "empty"), paths[0], paths[1]]
    return lambda: FileSource(order, record="instance", interleave=2)


TABLE = {"__UID__": list(range(15)), "price": [number / 2 for number in range(15)]}


def frame(**options: Any) -> Callable[[Path], Callable[[], Source]]:
    return lambda folder: lambda: FrameSource(TABLE, batch_rows=2, **options)


def parquet(folder: Path) -> Callable[[], Source]:
    path = folder / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table(TABLE), path, row_group_size=4)
    return lambda: ParquetSource([str(path)], batch_rows=2)


def text_file(suffix: str) -> Callable[[Path], Callable[[], Source]]:
    """A CSV file, JSON lines or Arrow file of the same table, read in small blocks."""

    def prepare(folder: Path) -> Callable[[], Source]:
        path = str(folder / f"rows{suffix}")
        table = pyarrow.table(TABLE)
        if suffix.startswith(".csv"):
            with pyarrow.output_stream(path) as stream:
                pyarrow.csv.write_csv(table, stream)
            return lambda: TableFilesSource([path], CsvFormat(lambda: path), batch_rows=2)
        if suffix.startswith(".jsonl"):
            lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
            with pyarrow.output_stream(path) as stream:
                stream.write(lines.encode())
            return lambda: TableFilesSource([path], JsonLinesFormat(lambda: path), batch_rows=2)
        pyarrow.feather.write_feather(table, path, chunksize=4)
        return lambda: TableFilesSource([path], ArrowFormat(), batch_rows=2)

    return prepare


def queue(_: Path) -> Callable[[], Source]:
    def make() -> Source:
        source = QueueSource("instance")
        source.put([record(number) for number in range(15)])
        source.end()
        return source

    return make


def event_log(count: int = 1, **options: Any) -> Callable[[Path], Callable[[], Source]]:
    """A log whose partitions hold the records in order: the first five, the next five, the last five."""

    def prepare(folder: Path) -> Callable[[], Source]:
        topic = Topic.create(folder, "numbers", TopicSettings(partitions=count, segment_bytes=4096))
        with LogWriter(topic, batch_records=2) as writer:
            for number in range(15):
                writer.write(record(number), partition=number * count // 15)
        return lambda: EventLogSource(topic, "instance", poll_records=1, **options)

    return prepare


def uids(payload: bytes) -> list[int]:
    [lines] = [column for column in ExampleBatch.FromString(payload).named_feature_list if column.name == "__LINE_ID__"]
    return [LineId.FromString(feature.bytes_list.value[0]).uid for feature in lines.feature]


IN_PAIRS = [[number, number + 1] for number in range(0, 14, 2)] + [[14]]
IN_ORDER = [record(number) for number in range(15)]


def interleaved(lot: int, slots: int, rows: int = 5, count: int = 3) -> list[bytes]:
    """Round robin by lots, spelled out."""
    waiting = [list(range(index * rows, index * rows + rows)) for index in range(count)]
    turn = [waiting.pop(0) for _ in range(slots)]
    found: list[int] = []
    at = 0
    while turn:
        if turn[at]:
            found += turn[at][:lot]
            del turn[at][:lot]
            at = (at + 1) % len(turn)
        elif waiting:
            turn[at] = waiting.pop(0)
        else:
            del turn[at]
            at %= max(len(turn), 1)
    return [record(number) for number in found]


CASES = [
    Case("files", files(), IN_ORDER),
    Case("files, large lots", files(), IN_ORDER, lot_records=4096),
    Case("files without read-ahead", files(read_ahead=0), IN_ORDER),
    Case("files of snappy", files(".snappy"), IN_ORDER),
    Case("files of zstd", files(".zst"), IN_ORDER),
    Case("files of zlib", files(".zz", read_ahead=1), IN_ORDER, lot_records=2),
    Case("files of gzip", files(".gz"), IN_ORDER, lot_records=3),
    Case("files of TFRecords", files(".gz", Framing.tfrecord()), IN_ORDER),
    Case("files with a lagrangex header", files("", Framing(lagrangex_header=True)), IN_ORDER),
    Case("files interleaved", files(interleave=2), interleaved(1, 2)),
    Case("files interleaved by lots", files(".zst", interleave=3), interleaved(2, 3), lot_records=2),
    Case("files interleaved beyond their number", files(interleave=9, read_ahead=0), interleaved(2, 3), lot_records=2),
    Case("files repeated", files(repeat=2), IN_ORDER * 2),
    Case("a shard of files", files(shard=(1, 3)), IN_ORDER[5:10]),
    Case("files of a work list", shared_files, IN_ORDER),
    Case("files, the first one empty", with_an_empty_file, [record(number) for number in (3, 0, 4, 1, 5, 2)]),
    Case("a stream", stream(""), IN_ORDER),
    Case("a queue", queue, IN_ORDER),
    Case("an event log", event_log(until_end=True), IN_ORDER),
    Case("an event log that falls idle", event_log(idle_end_s=0.01), IN_ORDER),
    Case("an event log of three partitions", event_log(3, until_end=True), IN_ORDER),
    Case("a partition of an event log", event_log(3, until_end=True, partitions=[1]), IN_ORDER[5:10]),
    Case("a data frame", frame(), IN_PAIRS, record="example_batch", show=uids),
    Case("a Parquet file", parquet, IN_PAIRS, record="example_batch", show=uids),
    Case("a CSV file", text_file(".csv"), IN_PAIRS, record="example_batch", show=uids),
    Case("a CSV file of gzip", text_file(".csv.gz"), IN_PAIRS, record="example_batch", show=uids),
    Case("a file of JSON lines", text_file(".jsonl"), IN_PAIRS, record="example_batch", show=uids),
    Case("a file of JSON lines of zstd", text_file(".jsonl.zst"), IN_PAIRS, record="example_batch", show=uids),
    Case("an Arrow file", text_file(".arrow"), IN_PAIRS, record="example_batch", show=uids),
    Case("a stream of zstd", stream(".zst"), IN_ORDER, lot_records=2),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    made: Case = request.param
    for name in ("records.reader.CHUNK_RECORDS", "sources.stdin.CHUNK_RECORDS", "sources.queue.CHUNK_RECORDS"):
        monkeypatch.setattr(f"monolith.data.{name}", made.lot_records)
    return made


@pytest.fixture
def make(case: Case, tmp_path: Path) -> Callable[[], Source]:
    return case.prepare(tmp_path)


def payloads(source: Source, case: Case) -> list[Any]:
    found: list[Any] = []
    while (lot := source.read()) is not None:
        assert len(lot) > 0
        found += [case.show(lot[index]) for index in range(len(lot))]
    return found


def test_every_record_comes_once_in_order_and_then_the_end(case: Case, make: Callable[[], Source]) -> None:
    source = make()
    assert source.record == case.record
    assert payloads(source, case) == case.expected
    assert source.read() is None
    source.close()


def test_a_source_resumes_after_every_chunk_as_if_it_had_not_stopped(case: Case, make: Callable[[], Source]) -> None:
    source = make()
    stops = [(0, source.position())]
    given = 0
    while (lot := source.read()) is not None:
        given += len(lot)
        stops.append((given, source.position()))
    stops.append((given, source.position()))
    source.close()
    for count, position in stops:
        again = make()
        again.resume(json.loads(json.dumps(position)))
        assert payloads(again, case) == case.expected[count:]
        again.close()


def test_it_can_be_resumed_again_and_again(case: Case, make: Callable[[], Source]) -> None:
    found: list[Any] = []
    position = None
    while True:
        source = make()
        if position is not None:
            source.resume(position)
        lot = source.read()
        position = source.position()
        source.close()
        if lot is None:
            break
        found += [case.show(lot[index]) for index in range(len(lot))]
    assert found == case.expected


def test_commits_are_taken_note_of(make: Callable[[], Source]) -> None:
    source = make()
    source.read()
    source.committed(source.position())
    source.close()


def test_it_can_be_closed_at_any_time_and_twice(make: Callable[[], Source]) -> None:
    source = make()
    source.close()
    source.close()
    other = make()
    assert other.read() is not None
    other.close()
    other.close()
    assert other.read() is None


def test_closing_it_leaves_no_thread_behind(make: Callable[[], Source]) -> None:
    before = threading.active_count()
    source = make()
    source.read()
    source.close()
    assert threading.active_count() <= before

"""Topics, writers, sources and groups of the event log, in one process and in several."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from file_limit import file_limit
from monolith import _native
from monolith.core.errors import AppendRefused, ConfigError, DataError, RecordCorrupt
from monolith.data.records.framing import Framing
from monolith.data.sources.event_log.groups import commit_group, load_group
from monolith.data.sources.event_log.source import EventLogSource
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.data.sources.urls import open_source, sample_url
from monolith.telemetry.names import LOG_LAG_RECORDS, LOG_LOST_RECORDS_TOTAL, LOG_RECORDS_TOTAL

T0 = 1_700_000_000_000
PATIENCE_S = 60.0


def make(folder: Path, **settings: Any) -> Topic:
    return Topic.create(folder, "events", TopicSettings(**settings))


def fill(topic: Topic, count: int, **options: Any) -> None:
    with LogWriter(topic, **options) as writer:
        for number in range(count):
            writer.write(b"%d" % number, key=b"k%d" % number, time_ms=T0 + number)


def drain(source: EventLogSource) -> list[bytes]:
    records: list[bytes] = []
    while (chunk := source.read()) is not None:
        records += [chunk[index] for index in range(len(chunk))]
    source.close()
    return records


def read_all(topic: Topic, **options: Any) -> list[bytes]:
    return drain(EventLogSource(topic, "example", until_end=True, **options))


# --- topics ---


def test_a_topic_keeps_its_settings(tmp_path: Path) -> None:
    topic = make(tmp_path, partitions=3, durability="commit", retain_s=60.0)
    again = Topic.open(tmp_path, "events")
    assert again.settings == topic.settings
    assert again.id == topic.id
    assert Topic.create(tmp_path, "events").settings.partitions == 3
    with pytest.raises(ConfigError, match="partitions is 2, and topic 'events' has 3"):
        make(tmp_path, partitions=2)
    with pytest.raises(ConfigError, match="expected a new name"):
        Topic.create(tmp_path, "events", exist_ok=False)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 201])
def test_an_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="topic is"):
        Topic.create(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_or_damaged_topic_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"topic 'events' does not exist .* --create"):
        Topic.open(tmp_path, "events")
    topic = make(tmp_path)
    (topic.folder / "topic.json").write_text("{")
    with pytest.raises(DataError, match=r"topic\.json' is damaged"):
        Topic.open(tmp_path, "events")


def test_processes_that_create_a_topic_together_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = {topic.id for topic in pool.map(lambda _: make(tmp_path, partitions=2), range(16))}
    assert len(ids) == 1


@pytest.mark.parametrize(
    "settings", [{"partitions": 0}, {"partitions": 5000}, {"durability": "often"}, {"retain_s": -1}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(settings))} is"):
        TopicSettings(**settings)


# --- writing ---


@pytest.mark.parametrize("durability", ["commit", "interval", "never"])
def test_flushed_messages_are_visible_in_every_mode(tmp_path: Path, durability: Any) -> None:
    topic = make(tmp_path, durability=durability)
    with LogWriter(topic, linger_ms=60_000) as writer:
        writer.write(b"one")
        assert read_all(topic) == []
        writer.flush()
        assert read_all(topic) == [b"one"]
        assert (writer.partitions[0].durable_end == 1) or durability != "commit"


def test_a_message_is_visible_after_the_linger_without_a_flush(tmp_path: Path) -> None:
    topic = make(tmp_path, durability="commit")
    source = EventLogSource(topic, "example")
    with LogWriter(topic, linger_ms=1) as writer:
        writer.write(b"one")
        chunk = source.read()
        assert chunk is not None
        assert chunk[0] == b"one"
    source.close()


def test_the_interval_syncs_in_the_background(tmp_path: Path) -> None:
    topic = make(tmp_path, sync_interval_ms=5)
    with LogWriter(topic) as writer:
        writer.write(b"one")
        writer.flush()
        deadline_s = time.monotonic() + PATIENCE_S
        while writer.partitions[0].durable_end < 1 and time.monotonic() < deadline_s:
            time.sleep(0.005)
        assert writer.partitions[0].durable_end == 1


@pytest.mark.parametrize(("durability", "synced"), [("commit", 1), ("interval", 1), ("never", 0)])
def test_close_syncs_the_last_messages(tmp_path: Path, durability: Any, synced: int) -> None:
    topic = make(tmp_path, partitions=2, durability=durability, sync_interval_ms=60_000)
    with LogWriter(topic) as writer:
        for partition in range(2):
            writer.write(b"one", partition=partition)
    assert [partition.written_end for partition in topic.open_partitions()] == [1, 1]
    assert [partition.durable_end for partition in topic.open_partitions()] == [synced, synced]


def test_empty_messages_and_large_ones_are_kept(tmp_path: Path) -> None:
    topic = make(tmp_path)
    messages = [b"", bytes(3 << 20), b"x", bytes(16 << 20), b""]
    with LogWriter(topic) as writer:
        for message in messages:
            writer.write(message)
        with pytest.raises(ConfigError, match="record has 16777217 bytes, expected at most"):
            writer.write(bytes((16 << 20) + 1))
    assert read_all(topic) == messages


def test_keys_choose_partitions_and_messages_without_a_key_take_turns(tmp_path: Path) -> None:
    topic = make(tmp_path, partitions=4)
    with LogWriter(topic) as writer:
        for number in range(40):
            writer.write(b"keyed", key=b"k%d" % number)
        writer.flush()
        counts = [0] * 4
        for number in range(40):
            counts[_native.event_log_partition(b"k%d" % number, 4)] += 1
        assert [partition.written_end for partition in writer.partitions] == counts
        for _ in range(40):
            writer.write(b"any")
        writer.flush()
        assert [partition.written_end for partition in writer.partitions] == [count + 10 for count in counts]


def test_threads_share_a_writer(tmp_path: Path) -> None:
    topic = make(tmp_path, partitions=2, segment_bytes=8192)
    with LogWriter(topic, batch_records=10) as writer, ThreadPoolExecutor(8) as pool:

        def write(thread: int) -> None:
            for number in range(200):
                writer.write(b"%d %d" % (thread, number), key=b"%d" % thread)

        list(pool.map(write, range(8)))
    records = [tuple(map(int, record.split())) for record in read_all(topic)]
    assert sorted(records) == [(thread, number) for thread in range(8) for number in range(200)]
    for thread in range(8):
        assert [number for each, number in records if each == thread] == list(range(200))


def test_close_keeps_or_refuses_each_message_of_another_thread(tmp_path: Path) -> None:
    topic = make(tmp_path)
    writer = LogWriter(topic)

    def write(_: int) -> int:
        for count in itertools.count():
            try:
                writer.write(b"x")
            except ConfigError:
                return count
        raise AssertionError

    with ThreadPoolExecutor(2) as pool:
        counts = pool.map(write, range(2))
        time.sleep(0.02)
        writer.close()
        assert len(read_all(topic)) == sum(counts)


def test_a_writer_of_one_partition_opens_no_other(tmp_path: Path) -> None:
    topic = make(tmp_path, partitions=4)
    with LogWriter(topic, partition=2) as writer:
        assert len(writer.partitions) == 1
        writer.write(b"any", key=b"k0")
        writer.write(b"named", partition=2)
        writer.append(2, [b"batch"], producer=5, owner=writer.take_producer(2, 5), sequence=9)
        assert writer.last_sequence(2, 5) == 9
        with pytest.raises(ConfigError, match="partition is 0, expected 2, the only one of this writer"):
            writer.write(b"x", partition=0)
        with pytest.raises(ConfigError, match="partition is 1, expected 2"):
            writer.append(1, [b"x"])
    assert read_all(topic, partitions=[2]) == [b"any", b"named", b"batch"]


def test_a_batch_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    topic = make(tmp_path)
    with LogWriter(topic) as writer:
        assert writer.append(0, [b"a", b"b"], [b"", b"k"], [T0, T0]) == 0
        with pytest.raises(ConfigError, match="time_ms is -1"):
            writer.append(0, [b"c", b"d"], [b"", b""], [T0, -1])
        with pytest.raises(ConfigError, match="0 records"):
            writer.append(0, [])
        with pytest.raises(ConfigError, match="2 values, 1 keys"):
            writer.append(0, [b"c", b"d"], [b""], [T0, T0])
        with pytest.raises(ConfigError, match="partition is 5"):
            writer.append(5, [b"c"])
    assert read_all(topic) == [b"a", b"b"]


def test_a_full_disk_refuses_the_append_and_the_next_flush_repeats_it(tmp_path: Path) -> None:
    topic = make(tmp_path)
    with LogWriter(topic, linger_ms=60_000) as writer:
        writer.write(b"before")
        writer.flush()
        with file_limit(8192):
            for _ in range(3):
                writer.write(bytes(5000))
            for _ in range(2):
                with pytest.raises(AppendRefused, match="the log is unchanged, free space and flush again"):
                    writer.flush()
            assert writer.refused_appends == 2
            assert read_all(topic) == [b"before"]
        writer.flush()
        assert writer.waiting_bytes == 0
    assert read_all(topic) == [b"before", *[bytes(5000)] * 3]
    assert Topic.open(tmp_path, "events").open_partition(0).epoch == 1  # nothing was torn


@pytest.mark.parametrize("durability", ["commit", "interval"])
def test_a_partition_that_refuses_an_append_holds_up_no_other(tmp_path: Path, durability: Any) -> None:
    topic = make(tmp_path, partitions=2, durability=durability, sync_interval_ms=60_000)
    writer = LogWriter(topic, linger_ms=60_000)
    writer.write(bytes(5000), partition=0)
    writer.flush()
    with file_limit(8192):
        writer.write(bytes(5000), partition=0)
        for number in range(2):
            writer.write(b"%d" % number, partition=1)
            with pytest.raises(AppendRefused, match=r"log events\[0\]"):
                writer.flush()
            assert [partition.visible_end for partition in writer.partitions] == [1, number + 1]
        with pytest.raises(AppendRefused, match=r"log events\[0\]"):
            writer.close()
    assert [partition.durable_end for partition in topic.open_partitions()] == [1, 2]


def test_a_partition_that_has_failed_takes_no_message_and_no_room_of_others(tmp_path: Path) -> None:
    topic = make(tmp_path, partitions=2)
    head = topic.partition_folder(0) / "HEAD"
    with LogWriter(topic, buffer_bytes=20_000, batch_bytes=4000) as writer, head.open("r+b") as page:
        os.pwrite(page.fileno(), b"\1", 84)  # as after a failed fdatasync
        for _ in range(30):
            with pytest.raises(DataError, match=r"log events\[0\] has failed"):
                writer.write(bytes(1000), partition=0)
        assert writer.waiting_bytes == 0
        writer.write(b"other", partition=1)
        writer.flush()
        os.pwrite(page.fileno(), b"\0", 84)
    assert read_all(topic) == [b"other"]


def test_a_reader_beyond_the_durable_end_of_a_failed_partition_names_the_failure(tmp_path: Path) -> None:
    topic = make(tmp_path, sync_interval_ms=60_000)
    partition = topic.open_partition(0)
    partition.append([b"x"], [b""], [T0])  # written, and never synced
    reader = _native.EventLogReader([partition], topic.wake_path)
    assert reader.read(10, 0) is not None
    with (topic.partition_folder(0) / "HEAD").open("r+b") as head:
        os.pwrite(head.fileno(), b"\1", 84)  # as after a failed fdatasync
        with pytest.raises(DataError, match=r"has failed: .* run 'monolith log repair'"):
            reader.read(10, 0)
        with pytest.raises(DataError, match=r"has failed: .* run 'monolith log repair'"):
            reader.seek(0, 1, 1)
        os.pwrite(head.fileno(), b"\0", 84)
    assert reader.read(10, 0) is None
    reader.seek(0, 1, 1)


def test_a_writer_holds_a_bounded_buffer_while_the_disk_is_full(tmp_path: Path) -> None:
    topic = make(tmp_path)
    writer = LogWriter(topic, linger_ms=60_000, buffer_bytes=20_000, batch_bytes=4000)
    with file_limit(4096):
        for _ in range(7):
            writer.write(bytes(3000))
        with pytest.raises(AppendRefused):
            writer.write(bytes(3000))
        waiting = writer.waiting_bytes
        assert 20_000 <= waiting < 30_000
    writer.close()
    assert len(read_all(topic)) * 3016 == waiting


def test_a_writer_of_the_parent_is_refused_in_a_forked_child(tmp_path: Path) -> None:
    topic = make(tmp_path)
    partition = topic.open_partition(0)
    child = os.fork()
    if child == 0:
        try:
            partition.append([b"x"], [b""], [T0])
        except ConfigError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


# --- reading ---


def test_a_source_starts_where_it_is_asked_to(tmp_path: Path) -> None:
    topic = make(tmp_path, segment_bytes=4096)
    fill(topic, 500, batch_records=7)
    everything = [b"%d" % number for number in range(500)]
    assert read_all(topic) == everything
    assert read_all(topic, start="latest") == []
    assert read_all(topic, start=(T0 + 250) / 1000) == everything[250:]
    assert read_all(topic, start=(T0 + 5000) / 1000) == []
    commit_group(topic, "g", {0: {"offset": 490, "epoch": 1}})
    assert read_all(topic, group="g") == everything[490:]
    assert read_all(topic, group="new") == everything
    with pytest.raises(ConfigError, match="start is 'committed' and group is None"):
        EventLogSource(topic, "example", start="committed")


def test_a_group_commits_the_partitions_of_its_members(tmp_path: Path) -> None:
    topic = make(tmp_path, partitions=2)
    fill(topic, 100)
    for number in range(2):
        source = EventLogSource(topic, "example", group="g", partitions=[number], idle_end_s=0.0)
        drain(source)
        source.committed(json.loads(json.dumps(source.position())))
    committed = load_group(topic, "g")
    assert sum(position["offset"] for position in committed.values()) == 100
    assert read_all(topic, group="g") == []
    (topic.folder / "groups" / "g.json").write_text("[]")
    with pytest.raises(DataError, match="delete the file"):
        read_all(topic, group="g")


def test_a_partition_that_a_position_lacks_begins_where_its_group_has_committed(tmp_path: Path) -> None:
    topic = make(tmp_path, partitions=2)
    fill(topic, 100)
    source = EventLogSource(topic, "example", group="g", until_end=True)
    drain(source)
    source.committed(source.position())
    with LogWriter(topic) as writer:
        for partition in range(2):
            writer.write(b"new", partition=partition)
    one = EventLogSource(topic, "example", group="g", partitions=[0]).position()
    resumed = EventLogSource(topic, "example", group="g", until_end=True)
    resumed.resume(one)
    assert drain(resumed) == [b"new"] * 2
    (topic.folder / "groups" / "g.json").write_text("[]")
    whole = EventLogSource(topic, "example", group="g", until_end=True)
    whole.resume(source.position())
    assert drain(whole) == [b"new"] * 2


def test_until_end_stops_at_the_ends_of_the_first_read(tmp_path: Path) -> None:
    topic = make(tmp_path, partitions=2)
    fill(topic, 10)
    source = EventLogSource(topic, "example", until_end=True, poll_records=1)
    assert source.read() is not None
    fill(topic, 10)
    assert len(drain(source)) == 9


def test_a_position_of_another_log_is_refused(tmp_path: Path) -> None:
    position = EventLogSource(Topic.create(tmp_path, "one"), "example").position()
    with pytest.raises(DataError, match="start without the saved position"):
        EventLogSource(Topic.create(tmp_path, "two"), "example").resume(position)
    source = EventLogSource(Topic.create(tmp_path, "one"), "example", until_end=True)
    source.read()
    with pytest.raises(ConfigError, match="before its first read"):
        source.resume(position)


def test_a_reader_behind_retention_counts_the_lost_records(tmp_path: Path) -> None:
    topic = make(tmp_path, segment_bytes=4096, retain_bytes=8192)
    position = EventLogSource(topic, "example").position()
    with LogWriter(topic, batch_records=1) as writer:
        for number in range(100):
            writer.write(b"%d" % number + bytes(1000))
    first = topic.open_partition(0).first
    assert first > 0
    late = EventLogSource(topic, "example", until_end=True)
    late.resume(position)
    with pytest.raises(DataError, match=rf"offset 0 is removed, the first offset is {first}"):
        late.read()
    exported: dict[str, float] = {}

    def count(metric: Any, value: float, _: tuple[str, ...]) -> None:
        exported[metric.name] = exported.get(metric.name, 0) + value

    skipping = EventLogSource(topic, "example", until_end=True, on_lost="earliest", metrics=count)
    skipping.resume(position)
    assert len(drain(skipping)) == 100 - first
    assert exported[LOG_LOST_RECORDS_TOTAL.name] == first
    assert exported[LOG_RECORDS_TOTAL.name] == 100 - first


def test_an_infinite_idle_time_ends_no_source(tmp_path: Path) -> None:
    source = EventLogSource(make(tmp_path), "example", idle_end_s=float("inf"))
    closing = threading.Timer(0.3, source.close)
    closing.start()
    assert source.read() is None
    closing.join()


def test_a_source_reports_its_lag(tmp_path: Path) -> None:
    topic = make(tmp_path)
    fill(topic, 10)
    lags: list[float] = []
    source = EventLogSource(
        topic,
        "example",
        poll_records=4,
        idle_end_s=0.0,
        metrics=lambda metric, value, _: lags.append(value) if metric is LOG_LAG_RECORDS else None,
    )
    source.read()
    assert lags == [10]
    assert source.lag() == {0: 6}
    drain(source)
    assert source.lag() == {0: 0}


def test_framed_records_inside_messages_are_split(tmp_path: Path) -> None:
    topic = make(tmp_path)
    framing = Framing(sort_id=False)
    with LogWriter(topic) as writer:
        writer.write(_native.frame(framing.bits, b"a") + _native.frame(framing.bits, b"b"))
        writer.write(b"\xff" * 9)
        writer.write(_native.frame(framing.bits, b"c"))
    with pytest.raises(DataError, match=r"log events\[0\]: message at offset 1.*on_corrupt='skip'"):
        read_all(topic, framing=framing)
    assert read_all(topic, framing=framing, on_corrupt="skip") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("as_sample", [False, True])
def test_a_url_chooses_to_skip_a_damaged_batch(tmp_path: Path, as_sample: bool) -> None:
    topic = make(tmp_path)
    with LogWriter(topic) as writer:
        for value in (b"a", b"b", b"c"):
            writer.append(0, [value])
    (segment,) = Path(topic.folder).rglob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)

    def opened(options: str) -> EventLogSource:
        url = f"{topic.url}?until_end=true{options}"
        source = open_source(sample_url(url) if as_sample else url, "example")
        assert isinstance(source, EventLogSource)
        return source

    with pytest.raises(RecordCorrupt, match="on_corrupt"):
        drain(opened(""))
    assert drain(opened("&on_corrupt=skip")) == [b"a", b"c"]
    with pytest.raises(ConfigError, match="on_corrupt is 'ignore', expected 'raise' or 'skip'"):
        opened("&on_corrupt=ignore")


def test_a_waiting_reader_wakes_up_without_polling(tmp_path: Path) -> None:
    """A commit of another handle ends a wait of 30 s within a moment."""
    topic = make(tmp_path)
    reader = _native.EventLogReader(topic.open_partitions(), topic.wake_path)
    with ThreadPoolExecutor(1) as pool, LogWriter(topic, linger_ms=0) as writer:
        waiting = pool.submit(reader.read, 10, 30_000)
        time.sleep(0.05)
        begin_s = time.monotonic()
        writer.write(b"x")
        chunk = waiting.result(PATIENCE_S)
        assert chunk is not None
        assert time.monotonic() - begin_s < 0.9  # a missed wake-up would take the full second of a wait
    reader.interrupt()


def test_a_commit_that_ends_a_segment_wakes_up_readers(tmp_path: Path) -> None:
    """The end of a segment syncs it, so that the commit has no sync left to do."""
    topic = make(tmp_path, durability="commit", segment_bytes=4096)
    with LogWriter(topic) as writer:
        word = Path(topic.wake_path).read_bytes()  # readers wait for another one
        writer.write(bytes(5000))
        writer.flush()
        assert len(writer.partitions[0].segments()) == 2
        assert Path(topic.wake_path).read_bytes() != word


def test_a_reader_syncs_in_place_of_a_dead_writer(tmp_path: Path) -> None:
    topic = make(tmp_path, durability="commit")
    topic.open_partition(0).append([b"x"], [b""], [T0])  # written, and never synced
    assert read_all(topic) == []
    source = EventLogSource(topic, "example")
    begin_s = time.monotonic()
    chunk = source.read()
    assert chunk is not None
    assert time.monotonic() - begin_s > 0.9
    source.close()


# --- several processes ---


def append_numbers(folder: str, process: int, count: int) -> None:
    with LogWriter(Topic.open(folder, "events"), batch_records=3) as writer:
        for number in range(count):
            writer.write(b"%d %d" % (process, number), key=b"%d" % process)


def test_processes_append_and_a_reader_follows_them(tmp_path: Path) -> None:
    topic = make(tmp_path, partitions=2, segment_bytes=4096)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=append_numbers, args=(str(tmp_path), process, 300)) for process in range(3)]
    source = EventLogSource(topic, "example")
    watchdog = threading.Timer(PATIENCE_S, source.close)
    watchdog.start()
    for each in writers:
        each.start()
    records: list[tuple[int, ...]] = []
    offsets: dict[str, list[int]] = {}
    while len(records) < 900 and (chunk := source.read()) is not None:
        records += [tuple(map(int, chunk[index].split())) for index in range(len(chunk))]
        offsets.setdefault(chunk.source, []).extend(chunk.offsets.tolist())
    watchdog.cancel()
    source.close()
    for each in writers:
        each.join(PATIENCE_S)
    assert sorted(records) == [(process, number) for process in range(3) for number in range(300)]
    for process in range(3):
        assert [number for each, number in records if each == process] == list(range(300))
    for each in offsets.values():
        assert each == list(range(len(each)))

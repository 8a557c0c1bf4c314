"""Kafka over the wire: librdkafka's mock cluster in a second process, and a real one when KAFKA_BOOTSTRAP names it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import monolith as mt
from monolith.core.config_sections import build_section
from monolith.core.errors import ConfigError, DataError, RecordCorrupt, RetriesExhausted
from monolith.data.records.framing import Framing
from monolith.data.records.messages import Example, LineId
from monolith.data.sources.kafka.source import KafkaSource
from monolith.telemetry.names import KAFKA_ERRORS_TOTAL, KAFKA_LAG_RECORDS, KAFKA_RECORDS_TOTAL, MetricSpec
from monolith.training.config.job import DataConfig
from monolith.training.job_data import open_rows

SUPPORT = Path(__file__).parents[1] / "support"
REAL = os.environ.get("KAFKA_BOOTSTRAP")
FRAMED = Framing(sort_id=False)
PATIENCE_S = 60


def start_broker() -> tuple[subprocess.Popen[str], str]:
    child = subprocess.Popen(
        [sys.executable, str(SUPPORT / "kafka_broker.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


def tell(child: subprocess.Popen[str], command: str) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{command}\n")
    child.stdin.flush()
    assert child.stdout.readline() == "0\n", command


def stop(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Broker:
    """Where the tests produce to. Every test has topics of its own."""

    def __init__(self, servers: str, child: subprocess.Popen[str] | None) -> None:
        self.servers = servers
        self._child = child
        # A real broker allows no sessions as short as this; the mock waits for them to end where a real one need not.
        self.quick = {} if child is None else {"session.timeout.ms": 600, "heartbeat.interval.ms": 60}
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0})

    def topic(self, partitions: int = 1) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        if self._child is not None:
            tell(self._child, f"topic {name} {partitions}")
        else:
            admin = AdminClient({"bootstrap.servers": self.servers})
            [made] = admin.create_topics([NewTopic(name, partitions, 1)]).values()
            made.result(PATIENCE_S)
        return name

    def produce(
        self, topic: str, values: list[bytes | None], partition: int = 0, times_s: list[int] | None = None
    ) -> None:
        for index, value in enumerate(values):
            time_ms = {} if times_s is None else {"timestamp": times_s[index] * 1000}
            self._producer.produce(topic, value, partition=partition, **time_ms)
        assert self._producer.flush(PATIENCE_S) == 0

    def committed(self, topic: str, group: str, partition: int = 0) -> int:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group, "log_level": 0})
        try:
            [answer] = consumer.committed([TopicPartition(topic, partition)], timeout=PATIENCE_S)
            return int(answer.offset)
        finally:
            consumer.close()


@pytest.fixture(scope="module", params=["mock", *(["real"] if REAL else [])])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    if request.param == "real":
        assert REAL is not None
        yield Broker(REAL, None)
        return
    child, servers = start_broker()
    yield Broker(servers, child)
    stop(child)


@pytest.fixture
def opened(broker: Broker) -> Iterator[Callable[..., KafkaSource]]:
    """Makes sources that are closed after the test."""
    sources: list[KafkaSource] = []

    def open_source(topic: str, group: str = "", **options: Any) -> KafkaSource:
        options = {"start": "earliest", "max_wait_s": 0.05, "idle_end_s": 0.25, "config": broker.quick, **options}
        sources.append(KafkaSource(broker.servers, topic, group or uuid.uuid4().hex, "example", **options))
        return sources[-1]

    yield open_source
    for source in sources:
        source.close()


def drain(source: KafkaSource) -> list[bytes]:
    records = []
    while (lot := source.read()) is not None:
        records.extend(lot[index] for index in range(len(lot)))
    return records


def take(source: KafkaSource, count: int) -> list[bytes]:
    """That many records of a stream without end."""
    records: list[bytes] = []
    while len(records) < count:
        lot = source.read()
        assert lot is not None
        records.extend(lot[index] for index in range(len(lot)))
    return records


def numbered(count: int, first: int = 0) -> list[bytes | None]:
    return [b"%d" % number for number in range(first, first + count)]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"


# --- reading and places ---


def test_every_partition_is_read_in_order(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    topic = broker.topic(4)
    for partition in range(4):
        broker.produce(topic, numbered(50, partition * 50), partition)
    source = opened(topic, poll_records=16)
    got: dict[str, list[tuple[int, bytes]]] = {}
    while (lot := source.read()) is not None:
        got.setdefault(lot.source, []).extend((int(lot.offsets[index]), lot[index]) for index in range(len(lot)))
    assert got == {
        f"kafka {topic}[{partition}]": [(index, b"%d" % (partition * 50 + index)) for index in range(50)]
        for partition in range(4)
    }
    assert source.position()["offsets"] == {topic: {str(partition): 50 for partition in range(4)}}
    assert source.record == "example"


def test_it_resumes_at_every_place(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    topic = broker.topic(2)
    for partition in range(2):
        broker.produce(topic, numbered(9, partition * 9), partition)
    source = opened(topic, poll_records=4)
    seen: list[bytes] = []
    places: list[tuple[Any, list[bytes]]] = []
    while (lot := source.read()) is not None:
        seen.extend(lot[index] for index in range(len(lot)))
        places.append((json.loads(json.dumps(source.position())), list(seen)))
    everything = sorted(seen)
    assert everything == sorted(b"%d" % number for number in range(18))
    for position, before in places:
        again = opened(topic)
        again.resume(position)
        assert sorted(before + drain(again)) == everything
        again.close()


def test_who_was_away_for_too_long_joins_again_and_reads_to_the_end(
    broker: Broker, opened: Callable[..., KafkaSource], caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.topic(2)
    for partition in range(2):
        broker.produce(topic, numbered(9, partition * 9), partition)
    source = opened(topic, poll_records=4, config={**broker.quick, "max.poll.interval.ms": 6500 if REAL else 700})
    seen = take(source, 4)
    caplog.set_level("INFO", logger="monolith.data.sources.kafka")
    threading.Event().wait(8 if REAL else 1.2)  # longer than it may be away
    seen += drain(source)
    assert "partitions revoked" in caplog.text
    assert sorted(seen) == sorted(b"%d" % number for number in range(18))


def test_the_place_is_known_before_the_first_message(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    topic = broker.topic(1)
    broker.produce(topic, numbered(5))
    source = opened(topic, start="latest")
    assert drain(source) == []
    position = source.position()
    assert position["offsets"][topic]["0"] == 5
    broker.produce(topic, numbered(3, 5))
    again = opened(topic, start="latest")
    again.resume(position)
    assert drain(again) == [b"5", b"6", b"7"]


def test_a_source_starts_where_it_is_told(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    topic, group = broker.topic(1), uuid.uuid4().hex
    broker.produce(topic, numbered(10))
    first = opened(topic, group, start="committed", poll_records=4)
    first.read()
    first.committed(first.position())
    until(lambda: broker.committed(topic, group) == 4)
    first.read()
    first.close()
    for start, want in (("committed", numbered(6, 4)), ("earliest", numbered(10)), ("latest", [])):
        source = opened(topic, group, start=start)
        assert drain(source) == want
        source.close()


def test_nothing_is_committed_before_a_checkpoint(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    topic, group = broker.topic(1), uuid.uuid4().hex
    broker.produce(topic, numbered(10))
    source = opened(topic, group)
    drain(source)
    source.close()
    assert broker.committed(topic, group) < 0


def test_a_start_time_finds_the_first_message_at_or_after_it(
    broker: Broker, opened: Callable[..., KafkaSource]
) -> None:
    topic = broker.topic(1)
    times_s = [1_700_000_000 + offset for offset in (0, 10, 10, 10, 20, 35, 60)]
    broker.produce(topic, numbered(7), times_s=times_s)
    for start, first in ((0, 0), (1_700_000_000, 0), (1_700_000_010, 1), (1_700_000_011, 4), (1_700_000_060, 6)):
        assert drain(opened(topic, start=start)) == numbered(7 - first, first), start
    late = opened(topic, start=1_700_000_061.5)
    assert drain(late) == []
    assert late.position()["offsets"] == {topic: {"0": 7}}


def test_a_resumed_source_takes_unknown_partitions_from_the_group(
    broker: Broker, opened: Callable[..., KafkaSource]
) -> None:
    topic, group = broker.topic(2), uuid.uuid4().hex
    broker.produce(topic, numbered(6), 0)
    broker.produce(topic, numbered(6, 6), 1)
    first = opened(topic, group)
    drain(first)
    first.committed({"offsets": {topic: {"1": 4}}})
    until(lambda: broker.committed(topic, group, 1) == 4)
    first.close()
    again = opened(topic, group)
    again.resume({"offsets": {topic: {"0": 5}}})
    assert sorted(drain(again)) == [b"10", b"11", b"5"]


def test_a_place_that_is_gone_is_told(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    topic = broker.topic(1)
    broker.produce(topic, numbered(3))
    source = opened(topic)
    source.resume({"offsets": {topic: {"0": 100}}})
    with pytest.raises(DataError, match=rf"kafka {topic}\[0\]: offset 100 is gone, the broker has 0 to 3; start"):
        source.read()


def test_a_topic_that_does_not_exist_is_told(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    with pytest.raises(ConfigError, match="topic 'no-such-topic' does not exist"):
        opened("no-such-topic").read()


def test_resuming_is_refused_once_reading_has_begun(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    topic = broker.topic(1)
    broker.produce(topic, numbered(1))
    source = opened(topic)
    source.read()
    with pytest.raises(ConfigError, match="before its first read"):
        source.resume({"offsets": {}})


# --- messages ---


def framed(*payloads: bytes) -> bytes:
    return b"".join(len(payload).to_bytes(8, "little") + payload for payload in payloads)


def test_a_message_may_hold_many_records(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    topic = broker.topic(1)
    broker.produce(topic, [framed(b"a", b"b"), framed(), None, framed(b"c", b"", b"d")])
    source = opened(topic, framing=FRAMED)
    lot = source.read()
    assert lot is not None
    assert [lot[index] for index in range(len(lot))] == [b"a", b"b", b"c", b"", b"d"]
    assert lot.offsets.tolist() == [0, 0, 3, 3, 3]
    assert source.position()["offsets"] == {topic: {"0": 4}}


@pytest.mark.parametrize("is_framed", [False, True])
def test_a_job_reads_a_topic_by_its_settings(broker: Broker, tmp_path: Path, is_framed: bool) -> None:
    topic = broker.topic(1)
    rows = [Example(label=[number]).SerializeToString() for number in range(3)]
    header = Framing(lagrangex_header=True)
    broker.produce(topic, [b"".join(header.frame(row) for row in rows)] if is_framed else rows)
    settings = tmp_path / "client.properties"
    settings.write_text("".join(f"{name}={value}\n" for name, value in broker.quick.items()))
    config = build_section(
        DataConfig,
        record="example",
        lagrangex_header=is_framed,
        kafka_servers=broker.servers,
        kafka_topics=(topic,),
        kafka_group_id=uuid.uuid4().hex,
        kafka_start="earliest",
        kafka_idle_end_s=0.25,
        kafka_poll_records=2,
        kafka_config=str(settings),
    )
    assert [row.label[0] for row in open_rows(config, None)] == [0, 1, 2]


def test_a_job_passes_the_settings_of_its_file_on(broker: Broker, tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("security.protocol=no_such_protocol\n")
    config = build_section(
        DataConfig,
        record="example",
        kafka_servers=broker.servers,
        kafka_topics=("t",),
        kafka_group_id="g",
        kafka_config=str(settings),
    )
    with pytest.raises(ConfigError, match=r"security\.protocol"):
        next(iter(open_rows(config, None)))


def test_a_corrupt_message_is_named_and_stays(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    topic = broker.topic(1)
    broker.produce(topic, [framed(b"a"), framed(b"b")[:-1], framed(b"c")])
    source = opened(topic, framing=FRAMED)
    lot = source.read()
    assert lot is not None
    assert [lot[index] for index in range(len(lot))] == [b"a"]
    for _ in range(2):
        with pytest.raises(RecordCorrupt, match=rf"kafka {topic}\[0\]: message at offset 1: record 0 at byte 0"):
            source.read()
        assert source.position()["offsets"] == {topic: {"0": 1}}


def test_corrupt_messages_can_be_skipped_and_are_counted(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    topic = broker.topic(1)
    broker.produce(topic, [framed(b"a"), b"x", framed(b"c"), b"y"])
    counts: list[tuple[MetricSpec, float, tuple[str, ...]]] = []
    source = opened(topic, framing=FRAMED, on_corrupt="skip", metrics=lambda *count: counts.append(count))
    assert drain(source) == [b"a", b"c"]
    assert source.position()["offsets"] == {topic: {"0": 4}}
    assert [count for count in counts if count[0] is KAFKA_ERRORS_TOTAL] == [(KAFKA_ERRORS_TOTAL, 1, ("corrupt",))] * 2


def test_the_lag_is_what_is_left(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    topic = broker.topic(1)
    broker.produce(topic, numbered(10))
    counts: list[tuple[MetricSpec, float, tuple[str, ...]]] = []
    source = opened(topic, poll_records=4, metrics=lambda *count: counts.append(count))
    assert source.lag() == {}
    source.read()
    assert source.lag() == {(topic, 0): 6}
    drain(source)
    assert source.lag() == {(topic, 0): 0}
    assert sum(value for metric, value, labels in counts if metric is KAFKA_RECORDS_TOTAL and labels == (topic,)) == 10
    assert (KAFKA_LAG_RECORDS, (topic, "0")) in {(metric, labels) for metric, _, labels in counts}


# --- ends ---


def test_closing_ends_a_wait(broker: Broker, opened: Callable[..., KafkaSource]) -> None:
    topic = broker.topic(1)
    broker.produce(topic, numbered(1))
    source = opened(topic, idle_end_s=None)
    assert source.read() is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(source.read)
        source.close()
        source.close()
        assert waiting.result(PATIENCE_S) is None
    assert source.read() is None
    source.committed(source.position())
    assert source.position()["offsets"] == {topic: {"0": 1}}


# --- groups and deaths ---


class Member:
    """A consumer in a process of its own, driven lot by lot."""

    def __init__(self, broker: Broker, topic: str, group: str, start: str, state: Path, every: int = 1) -> None:
        arguments = [broker.servers, topic, group, start, str(state), str(every), json.dumps(broker.quick)]
        self._child = subprocess.Popen(
            [sys.executable, str(SUPPORT / "kafka_consumer.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def lot(self) -> dict[str, Any]:
        """The next lot. It is in the child's hands, not yet in a checkpoint."""
        assert self._child.stdout is not None
        ready, _, _ = select.select([self._child.stdout], [], [], PATIENCE_S)
        assert ready, "the consumer read nothing"
        return dict(json.loads(self._child.stdout.readline()))

    def go_on(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()

    def kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        stop(self._child)


def saved(state: Path) -> list[str]:
    """What the last checkpoint has been trained on."""
    return list(json.loads(state.read_text())["trained"]) if state.exists() else []


@pytest.fixture
def members() -> Iterator[Callable[..., Member]]:
    """Makes members that are dead after the test."""
    made: list[Member] = []

    def make(*arguments: Any) -> Member:
        made.append(Member(*arguments))
        return made[-1]

    yield make
    for member in made:
        member.kill()


def test_a_killed_consumer_loses_and_repeats_nothing(
    broker: Broker, members: Callable[..., Member], tmp_path: Path
) -> None:
    topic, group, state = broker.topic(2), uuid.uuid4().hex, tmp_path / "state.json"
    for partition in range(2):
        broker.produce(topic, numbered(40, partition * 40), partition)
    for lots_before_death in (2, 3):
        member = members(broker, topic, group, "earliest", state, 2)
        for _ in range(lots_before_death):
            member.lot()
            member.go_on()
        member.lot()  # read, and never saved
        member.kill()
        trained = saved(state)
        assert len(trained) == len(set(trained))
    assert trained
    member = members(broker, topic, group, "earliest", state)
    while len(trained) < 80:
        member.lot()
        member.go_on()
        before = trained
        until(lambda: saved(state) != before)  # noqa: B023 - called at once
        trained = saved(state)
    assert sorted(trained) == sorted(str(number) for number in range(80))


def test_a_group_shares_partitions_and_takes_over_those_of_the_dead(
    broker: Broker, members: Callable[..., Member], opened: Callable[..., KafkaSource], tmp_path: Path
) -> None:
    topic, group = broker.topic(4), uuid.uuid4().hex
    for partition in range(4):
        broker.produce(topic, numbered(2), partition)
    source = opened(topic, group, idle_end_s=0.1)

    def holds(partitions: int) -> bool:
        return len(source.position()["offsets"].get(topic, {})) == partitions

    until(lambda: source.read() is None and holds(4))
    source.committed(source.position())
    until(lambda: all(broker.committed(topic, group, partition) == 2 for partition in range(4)))
    member = members(broker, topic, group, "committed", tmp_path / "state.json")
    until(lambda: source.read() is None and holds(2))
    for partition in range(4):
        broker.produce(topic, [b"new %d" % partition], partition)
    with reading(source) as got:  # both must go on reading while partitions move
        first = member.lot()["records"]
        member.go_on()  # this one is in a checkpoint ...
        safe = first[0].removeprefix("new ")
        until(lambda: broker.committed(topic, group, int(safe)) == 3)
        [again] = member.lot()["records"]  # ... and this one is not
        member.kill()
        until(lambda: again.encode() in got)
    # At least once, and whatever is in no checkpoint: on a slow machine the member may have been taken for dead before,
    # so that partitions moved more than once.
    assert {b"new %d" % partition for partition in range(4)} - {first[0].encode()} <= set(got)
    assert source.position()["offsets"] == {topic: {str(partition): 3 for partition in range(4)}}


def test_a_member_that_joins_late_begins_at_its_saved_places(
    broker: Broker, opened: Callable[..., KafkaSource]
) -> None:
    topic, group = broker.topic(2), uuid.uuid4().hex
    for partition in range(2):
        broker.produce(topic, numbered(4), partition)
    first = opened(topic, group, idle_end_s=0.1)
    drain(first)
    first.committed(first.position())
    until(lambda: all(broker.committed(topic, group, partition) == 4 for partition in range(2)))
    with reading(first) as got:
        late = opened(topic, group, idle_end_s=None)
        late.resume({"offsets": {topic: {"0": 1, "1": 1}}})
        assert take(late, 3) == numbered(3, 1)
    assert got == []
    assert len(late.position()["offsets"][topic]) == len(first.position()["offsets"][topic]) == 1


@contextlib.contextmanager
def reading(source: KafkaSource) -> Iterator[list[bytes]]:
    """Reads in another thread, past the ends that are only pauses."""
    got: list[bytes] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            got.extend(drain(source))

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            yield got
        finally:
            done.set()
            reader.result(PATIENCE_S)


# --- broker loss ---


class Forwarder:
    """A port that stays while the broker behind it comes and goes."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.upstream: tuple[str, int] | None = None
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.upstream or ("127.0.0.1", 1))
            except OSError:
                client.close()
                continue
            for here, there in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=self._copy, args=(here, there)))
                self._threads[-1].start()

    @staticmethod
    def _copy(here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := here.recv(65536):
                there.sendall(piece)
        for end in (here, there):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        here.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def forwarder() -> Iterator[Forwarder]:
    made = Forwarder()
    yield made
    made.close()


def restarted(forwarder: Forwarder, values: list[bytes | None]) -> subprocess.Popen[str]:
    """A fresh broker process behind the forwarder. A broker that comes back has what it had, so it is filled first."""
    child, address = start_broker()
    tell(child, "topic t 1")
    Broker(address, child).produce("t", values)
    tell(child, f"advertise {forwarder.port}")
    host, _, port = address.partition(":")
    forwarder.upstream = (host, int(port))
    return child


def test_a_broker_that_is_killed_and_started_again_is_survived_and_told(
    forwarder: Forwarder, caplog: pytest.LogCaptureFixture
) -> None:
    child = restarted(forwarder, numbered(10))
    outages: list[tuple[str, ...]] = []

    def count(metric: MetricSpec, _: float, labels: tuple[str, ...]) -> None:
        if metric is KAFKA_ERRORS_TOTAL and labels == ("outage",):
            outages.append(labels)

    config = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 100, "reconnect.backoff.max.ms": 200}
    source = KafkaSource(
        f"127.0.0.1:{forwarder.port}", "t", "g", "example",
        start="earliest", max_wait_s=0.05, config=config, metrics=count,
    )  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        try:
            assert take(source, 10) == numbered(10)
            stop(child)
            waiting = pool.submit(take, source, 3)
            until(lambda: bool(outages))
            child = restarted(forwarder, numbered(13))
            assert waiting.result(PATIENCE_S) == numbered(3, 10)
            assert source.position()["offsets"] == {"t": {"0": 13}}
        finally:
            source.close()
            stop(child)
    told = [record.getMessage() for record in caplog.records if "kafka brokers" in record.getMessage()]
    assert [line.split(" servers")[0] for line in told] == [
        "kafka brokers lost, reconnecting",
        "kafka brokers reconnected",
    ]
    assert len(outages) == 1


def test_an_outage_without_end_is_an_error() -> None:
    child, servers = start_broker()
    tell(child, "topic t 1")
    source = KafkaSource(servers, "t", "g", "example", start="earliest", max_wait_s=0.05, max_outage_s=0.3)
    try:
        stop(child)
        with pytest.raises(RetriesExhausted, match=rf"no broker of {servers} has answered .* max_outage_s is 0\.3"):
            source.read()
    finally:
        source.close()


# --- datasets ---


def numbered_examples(begin: int, count: int) -> list[bytes]:
    return [Example(line_id=LineId(uid=number)).SerializeToString() for number in range(begin, begin + count)]


def read_uids(dataset: mt.data.Dataset, most: int = 1 << 30) -> list[int]:
    reading = iter(dataset)
    uids = [uid for batch in itertools.islice(reading, most) for uid in batch.uid.tolist()]
    return uids


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_dataset_resumes_exactly_though_partitions_come_in_any_order(broker: Broker, shuffled: bool) -> None:
    topic = broker.topic(4)
    for partition in range(4):
        broker.produce(topic, numbered_examples(partition * 50, 50), partition)
    group = uuid.uuid4().hex

    def make() -> mt.data.Dataset:
        dataset = mt.data.kafka(
            broker.servers,
            topic,
            group,
            record="example",
            start="earliest",
            schema=mt.data.Schema(labels=0),
            poll_records=7,
            max_wait_s=0.05,
            idle_end_s=2,
            config=broker.quick,
        )
        return (dataset.shuffle(30) if shuffled else dataset).batch(9).prefetch(2)

    for stop_after in (1, 6, 15):
        first = make()
        reading = iter(first)
        seen = [uid for _ in range(stop_after) for uid in next(reading).uid.tolist()]
        state = json.loads(json.dumps(first.state()))
        first.committed(state)
        reading.close()  # type: ignore[attr-defined]
        again = make()
        again.restore(state)
        seen += read_uids(again)
        assert sorted(seen) == list(range(200)), f"stopped after {stop_after}"


def test_offsets_reach_the_broker_only_when_a_state_is_safe(broker: Broker) -> None:
    topic, group = broker.topic(1), uuid.uuid4().hex
    broker.produce(topic, numbered_examples(0, 20))
    dataset = mt.data.kafka(
        broker.servers,
        topic,
        group,
        record="example",
        schema=mt.data.Schema(labels=0),
        poll_records=4,
        config=broker.quick,
    ).batch(8)
    reading = iter(dataset)
    next(reading)
    state = dataset.state()
    next(reading)
    assert broker.committed(topic, group) < 0
    dataset.committed(state)
    until(lambda: broker.committed(topic, group) == 8)
    reading.close()  # type: ignore[attr-defined]

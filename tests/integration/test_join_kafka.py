"""A join between Kafka topics: transactions, sequence numbers, and a restart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from join_events import numbered_events
from monolith.core.clock import Deadline, SystemClock
from monolith.core.errors import ClusterError, ConfigError, DataError
from monolith.stream import JoinSettings
from monolith.stream.line_id import MESSAGES
from monolith.stream.runtime import GroupOptions, JoinGroup
from monolith.stream.runtime.kafka import KafkaInput, KafkaSink
from monolith.stream.runtime.ports import Lot
from monolith.stream.runtime.topics import JoinTopics

TIMEOUT_S = 60
SETTINGS = JoinSettings(window_ms=200, out_of_order_ms=250, horizon_ms=1000)
OPTIONS = GroupOptions(commit_ms=0, snapshot_s=0.05, lot_records=50, idle_advance=False)


@pytest.fixture
def servers() -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "kafka_broker.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        for topic in ("events", "examples", "examples.dead"):
            child.stdin.write(f"topic {topic} 1\n")
            child.stdin.flush()
            assert child.stdout.readline() == "0\n"
        yield address
        child.kill()


def read_all(servers: str, topic: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF
            consumer.close()
            return values
        values.append(message.value() or b"")


def produce(servers: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for key, value, time_ms in numbered_events(count, 2):
        producer.produce("events", value, key, timestamp=time_ms)
    assert producer.flush(TIMEOUT_S) == 0


def make_group(servers: str, state: Path) -> JoinGroup:
    topics = JoinTopics([f"kafka://{servers}/events"], f"kafka://{servers}/examples")
    return topics.make_group(0, SETTINGS, state, options=OPTIONS)


def test_a_join_between_kafka_topics_writes_every_row_once_across_a_crash(servers: str, tmp_path: Path) -> None:
    produce(servers, 300)
    group = make_group(servers, tmp_path)
    group.start()
    for _ in range(40):
        group.step(0.2)
        if group.status.commits >= 3:
            break
    assert group.status.commits >= 3
    group.abandon()  # as a kill: no commit, no snapshot
    group = make_group(servers, tmp_path)
    group.start()
    while group.step(0.5) or not group.is_at_end():
        pass
    group.finish()
    group.close()
    rows = [MESSAGES.Example.FromString(value).line_id for value in read_all(servers, "examples")]
    assert sorted(row.uid for row in rows) == list(range(300))
    assert len(read_all(servers, "examples.dead")) > 0


def test_a_sink_finds_its_last_sequence(servers: str) -> None:
    sink = KafkaSink(servers, "examples", 0, name="join")
    assert sink.take_over() == 0
    for sequence in (5, 6, 9):
        sink.append(sequence, [b"k"] * 40, [b"v"] * 40, [0] * 40)
    sink.close()
    assert KafkaSink(servers, "examples", 0, name="join").take_over() == 9
    assert KafkaSink(servers, "examples", 0, name="other").take_over() == 0


def test_an_input_of_transactions_ends_behind_the_marker_of_the_last_one(servers: str) -> None:
    sink = KafkaSink(servers, "events", 0, name="producer")
    sink.take_over()
    sink.append(1, [b"k"] * 3, [b"v"] * 3, [0] * 3)
    port = KafkaInput(servers, "events", 0, group="join")
    try:
        deadline = Deadline(SystemClock(), TIMEOUT_S)
        records = 0
        while not port.is_at_end() and not deadline.is_past:
            lot = port.read(10, 0.2)
            records += 0 if lot is None else len(lot.batch)
        assert port.is_at_end()
        assert records == 3
        assert port.has_reached_end()
        produce(servers, 1)
        first_lot(port)
        port.skip_to(0)
        assert not port.has_reached_end()
    finally:
        port.close()


@pytest.mark.parametrize("on_lost", ["raise", "earliest"])
def test_a_restart_behind_retention_raises_or_counts(
    servers: str, on_lost: Literal["raise", "earliest"], monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(servers, 30)
    port = KafkaInput(servers, "events", 0, group="join", on_lost=on_lost)
    _, end = port._watermarks()
    monkeypatch.setattr(port, "_watermarks", lambda: (10, end))
    try:
        if on_lost == "raise":
            with pytest.raises(DataError, match=r"begins at offset 10, expected 4; .*--on-lost earliest"):
                port.resume({"offset": 4})
            return
        port.resume({"offset": 4})
        assert (port.position(), port.lost_records) == ({"offset": 10}, 6)
        assert first_lot(port).offsets[0] == 10
    finally:
        port.close()


def test_records_before_a_loss_are_not_counted_as_lost(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = KafkaInput(servers, "events", 0, group="join", on_lost="earliest")
    read = SimpleNamespace(
        error=lambda: None, offset=lambda: 0, timestamp=lambda: (1, 0), value=lambda: b"v", key=lambda: b"k"
    )
    lost = SimpleNamespace(error=lambda: KafkaError(KafkaError._AUTO_OFFSET_RESET))
    real = port._consumer
    try:
        fake = SimpleNamespace(consume=lambda most, wait_s: [read, lost], assign=lambda places: None)
        monkeypatch.setattr(port, "_consumer", fake)
        monkeypatch.setattr(port, "_watermarks", lambda: (10, 20))
        assert first_lot(port).offsets == [0]
        assert (port.position(), port.lost_records) == ({"offset": 10}, 9)
    finally:
        real.close()


def first_lot(port: KafkaInput) -> Lot:
    deadline = Deadline(SystemClock(), TIMEOUT_S)
    while not deadline.is_past:
        if (lot := port.read(5, 0.2)) is not None:
            return lot
    raise AssertionError("no record arrived")


def test_a_record_above_the_limit_of_the_client_names_its_size_and_the_setting(servers: str) -> None:
    sink = KafkaSink(servers, "examples", 0, name="join")
    sink.take_over()
    with pytest.raises(
        ConfigError, match=r"'examples': the largest of 1 records has 1100001 bytes.*message\.max\.bytes"
    ):
        sink.append(1, [b"k"], [b"v" * 1_100_000], [0])


def test_a_config_that_no_transaction_allows_is_refused(servers: str) -> None:
    sink = KafkaSink(servers, "examples", 0, name="join", config={"acks": "1"})
    with pytest.raises(ConfigError, match=r"config of topic 'examples' is invalid .*acks"):
        sink.take_over()


def test_a_transaction_that_cannot_be_aborted_raises(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = KafkaSink(servers, "examples", 0, name="join")

    def refuse(timeout_s: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no coordinator", txn_requires_abort=True))

    producer = SimpleNamespace(
        begin_transaction=lambda: None,
        produce=lambda *arguments, **options: None,
        commit_transaction=refuse,
        abort_transaction=refuse,
    )
    monkeypatch.setattr(sink, "_producer", producer)
    with pytest.raises(ClusterError, match="'join-examples-0' cannot be aborted: no coordinator") as raised:
        sink.append(1, [b"k"], [b"v"], [0])
    assert raised.value.retryable


def test_a_transaction_that_fails_again_and_again_raises(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = KafkaSink(servers, "examples", 0, name="join")
    sink.take_over()
    commits = []

    class FailingProducer:
        def begin_transaction(self) -> None: ...

        def produce(self, *arguments: Any, **options: Any) -> None: ...

        def commit_transaction(self, timeout_s: float) -> None:
            commits.append(timeout_s)
            assert len(commits) < 100, "the transaction is repeated without end"
            raise KafkaException(KafkaError(KafkaError._INCONSISTENT, "not delivered", txn_requires_abort=True))

        def abort_transaction(self, timeout_s: float) -> None: ...

    monkeypatch.setattr(sink, "_producer", FailingProducer())
    with pytest.raises(
        ClusterError, match=r"transaction of 'join-examples-0' failed \d+ times: not delivered"
    ) as raised:
        sink.append(1, [b"k"], [b"v"], [0])
    assert raised.value.retryable
    assert 1 < len(commits) < 10


def test_a_topic_that_does_not_exist_raises(servers: str) -> None:
    with pytest.raises(ConfigError, match=r"differ in partitions|does not exist"):
        JoinTopics([f"kafka://{servers}/events", f"kafka://{servers}/absent"], f"kafka://{servers}/examples")

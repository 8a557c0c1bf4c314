"""A join between Kafka topics: transactions, sequence numbers, and a restart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from join_events import numbered_events
from monolith.core.errors import ConfigError
from monolith.stream import JoinSettings
from monolith.stream.line_id import MESSAGES
from monolith.stream.runtime import GroupOptions, JoinGroup
from monolith.stream.runtime.kafka import KafkaSink
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


def test_a_topic_that_does_not_exist_raises(servers: str) -> None:
    with pytest.raises(ConfigError, match=r"differ in partitions|does not exist"):
        JoinTopics([f"kafka://{servers}/events", f"kafka://{servers}/absent"], f"kafka://{servers}/examples")

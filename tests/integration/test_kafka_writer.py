"""Sampled predictions over the wire: librdkafka's mock cluster in a second process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from monolith.core.errors import ClusterError
from monolith.data.sources.kafka.writer import KafkaWriter
from monolith.training.hooks.prediction_dump import prediction_topic

PATIENCE_S = 60


@pytest.fixture
def servers() -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "kafka_broker.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        child.stdin.write("topic predictions 1\n")
        child.stdin.flush()
        assert child.stdout.readline() == "0\n"
        yield address
        child.kill()


def test_predictions_arrive_in_a_topic(servers: str) -> None:
    sink = prediction_topic(servers, "predictions")
    for uid in range(100):
        sink.write({"uid": uid, "predict": {"ctr": 0.5}})
    sink.close()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["predictions"])
    received = []
    while len(received) < 100:
        messages = consumer.consume(100, PATIENCE_S)
        assert messages, f"only {len(received)} of 100 messages came"
        received += [(message.key(), json.loads(message.value())["uid"]) for message in messages]
    consumer.close()
    assert received == [(str(uid).encode(), uid) for uid in range(100)]


def test_a_broker_that_is_not_there_is_told() -> None:
    writer = KafkaWriter("127.0.0.1:1", "predictions", flush_timeout_s=0.2, config={"log_level": 0})
    writer.write(b"x")
    with pytest.raises(ClusterError, match=r"1 messages did not arrive within 0\.2 s; check the brokers"):
        writer.close()

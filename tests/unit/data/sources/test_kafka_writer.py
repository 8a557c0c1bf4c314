"""A Kafka writer without a broker: settings, a full queue, losses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from monolith.core.errors import ClusterError, ConfigError
from monolith.data.sources.kafka.writer import KafkaWriter
from monolith.testing import FakeClock


class Refused:
    def str(self) -> str:
        return "Message size too large"


class FakeProducer:
    """Has room for one message; ``poll`` lets it arrive, or be lost."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.waiting: list[tuple[bytes, Any]] = []
        self.arrived: list[bytes] = []
        self.error: Any = None
        self.is_stuck = False
        self.is_purged = False

    def produce(self, topic: str, message: bytes, key: bytes | None, on_delivery: Callable[..., None]) -> None:
        if len(message) > 10:
            raise KafkaError(Refused())
        if self.waiting:
            raise BufferError
        self.waiting.append((message, on_delivery))

    def poll(self, timeout_s: float) -> int:
        if timeout_s:
            self.clock.advance_s(timeout_s)
            self.deliver()
        return 0

    def flush(self, timeout_s: float) -> int:
        self.clock.advance_s(timeout_s)
        self.deliver()
        return len(self.waiting)

    def deliver(self) -> None:
        while self.waiting and not self.is_stuck:
            message, tell = self.waiting.pop()
            if self.error is None:
                self.arrived.append(message)
            tell(self.error, None)

    def purge(self) -> None:
        self.is_purged = True


class KafkaError(Exception):
    pass


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    made = FakeProducer(FakeClock())
    client = SimpleNamespace(KafkaException=KafkaError, Producer=lambda settings, logger: made)
    monkeypatch.setitem(sys.modules, "confluent_kafka", client)
    return made


def test_messages_arrive_in_order_and_empty_ones_are_left_out(producer: FakeProducer) -> None:
    writer = KafkaWriter(["a:1", "b:2"], "t", clock=producer.clock)
    for message in (b"1", b"", b"2", b"3"):
        writer.write(message)
    writer.close()
    writer.close()
    assert producer.arrived == [b"1", b"2", b"3"]
    assert producer.is_purged
    with pytest.raises(ConfigError, match="the writer of topic 't' is closed"):
        writer.write(b"4")


def test_a_write_waits_for_a_full_queue_and_then_raises(producer: FakeProducer) -> None:
    writer = KafkaWriter("a:1", "t", max_wait_s=5, clock=producer.clock)
    writer.write(b"1")
    producer.is_stuck = True
    with pytest.raises(ClusterError, match="topic 't' on a:1: too many messages") as told:
        writer.write(b"2")
    assert told.value.retryable
    assert producer.clock.monotonic_s() == pytest.approx(5)
    impatient = KafkaWriter("a:1", "t", max_wait_s=0, clock=producer.clock)
    with pytest.raises(ClusterError, match="too many"):
        impatient.write(b"2")
    assert producer.clock.monotonic_s() == pytest.approx(5)


def test_lost_messages_raise_once(producer: FakeProducer) -> None:
    writer = KafkaWriter("a:1", "t", clock=producer.clock)
    producer.error = Refused()
    writer.write(b"1")
    with pytest.raises(ClusterError, match="1 messages were lost: Message size too large"):
        writer.write(b"2")
    producer.error = None
    writer.flush()
    assert producer.arrived == [b"2"]


def test_close_drops_messages_that_do_not_arrive(producer: FakeProducer) -> None:
    writer = KafkaWriter("a:1", "t", flush_timeout_s=3, clock=producer.clock)
    writer.write(b"1")
    producer.is_stuck = True
    with pytest.raises(ClusterError, match="1 messages did not arrive within 3 s"):
        writer.close()
    assert producer.is_purged
    writer.close()


def test_a_message_that_is_too_large_is_refused(producer: FakeProducer) -> None:
    with pytest.raises(ConfigError, match=r"a message of 11 bytes .*: Message size too large"):
        KafkaWriter("a:1", "t").write(b"12345678901")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"servers": ""}, "servers is ''"),
        ({"topic": ""}, "topic is ''"),
        ({"max_wait_s": -1}, "max_wait_s is -1, expected 0 to 3600"),
        ({"flush_timeout_s": 1e9}, "flush_timeout_s is 1000000000.0"),
        ({"config": {"bootstrap.servers": "x"}}, "config holds bootstrap.servers"),
        ({"config": {"no.such.setting": 1}}, "No such configuration property"),
    ],
)
def test_a_wrong_setting_is_named(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        KafkaWriter(**{"servers": "localhost:1", "topic": "t", **changed})


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ConfigError, match=r"pip install 'monolith\[kafka\]'"):
        KafkaWriter("localhost:1", "t")

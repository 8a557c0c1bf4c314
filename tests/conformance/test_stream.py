"""One suite for streams that have both ends, a ``Sink`` and a ``Source``: memory, event log, Kafka.

To add a stream, add a class with ``open_sink`` and ``open_source`` and name it in ``STREAMS``. Kafka is librdkafka's
mock cluster in another process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pytest

from monolith.core.errors import ConfigError
from monolith.data.sources.base import Position, Sink, Source
from monolith.data.sources.event_log.source import EventLogSource
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.data.sources.kafka.source import KafkaSource
from monolith.data.sources.kafka.writer import KafkaWriter
from monolith.data.sources.queue import QueueSink, QueueSource

BROKER = Path(__file__).parents[1] / "support" / "kafka_broker.py"
PATIENCE_S = 60.0


class Stream(Protocol):
    """A stream of the suite. ``is_lasting`` is False where a record can be read once only."""

    is_lasting: bool

    def open_sink(self) -> Sink: ...

    def open_source(self) -> Source: ...


class Memory:
    is_lasting = False

    def __init__(self, _: Path, __: str) -> None:
        self._queue = QueueSource("instance")

    def open_sink(self) -> Sink:
        return QueueSink(self._queue)

    def open_source(self) -> Source:
        return self._queue


class Log:
    is_lasting = True

    def __init__(self, folder: Path, _: str, partitions: int = 1) -> None:
        self._topic = Topic.create(folder, "events", TopicSettings(partitions=partitions))

    def open_sink(self) -> Sink:
        return LogWriter(self._topic)

    def open_source(self) -> Source:
        return EventLogSource(self._topic, "instance", group="suite", start="earliest", poll_records=7)


class LogOfPartitions(Log):
    def __init__(self, folder: Path, servers: str) -> None:
        super().__init__(folder, servers, partitions=4)


class Kafka:
    is_lasting = True

    def __init__(self, _: Path, servers: str) -> None:
        self._servers = servers
        self._topic = f"events-{uuid.uuid4().hex}"

    def open_sink(self) -> Sink:
        return KafkaWriter(self._servers, self._topic)

    def open_source(self) -> Source:
        # A group for each source: the suite reads a topic with several sources at a time.
        group = f"suite-{uuid.uuid4().hex}"
        return KafkaSource(self._servers, self._topic, group, "instance", start="earliest", max_wait_s=0.05)


STREAMS: list[Callable[[Path, str], Stream]] = [Memory, Log, LogOfPartitions, Kafka]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    child = subprocess.Popen([sys.executable, str(BROKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdin is not None
    yield child.stdout.readline().strip()
    child.stdin.close()
    child.kill()
    child.wait(PATIENCE_S)
    child.stdout.close()


@pytest.fixture(params=STREAMS, ids=lambda kind: kind.__name__)
def stream(request: pytest.FixtureRequest, tmp_path: Path, servers: str) -> Stream:
    made: Stream = request.param(tmp_path, servers)
    return made


def take(source: Source, count: int) -> list[bytes]:
    """Read ``count`` records; the source is closed when they do not come in time."""
    watchdog = threading.Timer(PATIENCE_S, source.close)
    watchdog.start()
    records: list[bytes] = []
    try:
        while len(records) < count and (chunk := source.read()) is not None:
            records += [chunk[index] for index in range(len(chunk))]
    finally:
        watchdog.cancel()
    return records


def numbers(first: int, end: int) -> list[bytes]:
    return [b"record %d" % number for number in range(first, end)]


def test_every_flushed_message_is_read_once(stream: Stream) -> None:
    sink, source = stream.open_sink(), stream.open_source()
    for message in numbers(0, 50):
        sink.write(message, key=message)
    sink.flush()
    assert sorted(take(source, 50)) == sorted(numbers(0, 50))
    for message in numbers(50, 60):
        sink.write(message, time_ms=1_700_000_000_000)
    sink.flush()
    assert sorted(take(source, 10)) == sorted(numbers(50, 60))
    sink.close()
    source.close()


def test_messages_of_a_key_stay_in_order(stream: Stream) -> None:
    sink, source = stream.open_sink(), stream.open_source()
    for message in numbers(0, 200):
        sink.write(message, key=b"user-%d" % (int(message.split()[1]) % 5))
    sink.flush()
    records = [int(record.split()[1]) for record in take(source, 200)]
    for user in range(5):
        assert [number for number in records if number % 5 == user] == list(range(user, 200, 5))
    sink.close()
    source.close()


def test_a_closed_sink_refuses_messages(stream: Stream) -> None:
    sink = stream.open_sink()
    sink.close()
    sink.close()
    with pytest.raises(ConfigError, match="closed"):
        sink.write(b"late")


def test_closing_a_sink_flushes_it(stream: Stream) -> None:
    source = stream.open_source()
    sink = stream.open_sink()
    sink.write(b"last")
    sink.close()
    assert take(source, 1) == [b"last"]
    source.close()


def test_a_source_waits_for_messages_and_close_ends_the_wait(stream: Stream) -> None:
    source = stream.open_source()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(source.read)
        assert not waiting.done()
        source.close()
        assert waiting.result(PATIENCE_S) is None


def test_a_source_resumes_with_the_chunks_that_followed(stream: Stream) -> None:
    if not stream.is_lasting:
        pytest.skip("a queue holds a record once")
    sink = stream.open_sink()
    for message in numbers(0, 40):
        sink.write(message, key=message)
    sink.flush()
    source = stream.open_source()
    records = take(source, 1)
    saved = source.position()
    then: list[Position] = []
    repeated: list[bytes] = []
    while len(records) + len(repeated) < 40:
        repeated += take(source, 1)
        then.append(source.position())
    source.committed(then[-1])
    source.close()
    for message in numbers(40, 50):
        sink.write(message, key=message)
    sink.close()
    again = stream.open_source()
    again.resume(json.loads(json.dumps(saved)), json.loads(json.dumps(then)))
    assert take(again, len(repeated))[: len(repeated)] == repeated
    assert sorted(take(again, 10)) == sorted(numbers(40, 50))
    again.close()

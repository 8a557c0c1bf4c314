"""A Kafka source without a broker: settings, start offsets, outages, commits after a rebalance."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import confluent_kafka
import hypothesis.strategies as st
import pytest
from hypothesis import given

from monolith.core.errors import ConfigError, DataError, RetriesExhausted
from monolith.data.sources.kafka.outage import Outage
from monolith.data.sources.kafka.source import KafkaSource
from monolith.data.sources.kafka.start_offsets import StartOffsets, check_start
from monolith.testing import FakeClock

# --- settings ---


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"servers": ""}, "servers is ''"),
        ({"topics": []}, r"topics is \[\]"),
        ({"topics": ["a", ""]}, r"topics is \['a', ''\]"),
        ({"group": ""}, "group is ''"),
        ({"start": "oldest"}, "start is 'oldest', expected 'earliest'"),
        ({"start": True}, "start is True"),
        ({"start": -5.0}, "start is -5.0"),
        ({"start": 1_700_000_000_000}, "start is 1700000000000"),
        ({"poll_records": -1}, "poll_records is -1"),
        ({"max_wait_s": 0}, "max_wait_s is 0"),
        ({"idle_end_s": -1}, "idle_end_s is -1"),
        ({"max_outage_s": -1}, "max_outage_s is -1"),
        ({"on_corrupt": "ignore"}, "on_corrupt is 'ignore', expected 'raise' or 'skip'"),
        ({"config": {"group.id": "x"}}, "config holds group.id"),
        ({"config": {"enable.auto.commit": True}}, "config holds enable.auto.commit"),
        ({"config": {"no.such.setting": 1}}, 'No such configuration property: "no.such'),
    ],
)
def test_a_wrong_setting_is_named(changed: dict[str, Any], text: str) -> None:
    settings = {"servers": "localhost:1", "topics": "t", "group": "g", "record": "example", **changed}
    with pytest.raises(ConfigError, match=text):
        KafkaSource(**settings)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ConfigError, match=r"pip install 'monolith\[kafka\]'"):
        KafkaSource("localhost:1", "t", "g", "example")


def test_a_closed_source_is_at_its_end() -> None:
    source = KafkaSource(["localhost:1", "localhost:2"], "t", "g", "example")
    source.committed({"offsets": {"t": {"0": 5}}})
    source.close()
    source.close()
    assert source.read() is None
    assert source.position()["offsets"] == {}
    assert source.lag() == {}


# --- start offsets ---


class FakeMessage:
    def __init__(self, offset: int, time_ms: int, kind: int = 1) -> None:
        self._offset, self._time_ms, self._kind = offset, time_ms, kind

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "t"

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return self._kind, self._time_ms


class EndOfPartition:
    def error(self) -> Any:
        return confluent_kafka.KafkaError(confluent_kafka.KafkaError._PARTITION_EOF)


class FakePartition:
    """Consumer and probe of one partition, whose broker cannot search for a time."""

    def __init__(self, messages: list[FakeMessage], high: int) -> None:
        self.messages, self.high = messages, high
        self.at = 0
        self.polls = 0
        self.is_closed = False

    def get_watermark_offsets(self, _: Any, timeout: float) -> tuple[int, int]:
        return 0, self.high

    def offsets_for_times(self, partitions: list[Any], timeout: float) -> list[Any]:
        return [confluent_kafka.TopicPartition("t", 0, -1)]

    def assign(self, partitions: list[Any]) -> None:
        self.at = partitions[0].offset

    def poll(self, timeout: float) -> Any:
        self.polls += 1
        return next((message for message in self.messages if message.offset() >= self.at), EndOfPartition())

    def close(self) -> None:
        self.is_closed = True


def start_offsets(partition: FakePartition) -> StartOffsets:
    return StartOffsets(confluent_kafka, partition, lambda: partition, 1.0)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=40),
    st.integers(0, 3),
    st.integers(0, 130),
)
def test_a_time_is_found_where_the_broker_cannot_search(steps: list[tuple[int, int]], tail: int, time_s: int) -> None:
    offset, time_ms, messages = -1, 0, []
    for offset_step, time_step in steps:  # holes in the offsets, equal times
        offset, time_ms = offset + offset_step, time_ms + time_step * 1000
        messages.append(FakeMessage(offset, time_ms))
    partition = FakePartition(messages, offset + 1 + tail)
    start = start_offsets(partition).at(float(time_s), ("t", 0))
    assert [message for message in messages if message.offset() >= start] == [
        message for message in messages if message.timestamp()[1] >= time_s * 1000
    ]
    assert 0 <= start <= partition.high
    assert partition.polls <= 1 + (partition.high + 1).bit_length()
    assert partition.is_closed == (partition.polls > 0)


def test_messages_without_timestamps_are_refused() -> None:
    partition = FakePartition([FakeMessage(0, -1, kind=0)], 1)
    with pytest.raises(ConfigError, match="topic 't' have no timestamps"):
        start_offsets(partition).at(5.0, ("t", 0))


def test_a_deleted_offset_is_refused() -> None:
    partition = FakePartition([], 7)
    assert start_offsets(partition).check(("t", 0), 7) == 7
    with pytest.raises(DataError, match=r"kafka t\[0\]: offset 8 is gone, the broker has 0 to 7"):
        start_offsets(partition).check(("t", 0), 8)


@pytest.mark.parametrize("start", ["earliest", "latest", "committed", 0, 1_700_000_000.5])
def test_starts(start: Any) -> None:
    assert check_start(start) == start


# --- outages ---


def test_an_outage_is_counted_once_and_ends_when_a_broker_answers() -> None:
    clock, counted = FakeClock(), []
    outage = Outage("b:1", 10.0, clock, lambda: counted.append(1))
    assert not outage.is_over(lambda: False)
    outage.suspect("refused")
    outage.suspect("refused again")
    assert outage.is_suspected
    for _ in range(5):
        assert not outage.is_over(lambda: False)
        clock.advance_s(1)
    assert outage.is_over(lambda: True)
    assert not outage.is_suspected
    assert counted == [1]


def test_an_idle_connection_does_not_count_as_an_outage() -> None:
    counted: list[int] = []
    outage = Outage("b:1", 10.0, FakeClock(), lambda: counted.append(1))
    outage.suspect("disconnected")
    assert outage.is_over(lambda: True)
    assert counted == []


def test_an_outage_that_is_too_long_is_given_up() -> None:
    clock = FakeClock()
    outage = Outage("b:1", 10.0, clock, lambda: None)
    outage.suspect("refused")
    clock.advance_s(10)
    assert not outage.is_over(lambda: False)
    clock.advance_s(1)
    with pytest.raises(
        RetriesExhausted, match="no broker of b:1 has answered for 11 s, and max_outage_s is 10: refused"
    ):
        outage.is_over(lambda: False)


# --- partitions and commits ---


class Member:
    """A consumer whose rebalances and messages the test scripts: one entry of ``script`` per ``consume``."""

    def __init__(self, script: list[Callable[[Member], list[Any]]]) -> None:
        self.script = script
        self.commits: list[dict[tuple[str, int], int]] = []

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.on_assign, self.on_revoke = on_assign, on_revoke

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        return self.script.pop(0)(self)

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        return [confluent_kafka.TopicPartition(each.topic, each.partition, -1001) for each in partitions]

    def get_watermark_offsets(self, _: Any, timeout: float = 0, cached: bool = False) -> tuple[int, int]:
        return 0, 100

    def incremental_assign(self, partitions: list[Any]) -> None:
        pass

    def commit(self, offsets: list[Any], asynchronous: bool) -> None:
        self.commits.append({(each.topic, each.partition): each.offset for each in offsets})

    def close(self) -> None:
        pass


class NumberedMessage(FakeMessage):
    def __init__(self, partition: int, offset: int) -> None:
        super().__init__(offset, 0)
        self._partition = partition

    def partition(self) -> int:
        return self._partition

    def value(self) -> bytes:
        return b"record"


def join(monkeypatch: pytest.MonkeyPatch, *script: Callable[[Member], list[Any]]) -> tuple[KafkaSource, Member]:
    member = Member(list(script))
    client = types.SimpleNamespace(
        Consumer=lambda settings, logger: member,
        TopicPartition=confluent_kafka.TopicPartition,
        KafkaException=confluent_kafka.KafkaException,
        KafkaError=confluent_kafka.KafkaError,
    )
    monkeypatch.setitem(sys.modules, "confluent_kafka", client)
    return KafkaSource("b:1", "t", "g", "example", start="earliest"), member


def partitions(*numbers: int) -> list[Any]:
    return [confluent_kafka.TopicPartition("t", number) for number in numbers]


def test_a_member_commits_only_partitions_that_it_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def assign(member: Member) -> list[Any]:
        member.on_assign(member, partitions(0, 1))
        return [NumberedMessage(0, 0), NumberedMessage(1, 0)]

    def revoke(member: Member) -> list[Any]:
        member.on_revoke(member, partitions(1))
        return [NumberedMessage(0, 1), NumberedMessage(1, 1)]

    source, member = join(monkeypatch, assign, revoke)
    assert source.read() is not None
    assert source.read() is not None
    saved = source.position()
    assert saved["offsets"] == {"t": {"0": 1, "1": 1}}
    source.committed(saved)
    assert member.commits == [{("t", 0): 1, ("t", 1): 1}]
    assert source.read() is not None
    source.committed(saved)
    assert member.commits[1:] == [{("t", 0): 1}], "another member holds partition 1 now, and has committed more"
    assert source.position()["offsets"] == {"t": {"0": 2}}, "messages of a revoked partition are dropped"

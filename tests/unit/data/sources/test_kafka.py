"""What a Kafka source does without a broker: frames, settings, the search for a time, the watch over outages."""

from __future__ import annotations

import itertools
import struct
import sys
from typing import Any

import confluent_kafka
import hypothesis.strategies as st
import pytest
from hypothesis import given

from monolith.core.errors import ConfigError, DataError, RecordCorrupt, RetriesExhausted
from monolith.data.sources.kafka import KafkaSource
from monolith.data.sources.kafka_frames import FrameFlags, split_frames
from monolith.data.sources.kafka_outage import Outage
from monolith.data.sources.kafka_start import StartPlaces, checked_start
from monolith.testing import FakeClock

FLAGS: list[Any] = list(itertools.product([False, True], repeat=4))


def word(value: int) -> bytes:
    return struct.pack("<Q", value)


def frame(payload: bytes, flags: FrameFlags, sort_id: bytes = b"") -> bytes:
    has_sort_id, kafka_dump, prefix, lagrangex = flags
    if lagrangex:
        return word(0x1234) + word(len(payload)) + payload
    header = word(0) * 2 if prefix else b""
    if has_sort_id:
        header += word(len(sort_id)) + sort_id
    if kafka_dump:
        header += word(7)
    return header + word(len(payload)) + payload


# --- frames ---


@pytest.mark.parametrize("flags", FLAGS)
def test_every_combination_of_flags_is_taken_apart(flags: FrameFlags) -> None:
    payloads = [b"a" * size for size in range(16)]
    body = b"".join(frame(payload, flags) for payload in payloads)
    assert split_frames(body, flags) == payloads
    has_sort_id, kafka_dump, prefix, lagrangex = flags
    overhead = 16 if lagrangex else 8 + 8 * has_sort_id + 8 * kafka_dump + 16 * prefix
    assert len(body) == 16 * overhead + sum(range(16))


@given(st.sampled_from(FLAGS), st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=10))))
def test_any_records_survive(flags: FrameFlags, records: list[tuple[bytes, bytes]]) -> None:
    body = b"".join(frame(payload, flags, sort_id) for payload, sort_id in records)
    assert split_frames(body, flags) == [payload for payload, _ in records]


def test_an_aggregate_page_gives_the_length_of_its_sort_id_in_the_prefix() -> None:
    body = word(3) + b"uid" + word(2) + b"ab"
    assert split_frames(body, (True, False, True, False)) == [b"ab"]
    with pytest.raises(RecordCorrupt, match="byte 0: the prefix announces a sort id of 3 bytes; set sort_id"):
        split_frames(body, (False, False, True, False))


@pytest.mark.parametrize("flags", FLAGS)
def test_a_cut_is_an_error_at_every_byte_but_between_records(flags: FrameFlags) -> None:
    first = frame(b"abc", flags, b"id")
    body = first + frame(b"de", flags)
    for end in range(len(body) + 1):
        if end in (0, len(first), len(body)):
            split_frames(body[:end], flags)
        else:
            with pytest.raises(RecordCorrupt, match=r"byte \d+: .* needs \d+ bytes, \d+ are left"):
                split_frames(body[:end], flags)


@pytest.mark.parametrize("size", [0xFEFEFEFE, 1 << 30, 2**64 - 1])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(RecordCorrupt, match=f"byte 0: a record of {size} bytes is not possible"):
        split_frames(word(size) + b"x", (False, False, False, False))


@given(st.binary(max_size=200), st.sampled_from(FLAGS))
def test_garbage_is_refused_or_read_but_never_worse(body: bytes, flags: FrameFlags) -> None:
    try:
        records = split_frames(body, flags)
    except RecordCorrupt:
        return
    assert sum(map(len, records)) <= len(body)


# --- settings ---


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"servers": ""}, "must be named"),
        ({"topics": []}, "must be named"),
        ({"topics": ["a", ""]}, "must be named"),
        ({"group": ""}, "must be named"),
        (
            {"start": "oldest"},
            "start must be 'earliest', 'latest', 'committed' or a unix time in seconds, got 'oldest'",
        ),
        ({"start": True}, "start must be"),
        ({"start": -5.0}, "start must be"),
        ({"start": 1_700_000_000_000}, "start must be"),
        ({"framing": (True, False)}, "framing must be four flags"),
        ({"poll_records": -1}, "poll_records must be above 0"),
        ({"max_wait_s": 0}, "max_wait_s must be above 0"),
        ({"idle_end_s": -1}, "idle_end_s must not be negative"),
        ({"max_outage_s": -1}, "max_outage_s must not be negative"),
        ({"on_corrupt": "ignore"}, "on_corrupt must be 'raise' or 'skip', got 'ignore'"),
        ({"config": {"group.id": "x"}}, "config must not hold group.id"),
        ({"config": {"enable.auto.commit": True}}, "config must not hold enable.auto.commit"),
        (
            {"config": {"no.such.setting": 1}},
            'config is refused by librdkafka: No such configuration property: "no.such',
        ),
    ],
)
def test_wrong_settings_are_told(changed: dict[str, Any], text: str) -> None:
    settings = {"servers": "localhost:1", "topics": "t", "group": "g", "record": "example", **changed}
    with pytest.raises(ConfigError, match=text):
        KafkaSource(**settings)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ConfigError, match=r"pip install 'monolith\[kafka\]'"):
        KafkaSource("localhost:1", "t", "g", "example")


def test_a_closed_source_is_at_its_end() -> None:
    source = KafkaSource(["localhost:1", "localhost:2"], "t", "g", "example")
    source.committed({"t": {"0": 5}})
    source.close()
    source.close()
    assert source.read() is None
    assert source.position() == {}
    assert source.lag() == {}


# --- places ---


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


def places(partition: FakePartition) -> StartPlaces:
    return StartPlaces(confluent_kafka, partition, lambda: partition, 1.0)


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
    start = places(partition).at(float(time_s), ("t", 0))
    assert [message for message in messages if message.offset() >= start] == [
        message for message in messages if message.timestamp()[1] >= time_s * 1000
    ]
    assert 0 <= start <= partition.high
    assert partition.polls <= 1 + (partition.high + 1).bit_length()
    assert partition.is_closed == (partition.polls > 0)


def test_messages_without_times_are_told() -> None:
    partition = FakePartition([FakeMessage(0, -1, kind=0)], 1)
    with pytest.raises(ConfigError, match="messages of topic 't' carry no times"):
        places(partition).at(5.0, ("t", 0))


def test_an_offset_that_is_not_there_is_told() -> None:
    partition = FakePartition([], 7)
    assert places(partition).checked(("t", 0), 7) == 7
    with pytest.raises(DataError, match=r"kafka t\[0\]: offset 8 is gone, the broker has 0 to 7"):
        places(partition).checked(("t", 0), 8)


@pytest.mark.parametrize("start", ["earliest", "latest", "committed", 0, 1_700_000_000.5])
def test_starts(start: Any) -> None:
    assert checked_start(start) == start


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


def test_a_connection_that_was_only_idle_is_no_outage() -> None:
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

"""Records become events or dead letters; rows become Examples that the readers of records parse."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.records.convert import examples_to_batch
from monolith.data.records.line_id import LineIdFields
from monolith.data.records.messages import SHARED, STANDARD, with_line_id
from monolith.stream import (
    INVALID,
    Action,
    DeadLetter,
    EventParser,
    Impression,
    JoinedRecord,
    JoinSettings,
    RecordJoiner,
    RecordPlace,
    ReferenceJoiner,
    Row,
    RowAssembler,
    WatermarkTracker,
)
from monolith.stream.line_id import MESSAGES

PLACE = RecordPlace("events", 3, 42)
SETTINGS = JoinSettings(future_ms=300, max_record_bytes=4096)


def example(**line_id: Any) -> Any:
    fields = {"request_key": b"r1", "item_id": 7, "event_time_ms": 5_000} | line_id
    row: Any = MESSAGES.Example()
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(row.line_id, name).extend(value)
        elif value is not None:
            setattr(row.line_id, name, value)
    return row


def impression(**line_id: Any) -> Any:
    row = example(**line_id)
    row.named_feature.add(name="user").feature.fid_v2_list.value.append(11)
    return row


def parse(value: Any, **header: Any) -> list[Impression | Action] | DeadLetter:
    payload = value if isinstance(value, bytes) else value.SerializeToString()
    return EventParser(SETTINGS).parse(payload, PLACE, **header)


def parse_json(**record: Any) -> list[Impression | Action] | DeadLetter:
    return parse(json.dumps({"kind": "action", "key": "r1", "item": 7, "time_ms": 5, "actions": [1]} | record).encode())


# --- events -----------------------------------------------------------------------------------------------------------


def test_an_example_is_an_impression_with_its_features() -> None:
    row = impression(event_id=9)
    expected = Impression(5_000, b"r1", 7, row.SerializeToString(), 9, 6_000)
    assert parse(row, ingest_time_ms=6_000) == [expected]


def test_several_codes_are_several_actions() -> None:
    assert parse(example(event_kind=1, actions=[2, 1])) == [Action(5_000, b"r1", 7, 1), Action(5_000, b"r1", 7, 2)]


def test_an_instance_becomes_an_example() -> None:
    row: Any = MESSAGES.Instance()
    row.line_id.CopyFrom(example().line_id)
    row.feature.add(name="user").fid.append(11)
    events = EventParser(SETTINGS, "instance").parse(row.SerializeToString(), PLACE)
    assert isinstance(events, list)
    (event,) = events
    assert isinstance(event, Impression)
    payload = MESSAGES.Example.FromString(event.payload)
    assert (payload.named_feature[0].name, list(payload.named_feature[0].feature.fid_v2_list.value)) == ("user", [11])


def test_a_batch_is_one_impression_per_row_with_the_shared_columns() -> None:
    batch = examples_to_batch([impression(item_id=7), impression(item_id=8)])
    column = next(column for column in batch.named_feature_list if column.name == "user")
    column.type = SHARED
    del column.feature[1:]
    events = EventParser(SETTINGS, "example_batch").parse(batch.SerializeToString(), PLACE)
    assert isinstance(events, list)
    assert [event.item for event in events] == [7, 8]
    for event in events:
        assert isinstance(event, Impression)
        assert MESSAGES.Example.FromString(event.payload).named_feature[0].feature.fid_v2_list.value == [11]


def test_the_header_of_a_record_replaces_absent_fields() -> None:
    row = example(request_key=None, event_time_ms=None, event_kind=1, actions=[1])
    assert parse(row, key=b"r2", time_ms=77) == [Action(77, b"r2", 7, 1)]
    row.line_id.req_time = 3
    assert parse(row, key=b"r2", time_ms=77) == [Action(3_000, b"r2", 7, 1)]


def test_the_line_id_wins_over_a_different_header_and_is_counted() -> None:
    parser = EventParser(SETTINGS)
    value = example(event_kind=1, actions=[1]).SerializeToString()
    for key, time_ms in ((b"r1", 5_000), (b"other", 5_000), (b"r1", 1)):
        assert parser.parse(value, PLACE, key=key, time_ms=time_ms) == [Action(5_000, b"r1", 7, 1)]
    assert parser.mismatches == 2


def test_json_gives_the_same_events_as_messages() -> None:
    assert parse_json(actions=[1, 2]) == [Action(5, b"r1", 7, 1), Action(5, b"r1", 7, 2)]
    assert parse_json(key="base64:" + base64.b64encode(b"\x00\xff").decode()) == [Action(5, b"\x00\xff", 7, 1)]
    features = {"age": 3, "price": [1.5, 2], "city": "Rome", "user": {"fid_v2_list": [11]}}
    events = parse_json(kind="impression", actions=[], uid=4, id=12, features=features)
    assert isinstance(events, list)
    assert isinstance(events[0], Impression)
    assert (events[0].item, events[0].event_id) == (7, 12)
    row: Any = MESSAGES.Example.FromString(events[0].payload)
    values = {named.name: getattr(named.feature, named.feature.WhichOneof("type")).value for named in row.named_feature}
    assert values == {"age": [3], "price": [1.5, 2.0], "city": [b"Rome"], "user": [11]}
    assert row.line_id.uid == 4


# --- dead letters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "header", "reason"),
    [
        (b"\xff\xff", {}, "not_parsed"),
        (b"{", {}, "not_parsed"),
        (b'{"kind":"\xff"}', {}, "not_parsed"),
        (b'{"kind":"view"}', {}, "bad_kind"),
        (example(event_kind=2), {}, "bad_kind"),
        (impression(actions=[1]), {}, "bad_kind"),
        (example(request_key=None), {}, "no_key"),
        (example(request_key=b"k" * 257), {}, "key_too_long"),
        (example(item_id=None), {}, "no_item"),
        (example(event_time_ms=None), {}, "no_time"),
        (example(event_time_ms=None, req_time=1 << 60), {}, "from_future"),
        (example(event_kind=1), {}, "no_action"),
        (example(event_kind=1, actions=[-1]), {}, "no_action"),
        (example(event_time_ms=401), {"ingest_time_ms": 100}, "from_future"),
        (b"\x00" * 4097, {}, "too_large"),
    ],
)
def test_a_broken_record_is_a_dead_letter_with_its_reason(value: Any, header: dict[str, Any], reason: str) -> None:
    letter = parse(value, **header)
    assert isinstance(letter, DeadLetter)
    assert letter.reason == reason
    assert letter.detail
    assert letter.value == (value if isinstance(value, bytes) else value.SerializeToString())
    assert json.loads(letter.key) == {"reason": reason, "topic": "events", "partition": 3, "offset": 42}


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("key", 5, "no_key"),
        ("key", "base64:!", "no_key"),
        ("key", "base64:\u00e9", "no_key"),
        ("key", "", "no_key"),
        ("item", "seven", "no_item"),
        ("item", -1, "no_item"),
        ("item", True, "no_item"),
        ("time_ms", 1.5, "no_time"),
        ("actions", 1, "not_parsed"),
        ("actions", [], "no_action"),
        ("actions", [1 << 31], "no_action"),
        ("features", [1], "not_parsed"),
        ("features", {"age": None}, "not_parsed"),
        ("features", {"age": {"nothing": [1]}}, "not_parsed"),
        ("features", {"age": {"SerializeToString": 1}}, "not_parsed"),
        ("features", {"age": [1, "a"]}, "not_parsed"),
        ("features", {"\ud800": 1}, "not_parsed"),
        ("features", {"age": 1 << 70}, "not_parsed"),
    ],
)
def test_a_broken_json_field_is_a_dead_letter(field: str, value: object, reason: str) -> None:
    letter = parse_json(**{field: value})
    assert isinstance(letter, DeadLetter)
    assert letter.reason == reason


def test_a_broken_row_refuses_the_whole_batch() -> None:
    parser = EventParser(SETTINGS, "example_batch")
    batch = examples_to_batch([impression(), impression(item_id=None)])
    letter = parser.parse(batch.SerializeToString(), PLACE)
    assert isinstance(letter, DeadLetter)
    assert parser.dead_letters == {"no_item": 1}


@given(st.binary(max_size=64), st.sampled_from(["example", "instance", "example_batch"]))
def test_random_bytes_never_raise(value: bytes, record: Any) -> None:
    EventParser(SETTINGS, record).parse(value, PLACE, key=b"k", time_ms=1)
    EventParser(SETTINGS, record).parse(b"{" + value, PLACE, key=b"k", time_ms=1)


def test_an_unknown_record_kind_raises() -> None:
    with pytest.raises(ConfigError, match="record is 'tf_example'"):
        EventParser(SETTINGS, "tf_example")  # type: ignore[arg-type]


# --- rows -------------------------------------------------------------------------------------------------------------


def assemble(payload: bytes, **fields: Any) -> Any:
    shown = Impression(5_250, b"r1", 7, payload, 0, 6_000)
    values: dict[str, Any] = {"labels": (1.0, INVALID), "actions": (1, 9), "pre_actions": (9,), "emission": 1} | fields
    record = RowAssembler().assemble(Row(impression=shown, **values), join_time_ms=7_000)
    assert (record.key, record.time_ms) == (b"r1", 5_250)
    return record


def test_a_row_has_labels_line_id_and_the_features_as_served() -> None:
    family = with_line_id(LineIdFields.standard().extended({"did": (11, "string")}))
    served: Any = family.Example()
    served.named_feature.add(name="user", id=5).feature.fid_v2_list.value.append(11)
    served.line_id.did = "phone"
    served.line_id.uid = 4
    row: Any = MESSAGES.Example.FromString(assemble(served.SerializeToString(), sample_rate=0.5).value)
    assert list(row.label) == [1.0, np.float32(INVALID)]
    assert (list(row.line_id.actions), list(row.line_id.pre_actions)) == ([1, 9], [9])
    assert (row.line_id.emission, row.line_id.sample_rate, row.line_id.req_time) == (1, 0.5, 5)
    assert (row.line_id.event_time_ms, row.line_id.ingest_time_ms, row.line_id.join_time_ms) == (5_250, 6_000, 7_000)
    assert (row.line_id.request_key, row.line_id.item_id, row.line_id.uid) == (b"r1", 7, 4)
    assert row.named_feature == MESSAGES.Example.FromString(served.SerializeToString()).named_feature
    again: Any = family.Example.FromString(assemble(served.SerializeToString()).value)
    assert again.line_id.did == "phone"


@pytest.mark.parametrize(("served", "weight", "expected"), [(0, 1, 0), (0, -1, -1), (0.5, 1, 0.5), (0.5, -2, -1)])
def test_the_weight_of_a_row_multiplies_that_of_its_impression(served: float, weight: float, expected: float) -> None:
    payload = MESSAGES.Example(instance_weight=served).SerializeToString()
    row = MESSAGES.Example.FromString(assemble(payload, weight=weight).value)
    assert row.instance_weight == expected


def test_a_corrupt_payload_raises() -> None:
    with pytest.raises(RecordCorrupt, match="payload of an impression"):
        assemble(b"\xff\xff")


# --- records in, records out ------------------------------------------------------------------------------------------


def test_records_of_two_topics_become_labelled_examples() -> None:
    settings = JoinSettings(window_ms=10_000, out_of_order_ms=1_000)
    tracker = WatermarkTracker(settings, [0, 1], clock_ms=0)
    joiner = RecordJoiner(ReferenceJoiner(settings), tracker, EventParser(settings))
    output = JoinedRecord()

    def add(topic: str, number: int, offset: int, value: bytes) -> None:
        step = joiner.add(
            value, RecordPlace(topic, 0, offset), ingest_time_ms=100_000, clock_ms=offset, partition=number
        )
        output.rows.extend(step.rows)
        output.dead_letters.extend(step.dead_letters)

    for offset, item in enumerate((7, 8)):
        add("impressions", 0, offset, impression(item_id=item).SerializeToString())
    add("actions", 1, 0, example(event_kind=1, actions=[1], event_time_ms=6_000).SerializeToString())
    add("actions", 1, 1, b"{broken")
    assert output.rows == []
    add("impressions", 0, 2, impression(item_id=9, event_time_ms=60_000).SerializeToString())
    add("actions", 1, 2, example(item_id=9, event_kind=1, actions=[9], event_time_ms=60_500).SerializeToString())
    assert [row.time_ms for row in output.rows] == [5_000, 5_000]
    output.rows.extend(joiner.finish().rows)
    rows: list[Any] = [STANDARD.Example.FromString(row.value) for row in output.rows]
    assert [(row.line_id.item_id, list(row.label), list(row.line_id.actions)) for row in rows] == [
        (7, [1.0], [1]),
        (8, [0.0], []),
        (9, [0.0], [9]),
    ]
    assert [letter.reason for letter in output.dead_letters] == ["not_parsed"]


def test_a_silent_live_stream_closes_its_windows_by_the_clock() -> None:
    settings = JoinSettings(window_ms=10_000, out_of_order_ms=0, idle_ms=5_000)
    tracker = WatermarkTracker(settings, [0], clock_ms=0)
    joiner = RecordJoiner(ReferenceJoiner(settings), tracker, EventParser(settings))
    joiner.add(impression().SerializeToString(), RecordPlace("t", 0, 0), ingest_time_ms=5_000, clock_ms=0)
    tracker.reach_end(0)
    assert joiner.advance(9_999).rows == []
    assert len(joiner.advance(10_000).rows) == 1

"""JSON messages of a stream: fields, types, missing fields, corrupt messages and exact resume."""

from __future__ import annotations

import json
from typing import Any

import pytest

import monolith as mt
from monolith.core.errors import RecordCorrupt, SchemaMismatch
from monolith.data import DenseFeature, Schema, SparseFeature
from monolith.data.sources import queue
from monolith.data.sources.queue import QueueSource

SCHEMA = Schema(sparse=[SparseFeature("genres", 1)], dense=[DenseFeature("n", dtype="int64")], label_features=["click"])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "CHUNK_RECORDS", 3)


def dataset(messages: list[Any], **options: Any) -> mt.data.Dataset:
    def make() -> QueueSource:
        source = QueueSource("example", name="topic")
        source.put([each if isinstance(each, bytes) else json.dumps(each).encode() for each in messages])
        source.end()
        return source

    return mt.data.json_messages(make, **{"schema": SCHEMA, **options})


def rows(count: int) -> list[Any]:
    return [{"n": n, "genres": ["a", "b"][: n % 3], "click": n % 2, "note": {"deep": 1}} for n in range(count)]


def numbers(data: Any) -> list[int]:
    return [int(n) for batch in data for n in batch.dense["n"].reshape(-1)]


def test_fields_become_features_and_labels() -> None:
    [batch] = list(dataset(rows(7)).batch(10))
    assert batch.dense["n"].reshape(-1).tolist() == list(range(7))
    assert batch.label.reshape(-1).tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert batch.ids["genres"].offsets.tolist() == [0, 0, 1, 3, 3, 4, 6, 6]


def test_a_reader_resumes_at_the_exact_message() -> None:
    first = dataset(rows(20)).batch(4)
    iterator = iter(first)
    seen = [next(iterator) for _ in range(3)]
    state = json.loads(json.dumps(first.state()))
    resumed = dataset(rows(20)).batch(4)
    resumed.restore(state)
    assert numbers(seen) + numbers(resumed) == list(range(20))


def test_messages_may_lack_fields_and_new_fields_get_a_type_later() -> None:
    messages = [{"n": 1, "click": 1}] * 3 + [{"n": 2, "click": None, "genres": ["a"]}] + [{}] * 3
    batches = list(dataset(messages).batch(10))
    assert [batch.size for batch in batches] == [7]
    assert batches[0].ids["genres"].offsets.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert batches[0].label_mask.reshape(-1).tolist() == [True] * 3 + [False] * 4


def test_a_value_of_another_type_is_an_error_with_the_offset() -> None:
    with pytest.raises(SchemaMismatch, match=r"topic, offset 3: column 'n': value is '\"seven\"', .*column_types"):
        list(dataset([*rows(3), {"n": "seven", "click": 1}]).batch(10))
    text = Schema(sparse=[SparseFeature("n", 1)], label_features=["click"])
    mixed = [{"n": "7", "click": 1}] * 2
    assert len(list(dataset(mixed, schema=text, column_types={"n": "text"}).batch(10))) == 1


@pytest.mark.parametrize("broken", [b"", b"[1]", b'{"n": 1,}', b'{"n"}'])
def test_a_corrupt_message_is_named_or_skipped(broken: bytes) -> None:
    messages = [*rows(4), broken, *rows(2)]
    with pytest.raises(RecordCorrupt, match="topic, offset 4: the message cannot be read as JSON"):
        list(dataset(messages).batch(10))
    assert numbers(dataset(messages, on_corrupt="skip").batch(10)) == [0, 1, 2, 3, 0, 1]


def test_a_field_gives_the_event_time() -> None:
    messages = [{**row, "at": 1_700_000_000_000 + 1000 * row["n"]} for row in rows(3)]
    [batch] = list(dataset(messages, time_column="at").batch(10))
    assert batch.event_time_s.tolist() == [1_700_000_000, 1_700_000_001, 1_700_000_002]


def test_a_schema_is_inferred_from_messages() -> None:
    schema = mt.data.infer_schema(dataset(rows(7), schema=None))
    assert {each.name for each in schema.dense_features} == {"n", "genres", "click"}

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


def test_a_field_that_no_feature_can_have_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    data = dataset(rows(20)).filter_by_feature_value(field_name="n", op="ge", operand=0)
    assert numbers(data.batch(4)) == list(range(20))
    logged = [text for record in caplog.records if (text := record.getMessage()).startswith("column not read")]
    assert logged == ["column not read, no feature can have its type file=topic column=note type=struct<>"]


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


def test_the_label_the_weight_and_fields_of_line_id_are_read_as_from_files() -> None:
    row = {"n": 1, "click": 1, "instance_weight": 3.0, "__UID__": 7, "__REQ_TIME__": 1_700_000_000, "__OTHER__": 5}
    [batch] = list(dataset([row, {"n": 2, "click": 0}]).batch(10))
    assert batch.weight.tolist() == [3, 1]
    assert batch.uid.tolist() == [7, 0]
    assert batch.event_time_s.tolist() == [1_700_000_000, 0]
    labels = Schema(dense=["n"], labels=1)
    [batch] = list(dataset([{"n": 1, "__LABEL__": 1}, {"n": 2, "__LABEL__": 0}], schema=labels).batch(10))
    assert batch.label.tolist() == [[1], [0]]
    assert batch.label_mask.all()
    timed = [{"n": 1, "click": 1, "__REQ_TIME__": 5, "at": 1_700_000_000}]
    [batch] = list(dataset(timed, time_column="at").batch(10))
    assert batch.event_time_s.tolist() == [1_700_000_000], "the field that the caller names comes first"


def test_a_feature_is_found_by_its_other_names() -> None:
    by_slot = Schema(sparse=["slot_3"], label_features=["click"])
    [batch] = list(dataset([{"fc_slot_3": 5, "click": 1}], schema=by_slot).batch(10))
    assert len(batch.ids["slot_3"].values) == 1


@pytest.mark.parametrize("name", ["größe", "a/b", "<n>"])
@pytest.mark.parametrize("escape", ["{:04x}", "{:04X}"])
def test_a_name_of_a_field_may_be_escaped(name: str, escape: str) -> None:
    spelled = "".join(each if each.isascii() and each.isalpha() else "\\u" + escape.format(ord(each)) for each in name)
    schema = Schema(dense=[name], label_features=["click"])
    messages = [f'{{"{spelled}": {n}.5, "click": 1}}'.encode() for n in range(4)]
    [batch] = list(dataset([*rows(3), *messages], schema=schema).batch(10))
    assert batch.dense[name][:, 0].tolist() == [0, 0, 0, 0.5, 1.5, 2.5, 3.5]


def test_messages_may_lack_fields_behind_a_transform() -> None:
    messages = [{"n": 1, "click": 1}] * 3 + [{"click": 1}] * 3
    [batch] = list(dataset(messages).filter_by_label(thresholds=[0.5]).batch(10))
    assert (batch.size, batch.ids["genres"].tolist()) == (6, [[]] * 6)

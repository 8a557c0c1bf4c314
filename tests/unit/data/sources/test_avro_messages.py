"""Avro messages of a stream: a schema file, a schema registry over HTTP, changed schemas, corrupt messages."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import monolith as mt
from monolith.core.errors import ConfigError, DataError, RecordCorrupt, SchemaMismatch
from monolith.data import DenseFeature, Schema, SparseFeature
from monolith.data.sources.queue import QueueSource

fastavro = pytest.importorskip("fastavro")

CLICK = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "user", "type": "long"},
        {"name": "genres", "type": {"type": "array", "items": "string"}},
        {"name": "price", "type": ["null", "double"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["view", "buy"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "page", "type": {"type": "map", "values": "string"}},
        {"name": "click", "type": "boolean"},
    ],
}
OLDER = {**CLICK, "fields": [field for field in CLICK["fields"] if field["name"] != "price"]}
SPARSE = [SparseFeature("user", 1), SparseFeature("genres", 2), SparseFeature("kind", 3)]
SCHEMA = Schema(sparse=SPARSE, dense=[DenseFeature("price", default=-1)], label_features=["click"])


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "user": 2**60 + n,
            "genres": ["a", "b"][: n % 3],
            "price": None if n % 2 else n / 4,
            "kind": "buy" if n % 2 else "view",
            "at": 1_700_000_000_000 + 1000 * n,
            "page": {"url": "x"},
            "click": n % 2 == 0,
        }
        for n in range(count)
    ]


def encode(row: dict[str, Any], schema: dict[str, Any] = CLICK, header: bytes = b"") -> bytes:
    stream = io.BytesIO(header)
    stream.seek(len(header))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def dataset(messages: list[bytes], **options: Any) -> mt.data.Dataset:
    def make() -> QueueSource:
        source = QueueSource("example", name="topic")
        source.put(messages)
        source.end()
        return source

    return mt.data.avro_messages(make, **{"schema": SCHEMA, "time_column": "at", **options})


@pytest.fixture
def schema_file(tmp_path: Path) -> Path:
    path = tmp_path / "click.avsc"
    path.write_text(json.dumps(CLICK))
    return path


@pytest.fixture
def registry() -> Iterator[tuple[str, list[str]]]:
    """Serve schema 7 (today's) and 3 (the older one); yield the address and the list of requests."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            schema = {"/schemas/ids/7": CLICK, "/schemas/ids/3": OLDER}.get(self.path)
            self.send_response(404 if schema is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"schema": json.dumps(schema)}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/", requests
    server.shutdown()
    thread.join(10)
    server.server_close()


def check(batch: Any, count: int) -> None:
    expected = rows(count)
    assert batch.ids["user"].values.tolist() == [row["user"] for row in expected]
    assert batch.ids["genres"].offsets.tolist()[-1] == sum(len(row["genres"]) for row in expected)
    assert batch.label.reshape(-1).tolist() == [float(row["click"]) for row in expected]
    assert batch.event_time_s.tolist() == [row["at"] // 1000 for row in expected]


def test_bare_messages_follow_the_schema_of_the_file(schema_file: Path) -> None:
    [batch] = dataset([encode(row) for row in rows(9)], avro_schema=schema_file).batch(20)
    check(batch, 9)
    assert batch.dense["price"].reshape(-1).tolist() == [-1 if n % 2 else n / 4 for n in range(9)]


def test_messages_may_lack_fields_behind_a_transform(schema_file: Path) -> None:
    wider = Schema(sparse=SPARSE, dense=["newer"], label_features=["click"])
    data = dataset([encode(row) for row in rows(4)], avro_schema=schema_file, schema=wider)
    [batch] = data.filter_by_label(thresholds=[-1]).batch(20)
    assert batch.dense["newer"].tolist() == [[0]] * 4


def test_messages_name_their_schema_in_the_registry(registry: tuple[str, list[str]]) -> None:
    header = b"\x00" + (7).to_bytes(4, "big")
    [batch] = dataset([encode(row, header=header) for row in rows(9)], registry=registry[0]).batch(20)
    check(batch, 9)
    assert registry[1] == ["/schemas/ids/7"], "a schema is fetched once"


def test_older_messages_are_converted_to_the_schema_of_the_file(
    registry: tuple[str, list[str]], schema_file: Path
) -> None:
    old = [encode(row, OLDER, b"\x00" + (3).to_bytes(4, "big")) for row in rows(3)]
    new = [encode(row, CLICK, b"\x00" + (7).to_bytes(4, "big")) for row in rows(3)]
    [batch] = dataset([*old, *new], registry=registry[0], avro_schema=schema_file).batch(20)
    assert batch.dense["price"].reshape(-1).tolist() == [-1, -1, -1, 0.0, -1, 0.5]
    [batch] = dataset([*old, *new], registry=registry[0]).batch(20)  # without it, older messages lack the field
    assert batch.dense["price"].reshape(-1).tolist() == [-1, -1, -1, 0.0, -1, 0.5]


@pytest.mark.parametrize("broken", [b"", b"\x01\x02", encode(rows(1)[0]) + b"x", b"\x00" * 3, b"\xff" * 40])
def test_a_corrupt_message_is_named_or_skipped(schema_file: Path, broken: bytes) -> None:
    messages = [*map(encode, rows(4)), broken]
    with pytest.raises(RecordCorrupt, match="topic, offset 4: the message cannot be read as Avro"):
        list(dataset(messages, avro_schema=schema_file).batch(10))
    [batch] = dataset(messages, avro_schema=schema_file, on_corrupt="skip").batch(10)
    assert batch.size == 4


def test_an_unknown_schema_is_a_corrupt_message_and_a_lost_registry_an_error(registry: tuple[str, list[str]]) -> None:
    unknown = [encode(rows(1)[0], header=b"\x00" + (9).to_bytes(4, "big"))]
    with pytest.raises(RecordCorrupt, match="its schema 9 is not in the registry"):
        list(dataset(unknown, registry=registry[0]).batch(10))
    with pytest.raises(DataError, match=r"registry cannot be read at http://127\.0\.0\.1:1/schemas/ids/9"):
        list(dataset(unknown, registry="http://127.0.0.1:1").batch(10))


def test_a_field_that_changes_its_type_is_refused(schema_file: Path, registry: tuple[str, list[str]]) -> None:
    from monolith.data.sources.avro_messages import AvroMessagesSource, AvroSchemas

    source = AvroMessagesSource(QueueSource("example", name="topic"), AvroSchemas(str(schema_file)))
    source._types = {"user": "text"}
    source._messages.put([encode(rows(1)[0])])  # type: ignore[attr-defined]
    with pytest.raises(SchemaMismatch, match="field 'user' has type int64 in a newer schema, expected text"):
        source.read()


def test_settings_of_avro_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_text('"long"')
    (tmp_path / "b.avsc").write_text("{")
    for options, text in (
        ({}, "avro_schema and registry are both missing"),
        ({"registry": "registry:8081"}, "registry is 'registry:8081', expected an address"),
        ({"avro_schema": tmp_path / "a.avsc"}, "expected a record with a field per feature"),
        ({"avro_schema": tmp_path / "b.avsc"}, "is not an Avro schema"),
    ):
        with pytest.raises(ConfigError, match=text):
            dataset([], **options)
    with pytest.raises(DataError, match="cannot be read"):
        dataset([], avro_schema=tmp_path / "none.avsc")


def test_a_schema_is_inferred_from_avro_messages(schema_file: Path) -> None:
    options: dict[str, Any] = {"avro_schema": schema_file, "schema": None, "exclude": ["page"]}
    schema = mt.data.infer_schema(dataset([encode(row) for row in rows(7)], **options))
    kinds = {each.name: each.dtype for each in schema.dense_features}
    assert kinds == {"user": "int64", "genres": "bytes", "price": "float32", "kind": "bytes", "click": "int64"}

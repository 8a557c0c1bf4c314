"""``AvroMessagesSource``: reads Avro messages, such as those of a Kafka topic, as rows of columns.

``AvroSchemas`` knows how messages were written. With a schema registry each message starts with a zero byte and the id
of its schema in four bytes. Without one every message is a bare record of the schema of a file. A schema file besides
the registry is the reader's schema: older and newer messages are converted to it.

Logical types are read as the numbers below them: a time in milliseconds is an integer. Nested records and maps are not
read. Only this module imports fastavro.
"""

from __future__ import annotations

import importlib
import io
import json
import struct
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from monolith import _native
from monolith.core.errors import ConfigError, DataError, SchemaMismatch
from monolith.core.storage import open_file
from monolith.data.sources.arrow_columns import load_pyarrow, native_columns
from monolith.data.sources.base import Source
from monolith.data.sources.column_options import ColumnOptions
from monolith.data.sources.message_rows import MessageRowsSource

__all__ = ["AvroMessagesSource", "AvroSchemas"]

_HEADER_BYTES = 5
_REGISTRY_TIMEOUT_S = 10.0
_CORRUPT = (ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError, struct.error)


def _load_fastavro() -> Any:
    try:
        return importlib.import_module("fastavro")
    except ImportError as error:
        raise ConfigError(
            f"Avro messages need fastavro ({error}); install it with: pip install 'monolith[avro]'"
        ) from error


class AvroSchemas:
    """The schemas of messages, by the registry's id or from a file.

    Args:
        path: File with a schema (``.avsc``): the schema of bare messages, or the reader's schema with a registry.
        registry: Address of a schema registry, such as ``http://registry:8081``.
        timeout_s: Timeout of a request to the registry.

    Raises:
        ConfigError: Neither is given, fastavro is not installed, or the file is not an Avro schema of a record.
        DataError: The file cannot be read.
    """

    def __init__(
        self, path: str | None = None, registry: str | None = None, *, timeout_s: float = _REGISTRY_TIMEOUT_S
    ) -> None:
        if path is None and registry is None:
            raise ConfigError("avro_schema and registry are both missing, expected one of them; name a schema file")
        if registry is not None and not registry.startswith(("http://", "https://")):
            raise ConfigError(f"registry is {registry!r}, expected an address such as 'http://registry:8081'")
        self._avro = _load_fastavro()
        self._registry = None if registry is None else registry.rstrip("/")
        self._timeout_s = timeout_s
        self._file_schema = None if path is None else self._parse(_read(path), path)
        self._by_id: dict[int, Any] = {}

    def decode(self, message: bytes) -> tuple[Mapping[str, Any], Any]:
        """Return the fields of a message, and the schema that they follow.

        Raises:
            DataError: The registry cannot be reached, or has no such schema.
            ValueError: The message is not of its schema; other errors of the codec too.
        """
        writer, body = self._file_schema, message
        if self._registry is not None:
            if len(message) < _HEADER_BYTES or message[0] != 0:
                raise ValueError(f"it starts with {message[:_HEADER_BYTES]!r}, expected a zero byte and a schema id")
            writer = self._schema_of(int.from_bytes(message[1:_HEADER_BYTES], "big"))
            body = message[_HEADER_BYTES:]
        reader = self._file_schema
        stream = io.BytesIO(body)
        fields = self._avro.schemaless_reader(stream, writer, None if reader is writer else reader)
        if behind := len(body) - stream.tell():
            raise ValueError(f"it has {behind} bytes behind its record, expected none")
        return fields, writer if reader is None else reader

    def _schema_of(self, number: int) -> Any:
        if number not in self._by_id:
            url = f"{self._registry}/schemas/ids/{number}"
            try:
                with urllib.request.urlopen(url, timeout=self._timeout_s) as response:
                    answer = json.load(response)
                text = answer["schema"]
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    raise ValueError(f"its schema {number} is not in the registry {self._registry}") from error
                raise DataError(f"registry answers {error.code} for {url}; check the registry") from error
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise DataError(f"registry cannot be read at {url} ({error}); check its address") from error
            self._by_id[number] = self._parse(text, url)
        return self._by_id[number]

    def _parse(self, text: str, source: str) -> Any:
        try:
            schema = self._avro.parse_schema(_plain(json.loads(text)))
        except Exception as error:
            raise ConfigError(f"{source} is not an Avro schema ({error}); correct it") from error
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise ConfigError(f"{source} is a schema of {schema!r}, expected a record with a field per feature")
        return schema


def _read(path: str) -> str:
    try:
        with open_file(path) as file:
            return file.read().decode()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); give the file of an Avro schema") from error


def _plain(schema: Any) -> Any:
    """Return a schema without logical types."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items() if key not in ("logicalType", "default")} | (
            {"default": schema["default"]} if "default" in schema else {}
        )
    return schema


def _arrow_type(schema: Any) -> Any:
    """Return the Arrow type of an Avro type; a struct for types that no feature can have."""
    arrow = load_pyarrow()
    if isinstance(schema, list):
        kinds = [_arrow_type(each) for each in schema if each != "null"]
        if not kinds:
            return arrow.null()
        numbers = (arrow.int64(), arrow.float32(), arrow.float64())
        if len(set(kinds)) > 1 and all(kind in numbers for kind in kinds):
            return arrow.float64()
        return kinds[0] if len(set(kinds)) == 1 else arrow.struct([])
    name: Any = schema.get("type") if isinstance(schema, dict) else schema
    if isinstance(name, dict | list):
        return _arrow_type(name)
    if name == "array":
        return arrow.list_(_arrow_type(schema["items"]))
    singles = {
        "null": arrow.null(),
        "boolean": arrow.bool_(),
        "int": arrow.int64(),
        "long": arrow.int64(),
        "float": arrow.float32(),
        "double": arrow.float64(),
        "string": arrow.string(),
        "enum": arrow.string(),
        "bytes": arrow.binary(),
        "fixed": arrow.binary(),
    }
    return singles.get(name, arrow.struct([]))


class AvroMessagesSource(MessageRowsSource):
    """Rows of Avro messages.

    Args:
        messages: Delivers the messages; a chunk becomes one record of rows.
        schemas: The schemas of the messages.
        options: Fields that are excluded, and the field of the event time.
        skip_corrupt: Skip and count messages that cannot be decoded, instead of raising.
    """

    def __init__(
        self,
        messages: Source,
        schemas: AvroSchemas,
        *,
        options: ColumnOptions | None = None,
        skip_corrupt: bool = False,
    ) -> None:
        super().__init__(messages, options, skip_corrupt=skip_corrupt)
        self._schemas = schemas
        self._types: dict[str, Any] = {}

    @property
    @override
    def _format(self) -> str:
        return "Avro"

    @override
    def _encode(self, messages: _native.Records) -> _native.Records | None:
        rows: list[Mapping[str, Any]] = []
        seen: dict[int, Any] = {}
        for index in range(len(messages)):
            try:
                fields, schema = self._schemas.decode(messages[index])
            except _CORRUPT as error:
                self._refuse(messages, index, str(error) or type(error).__name__)
                continue
            if id(schema) not in seen:
                seen[id(schema)] = schema
                self._merge_types(schema, messages)
            rows.append(fields)
        return self._encode_rows(rows, messages) if rows else None

    def _merge_types(self, schema: Any, messages: _native.Records) -> None:
        """Add the fields of a schema to the known types.

        Raises:
            SchemaMismatch: A field has another type than in an earlier schema.
        """
        for field in schema["fields"]:
            name, kind = field["name"], _arrow_type(field["type"])
            known = self._types.setdefault(name, kind)
            if known != kind:
                raise SchemaMismatch(
                    f"{messages.source}: field {name!r} has type {kind} in a newer schema, expected {known}; give the "
                    "reader's schema: avro_schema"
                )

    def _encode_rows(self, rows: list[Mapping[str, Any]], messages: _native.Records) -> _native.Records:
        arrow = load_pyarrow()
        types = {**self._types, **dict.fromkeys(self._absent(self._types), arrow.null())}
        choices = self._columns.choose(arrow.schema(list(types.items())), messages.source)
        schema = arrow.schema([(name, types[name]) for name in dict.fromkeys(choice.name for choice in choices)])
        batch = arrow.RecordBatch.from_pylist(rows, schema=schema)
        return _native.encode_columns(
            native_columns(batch, choices), 0, batch.num_rows, messages.source, int(messages.offsets[0])
        )

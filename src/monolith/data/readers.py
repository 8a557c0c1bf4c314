"""The functions that return datasets, one per kind of input. The input is opened when the dataset is iterated over.

``sources`` contains the sources; this module checks arguments and expands patterns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias

from monolith.core.errors import ConfigError
from monolith.data.dataset import Dataset
from monolith.data.records.codecs import Compression
from monolith.data.records.framing import Framing
from monolith.data.schema import Schema
from monolith.data.sources.arrow_columns import Columns
from monolith.data.sources.base import RecordKind, Source
from monolith.data.sources.column_options import ColumnOptions
from monolith.data.sources.files import FileSource
from monolith.data.sources.patterns import expand
from monolith.data.sources.stdin import StdinSource
from monolith.data.sources.text_tables import TextType, without_compression
from monolith.data.sources.work_list import WorkList

if TYPE_CHECKING:
    from monolith.data.sources.table_files import TableFormat

__all__ = [
    "TableKind",
    "arrow",
    "avro_messages",
    "csv",
    "event_log",
    "files",
    "frame",
    "from_source",
    "json_lines",
    "json_messages",
    "kafka",
    "parquet",
    "stdin",
    "table_kind",
]

OnCorrupt = Literal["raise", "skip"]
Patterns: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""Paths, URLs, globs and ``@filelist`` names, in a list or separated by commas."""


def from_source(
    make: Callable[[], Source],
    *,
    schema: Schema | None = None,
    seed: int = 0,
    on_corrupt: OnCorrupt = "raise",
    is_stream: bool = False,
) -> Dataset:
    """Return the dataset of a custom source; ``make`` is called once per iteration.

    Args:
        make: Returns a new source; see ``monolith.data.sources.base.Source``.
        schema: The features, labels and fields to read.
        seed: Seed of every random choice.
        on_corrupt: "raise" on a record that cannot be parsed, or "skip" and count it. Corrupt framing always raises:
            later records cannot be found.
        is_stream: Whether more records may follow the end, so that the next training resumes there.
    """
    if on_corrupt not in ("raise", "skip"):
        raise ConfigError(f"on_corrupt is {on_corrupt!r}, expected 'raise' or 'skip'")
    return Dataset(make, schema=schema, seed=seed, skip_corrupt=on_corrupt == "skip", is_stream=is_stream)


def files(
    patterns: Patterns | None = None,
    *,
    record: RecordKind,
    framing: Framing | None = None,
    compression: Compression = "auto",
    schema: Schema | None = None,
    shuffle_buffer: int = 0,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    interleave: int = 1,
    work_list: WorkList | None = None,
    worker: str | None = None,
    on_corrupt: OnCorrupt = "raise",
) -> Dataset:
    """Return a dataset of the records of files.

    >>> ds = files("part-*.pb, @more.txt", record="example_batch", framing=Framing(lagrangex_header=True))

    Args:
        patterns: Paths, URLs, globs and ``@filelist`` names, in a list or separated by commas; see
            ``monolith.data.sources.patterns.expand``. Expanded when an iteration starts.
        record: The message type of the records.
        framing: Header before each record; None = ``Framing()`` (a sort id), or TFRecord for ``tf_example``.
            ``monolith inspect records FILE`` detects the framing of a file.
        compression: Compression of the whole file; ``auto`` detects it from the first bytes, and the name.
        schema: The features, labels and fields to read; ``Dataset.with_schema`` sets it later.
        shuffle_buffer: Rows per shuffled window; the same as ``.shuffle(n)``.
        seed: Seed of every random choice.
        shard: (index, count): this worker's share of the files.
        interleave: Number of files that are read in turn.
        work_list: A list of files shared with other workers, instead of ``patterns``; slow workers claim fewer files.
        worker: This worker's name in the work list.
        on_corrupt: See ``from_source``.

    Raises:
        ConfigError: An argument is invalid. Missing files raise when an iteration starts.
    """
    if (patterns is None) == (work_list is None):
        raise ConfigError("expected patterns or a work_list, and not both; leave one of them out of files()")
    names = patterns if patterns is None or isinstance(patterns, str | os.PathLike) else list(patterns)

    def make() -> Source:
        return FileSource(
            names,
            record=record,
            framing=_default_framing(record) if framing is None else framing,
            compression=compression,
            shard=shard,
            interleave=interleave,
            work_list=work_list,
            worker=worker,
        )

    dataset = from_source(make, schema=schema, seed=seed, on_corrupt=on_corrupt)
    return dataset.shuffle(shuffle_buffer)


def stdin(
    stream: BinaryIO | None = None,
    *,
    record: RecordKind,
    framing: Framing | None = None,
    compression: Compression = "auto",
    schema: Schema | None = None,
    seed: int = 0,
    on_corrupt: OnCorrupt = "raise",
) -> Dataset:
    """Return a dataset of standard input, or of any open binary stream. It can be read once.

    To resume, pass the stream from its beginning; the dataset skips to the position.
    """

    def make() -> Source:
        return StdinSource(
            sys.stdin.buffer if stream is None else stream,
            record=record,
            framing=_default_framing(record) if framing is None else framing,
            compression=compression,
        )

    return from_source(make, schema=schema, seed=seed, on_corrupt=on_corrupt)


def _default_framing(record: RecordKind) -> Framing:
    return Framing.tfrecord() if record == "tf_example" else Framing()


def parquet(
    patterns: Patterns | None = None,
    columns: Columns = None,
    *,
    schema: Schema | None = None,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    batch_rows: int = 2048,
    work_list: WorkList | None = None,
    worker: str | None = None,
    allow_missing: bool | Sequence[str] = (),
    exclude: Sequence[str] = (),
    time_column: str | None = None,
) -> Dataset:
    """Return a dataset of Parquet files, with a column per feature. Needs the extra ``parquet``.

    Columns ``__LABEL__``, ``instance_weight`` and those named like LineId fields in capitals (``__UID__``,
    ``__REQ_TIME__``) fill the labels, the weight and the LineId. Instead of ``patterns``, files may come from a
    ``work_list``, as with ``files``.

    Args:
        patterns: As those of ``files``.
        columns: The columns to read, with or without types; None = those that the schema names.
        schema: The features, labels and fields to read.
        seed: Seed of every random choice.
        shard: (index, count): this worker's share of the files, or of the rows when there are fewer files.
        batch_rows: Rows that are read together.
        work_list: A list of files shared with other workers, instead of ``patterns``.
        worker: This worker's name in the work list.
        allow_missing: Columns of the schema that a file may lack; True = any. Missing columns are logged and counted
            (``Dataset.counts``). Every other missing column raises ``SchemaMismatch``.
        exclude: Columns that are not read.
        time_column: Column of the event time: a timestamp, a unix time in any unit, or text in ISO 8601.
    """
    from monolith.data.sources.parquet import ParquetFormat

    return _tables(
        lambda _: ParquetFormat(),
        patterns,
        columns,
        ColumnOptions.make(allow_missing, exclude, time_column),
        schema=schema,
        seed=seed,
        shard=shard,
        batch_rows=batch_rows,
        work_list=work_list,
        worker=worker,
    )


def csv(
    patterns: Patterns | None = None,
    columns: Columns = None,
    *,
    column_types: Mapping[str, TextType] | None = None,
    delimiter: str | None = None,
    header: Sequence[str] = (),
    schema: Schema | None = None,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    batch_rows: int = 2048,
    work_list: WorkList | None = None,
    worker: str | None = None,
    allow_missing: bool | Sequence[str] = (),
    exclude: Sequence[str] = (),
    time_column: str | None = None,
) -> Dataset:
    """Return a dataset of CSV files, with a header and a column per feature. Needs the extra ``parquet``.

    The first rows of the first file decide the types of columns: integers, reals, truth values or text. A later field
    of another type is an error. Empty fields and ``NA``, ``null``, ``NaN`` and similar words are missing values.
    Further arguments as in ``parquet``; files with the suffix ``.gz``, ``.zst``, ``.bz2`` or ``.lz4`` are compressed.

    Args:
        patterns: As those of ``files``.
        columns: The columns to read, with or without types of features.
        column_types: Types of columns in the files (int, float or text), instead of inferred ones.
        delimiter: Between fields; None = a tab for ``.tsv``, else a comma.
        header: Names of the columns, for files without a header.
        schema: The features, labels and fields to read.
        seed: Seed of every random choice.
        shard: (index, count): this worker's share of the files, or of the rows when there are fewer files.
        batch_rows: Rows that are encoded together.
        work_list: A list of files shared with other workers, instead of ``patterns``; give ``column_types`` with it.
        worker: This worker's name in the work list.
        allow_missing: Columns of the schema that a file may lack; True = any.
        exclude: Columns that are not read.
        time_column: Column of the event time.
    """
    from monolith.data.sources.csv_files import CsvFormat

    return _tables(
        lambda first: CsvFormat(first, column_types, delimiter=delimiter, header=header),
        patterns,
        columns,
        ColumnOptions.make(allow_missing, exclude, time_column),
        schema=schema,
        seed=seed,
        shard=shard,
        batch_rows=batch_rows,
        work_list=work_list,
        worker=worker,
    )


def json_lines(
    patterns: Patterns | None = None,
    columns: Columns = None,
    *,
    column_types: Mapping[str, TextType] | None = None,
    schema: Schema | None = None,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    batch_rows: int = 2048,
    work_list: WorkList | None = None,
    worker: str | None = None,
    allow_missing: bool | Sequence[str] = (),
    exclude: Sequence[str] = (),
    time_column: str | None = None,
) -> Dataset:
    """Return a dataset of files with one JSON object per line, a field per feature. Needs the extra ``parquet``.

    Arguments as in ``csv``.
    """
    from monolith.data.sources.json_files import JsonLinesFormat

    return _tables(
        lambda first: JsonLinesFormat(first, column_types),
        patterns,
        columns,
        ColumnOptions.make(allow_missing, exclude, time_column),
        schema=schema,
        seed=seed,
        shard=shard,
        batch_rows=batch_rows,
        work_list=work_list,
        worker=worker,
    )


def arrow(
    patterns: Patterns | None = None,
    columns: Columns = None,
    *,
    schema: Schema | None = None,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    batch_rows: int = 2048,
    work_list: WorkList | None = None,
    worker: str | None = None,
    allow_missing: bool | Sequence[str] = (),
    exclude: Sequence[str] = (),
    time_column: str | None = None,
) -> Dataset:
    """Return a dataset of Arrow IPC files (Feather) and streams. Needs the extra ``parquet``.

    Arguments as in ``parquet``.
    """
    from monolith.data.sources.arrow_files import ArrowFormat

    return _tables(
        lambda _: ArrowFormat(),
        patterns,
        columns,
        ColumnOptions.make(allow_missing, exclude, time_column),
        schema=schema,
        seed=seed,
        shard=shard,
        batch_rows=batch_rows,
        work_list=work_list,
        worker=worker,
    )


TableKind: TypeAlias = Literal["parquet", "csv", "json_lines", "arrow"]
"""A format of files of columns."""

_TABLE_SUFFIXES: Mapping[str, TableKind] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".json": "json_lines",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}


def table_kind(path: str) -> TableKind | None:
    """Return the format of a file of columns by its name; None for record files.

    >>> table_kind("day.csv.gz"), table_kind("part-0.pb")
    ('csv', None)
    """
    stem = without_compression(path).lower()
    return next((kind for suffix, kind in _TABLE_SUFFIXES.items() if stem.endswith(suffix)), None)


def _tables(
    make_format: Callable[[Callable[[], str]], TableFormat],
    patterns: Patterns | None,
    columns: Columns,
    options: ColumnOptions,
    *,
    schema: Schema | None,
    seed: int,
    shard: tuple[int, int],
    batch_rows: int,
    work_list: WorkList | None,
    worker: str | None,
) -> Dataset:
    """Return a dataset of files of columns; ``make_format`` takes a function that returns the first file."""
    from monolith.data.sources.shared_tables import SharedTablesSource
    from monolith.data.sources.table_files import TableFilesSource

    if (patterns is None) == (work_list is None):
        raise ConfigError("patterns and work_list are both given or both missing, expected one of them")
    if work_list is not None and shard != (0, 1):
        raise ConfigError("shard is set with a work_list, which assigns the files; leave shard out")
    names = patterns if patterns is None or isinstance(patterns, str | os.PathLike) else list(patterns)
    line_fields = None if schema is None else schema.line_fields.native()
    settings: dict[str, Any] = {"line_fields": line_fields, "batch_rows": batch_rows, "options": options}

    def make() -> Source:
        if work_list is not None:
            return SharedTablesSource(
                work_list,
                worker,
                lambda path: TableFilesSource([path], make_format(lambda: path), columns, **settings),
            )
        assert names is not None  # checked above
        paths = expand(names)
        return TableFilesSource(paths, make_format(lambda: paths[0]), columns, shard=shard, **settings)

    return from_source(make, schema=schema, seed=seed)


def frame(
    table: Any,
    columns: Columns = None,
    *,
    schema: Schema | None = None,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    batch_rows: int = 2048,
    allow_missing: bool | Sequence[str] = (),
    exclude: Sequence[str] = (),
    time_column: str | None = None,
) -> Dataset:
    """Return a dataset of a data frame: pandas, polars, pyarrow, or a dict of arrays. Arguments as in ``parquet``."""
    from monolith.data.sources.frame import FrameSource

    line_fields = None if schema is None else schema.line_fields.native()
    options = ColumnOptions.make(allow_missing, exclude, time_column)

    def make() -> Source:
        return FrameSource(table, columns, line_fields=line_fields, shard=shard, batch_rows=batch_rows, options=options)

    return from_source(make, schema=schema, seed=seed)


def json_messages(
    make: Callable[[], Source],
    *,
    column_types: Mapping[str, TextType] | None = None,
    schema: Schema | None = None,
    seed: int = 0,
    on_corrupt: OnCorrupt = "raise",
    exclude: Sequence[str] = (),
    time_column: str | None = None,
) -> Dataset:
    """Return a dataset of messages that are JSON objects; ``make`` returns the source of the messages.

    A field gets its type from ``column_types``, or from its first values. Messages may lack fields.

    Args:
        make: Returns a new source; see ``monolith.data.sources.base.Source``.
        column_types: Types of fields (int, float or text); a list has the type of its values.
        schema: The features, labels and fields to read.
        seed: Seed of every random choice.
        on_corrupt: "raise" on a message that is not a JSON object, or "skip" it.
        exclude: Fields that are not read.
        time_column: Field of the event time.
    """
    from monolith.data.sources.json_messages import JsonMessagesSource

    options = ColumnOptions.make((), exclude, time_column)

    def make_rows() -> Source:
        return JsonMessagesSource(make(), column_types, options=options, skip_corrupt=on_corrupt == "skip")

    return from_source(make_rows, schema=schema, seed=seed, on_corrupt=on_corrupt, is_stream=True)


def avro_messages(
    make: Callable[[], Source],
    *,
    avro_schema: str | os.PathLike[str] | None = None,
    registry: str | None = None,
    schema: Schema | None = None,
    seed: int = 0,
    on_corrupt: OnCorrupt = "raise",
    exclude: Sequence[str] = (),
    time_column: str | None = None,
) -> Dataset:
    """Return a dataset of Avro messages; ``make`` returns the source of the messages. Needs the extra ``avro``.

    With ``registry`` each message starts with a zero byte and the id of its schema in the registry. Without it every
    message is a bare record of ``avro_schema``. With both, messages are converted to ``avro_schema``. Logical types are
    read as the numbers below them; nested records and maps are not read.

    Args:
        make: Returns a new source; see ``monolith.data.sources.base.Source``.
        avro_schema: File with the schema of a record, a field per feature.
        registry: Address of a schema registry, such as ``http://registry:8081``.
        schema: The features, labels and fields to read.
        seed: Seed of every random choice.
        on_corrupt: "raise" on a message that cannot be decoded, or "skip" it.
        exclude: Fields that are not read.
        time_column: Field of the event time.

    Raises:
        ConfigError: Both ``avro_schema`` and ``registry`` are missing, or one is invalid.
    """
    from monolith.data.sources.avro_messages import AvroMessagesSource, AvroSchemas

    options = ColumnOptions.make((), exclude, time_column)
    schemas = AvroSchemas(None if avro_schema is None else os.fspath(avro_schema), registry)

    def make_rows() -> Source:
        return AvroMessagesSource(make(), schemas, options=options, skip_corrupt=on_corrupt == "skip")

    return from_source(make_rows, schema=schema, seed=seed, on_corrupt=on_corrupt, is_stream=True)


def kafka(
    servers: str | Sequence[str],
    topics: str | Sequence[str],
    group: str,
    *,
    record: RecordKind | Literal["json", "avro"],
    start: Literal["earliest", "latest", "committed"] | float = "committed",
    framing: Framing | None = None,
    schema: Schema | None = None,
    seed: int = 0,
    on_corrupt: OnCorrupt = "raise",
    column_types: Mapping[str, TextType] | None = None,
    avro_schema: str | os.PathLike[str] | None = None,
    registry: str | None = None,
    exclude: Sequence[str] = (),
    time_column: str | None = None,
    **options: Any,
) -> Dataset:
    """Return a dataset of Kafka topics. Needs the extra ``kafka``.

    The options are those of ``monolith.data.sources.kafka.source.KafkaSource``. With ``record="json"`` a message is a
    JSON object with a field per feature; ``column_types``, ``exclude`` and ``time_column`` are those of
    ``json_messages``. With ``record="avro"`` a message is an Avro record; ``avro_schema``, ``registry``, ``exclude``
    and ``time_column`` are those of ``avro_messages``.

    ``Dataset.state`` contains the offsets; only ``Dataset.committed`` commits them to the broker.
    """
    from monolith.data.sources.kafka.source import KafkaSource

    kind: RecordKind = "example" if record in ("json", "avro") else record  # type: ignore[assignment]

    def make() -> Source:
        return KafkaSource(servers, topics, group, record=kind, start=start, framing=framing, **options)

    if record == "json":
        return json_messages(
            make,
            column_types=column_types,
            schema=schema,
            seed=seed,
            on_corrupt=on_corrupt,
            exclude=exclude,
            time_column=time_column,
        )
    if record == "avro":
        return avro_messages(
            make,
            avro_schema=avro_schema,
            registry=registry,
            schema=schema,
            seed=seed,
            on_corrupt=on_corrupt,
            exclude=exclude,
            time_column=time_column,
        )
    return from_source(make, schema=schema, seed=seed, on_corrupt=on_corrupt, is_stream=True)


def event_log(
    path: str | os.PathLike[str],
    topic: str,
    *,
    record: RecordKind = "example",
    group: str | None = None,
    start: Literal["earliest", "latest", "committed"] | float | None = None,
    framing: Framing | None = None,
    schema: Schema | None = None,
    seed: int = 0,
    on_corrupt: OnCorrupt = "raise",
    **options: Any,
) -> Dataset:
    """Return a dataset of a topic of the embedded event log; it waits for new records at the end.

    ``Dataset.state`` contains the offsets; only ``Dataset.committed`` saves them for ``group``.

    Args:
        path: Folder of the topics.
        topic: Name of the topic.
        record: The message type of the records.
        group: Consumer group whose position is saved; None = none.
        start: Where to begin without a saved position; None = "committed" with a group, else "earliest".
        framing: None if a message is one bare record; else the framing of the records inside a message.
        schema: The features, labels and fields to read.
        seed: Seed of every random choice.
        on_corrupt: See ``from_source``; "skip" also skips damaged batches.
        **options: Options of ``monolith.data.sources.event_log.source.EventLogSource``.

    Raises:
        ConfigError: An argument is invalid. A missing topic raises when an iteration starts.
    """
    from monolith.data.sources.event_log.source import EventLogSource
    from monolith.data.sources.event_log.topic import Topic

    def make() -> Source:
        return EventLogSource(
            Topic.open(path, topic),
            record=record,
            group=group,
            start=start,
            framing=framing,
            on_corrupt=on_corrupt,
            **options,
        )

    return from_source(make, schema=schema, seed=seed, on_corrupt=on_corrupt, is_stream=True)

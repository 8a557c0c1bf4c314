"""The datasets of a job: record files, files of columns, standard input, Kafka, or a topic of the event log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

from monolith import data
from monolith.core.errors import ConfigError
from monolith.data import Dataset, Framing, Schema
from monolith.data.readers import TableKind, table_kind
from monolith.data.records.detect import detect
from monolith.data.row_estimate import estimate_rows
from monolith.data.sources.base import RecordKind, Source
from monolith.data.sources.kafka.client import read_settings
from monolith.data.sources.kafka.start_offsets import parse_start
from monolith.data.sources.patterns import expand
from monolith.data.sources.text_tables import TextType
from monolith.data.sources.urls import is_stream_url, open_source, parse_url
from monolith.data.sources.work_list import WorkList
from monolith.training.config.job import DataConfig
from monolith.training.hooks.event_stages import with_stamps

__all__ = [
    "WorkListShare",
    "count_epoch_steps",
    "chain_stream",
    "default_shuffle",
    "exclude_features",
    "open_batches",
    "open_rows",
    "open_then",
    "reads_files",
    "reads_stream",
    "wants_second_pass",
]

_SHUFFLED_ROWS = 1_000_000
_SHUFFLED_VALUES = 64_000_000
_FEWEST_SHUFFLED = 16_384
_ROWS_READ_TWICE = range(50_000, 10_000_001)
_ROWS_PER_ID = 40


@dataclass(frozen=True, slots=True)
class WorkListShare:
    """One worker's share of files that several workers claim from one work list."""

    work_list: WorkList
    worker: str
    """The name of this worker in the list."""


def open_rows(
    config: DataConfig,
    patterns: str | None,
    *,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    files: WorkListShare | None = None,
) -> Dataset:
    """Return the rows of files, of ``-`` (standard input), of a stream, or of Kafka when the settings name topics.

    Args:
        config: Record format and framing.
        patterns: Patterns of files, or ``log://PATH/TOPIC``, or ``kafka://SERVERS/TOPIC``; None = Kafka.
        seed: The seed of every random choice.
        shard: (index, count): this worker's share of the files.
        files: The work list to claim files from, instead of ``shard``.

    Raises:
        ConfigError: The settings name no data, or the format of the files cannot be detected.
    """
    is_stream = patterns is None or patterns == "-" or is_stream_url(patterns)
    if files is not None and is_stream:
        raise ConfigError("enable_dynamic_sharding is True, expected files and not a stream; omit it")
    if config.kafka.kafka_topics and patterns is None:
        return _kafka(config, seed)
    if patterns is None:
        raise ConfigError(
            "data is None and kafka_topics is empty; give --data FILES, or --kafka-servers with --kafka-topics"
        )
    if patterns == "-":
        return data.stdin(
            record=_named_record(config), framing=_framing(config), compression=config.compression, seed=seed
        )
    if is_stream_url(patterns):
        return _stream(config, patterns, seed, shard)
    paths = expand(patterns)
    if (kind := _table_kind(config, paths)) is not None:
        return _open_tables(kind, config, patterns, seed, shard, files)
    options: dict[str, Any] = {"compression": config.compression, "seed": seed}
    if files is None:
        options |= {"patterns": patterns, "shard": shard}
    else:
        options |= {"work_list": files.work_list, "worker": files.worker}
    if config.record != "auto":
        return data.files(record=_named_record(config), framing=_framing(config), **options)
    detected = detect(paths[0])
    framing = (
        detected.framing if config.framing.record_framing == "auto" else Framing.parse(config.framing.record_framing)
    )
    if detected.record is None or framing is None:
        raise ConfigError(f"{paths[0]}: {' '.join(detected.evidence)}; give --record and --record-framing")
    return data.files(record=detected.record, framing=framing, **options)


def reads_files(config: DataConfig) -> bool:
    """Return True if the training data is files."""
    return config.data is not None and config.data != "-" and not is_stream_url(config.data)


def reads_stream(config: DataConfig) -> bool:
    """Return True if the training data is a topic of Kafka or of the event log."""
    if config.data is None:
        return bool(config.kafka.kafka_topics)
    return is_stream_url(config.data) or config.kafka.following.then is not None


def _table_kind(config: DataConfig, paths: Sequence[str]) -> TableKind | None:
    """Return the format of files of columns; None for record files.

    Raises:
        ConfigError: The files are of different formats.
    """
    if config.record in get_args(TableKind):
        return cast(TableKind, config.record)
    if config.record != "auto":
        return None
    kinds = {table_kind(path): path for path in paths}
    if len(kinds) > 1:
        some = ", ".join(f"{path!r}" for path in list(kinds.values())[:3])
        raise ConfigError(f"data names files of different formats ({some}), expected one; read one format per job")
    return next(iter(kinds))


def _open_tables(
    kind: TableKind,
    config: DataConfig,
    patterns: str,
    seed: int,
    shard: tuple[int, int],
    files: WorkListShare | None,
) -> Dataset:
    options: dict[str, Any] = {
        "seed": seed,
        "allow_missing": config.columns.allow_missing,
        "exclude": config.columns.exclude,
        "time_column": config.columns.time_column,
    }
    if kind in ("csv", "json_lines"):
        options["column_types"] = config.columns.column_types
    if kind == "csv":
        options |= {"delimiter": config.columns.csv_delimiter, "header": config.columns.csv_header}
    if files is None:
        options |= {"patterns": patterns, "shard": shard}
    else:
        options |= {"work_list": files.work_list, "worker": files.worker}
    make: Callable[..., Dataset] = getattr(data, kind)
    return make(**options)


def exclude_features(schema: Schema, names: Sequence[str]) -> Schema:
    """Return a schema without some features; files of records have them nevertheless."""
    return replace(
        schema,
        sparse=[each for each in schema.sparse_features if each.name not in names],
        dense=[each for each in schema.dense_features if each.name not in names],
    )


def count_epoch_steps(config: DataConfig, workers: int) -> float | None:
    """Return about how many steps one pass over the files takes each worker; None when unknown."""
    if config.data is None or not reads_files(config) or config.kafka.following.then is not None:
        return None
    paths = expand(config.data)
    kind = _table_kind(config, paths)
    rows = None if kind is None else estimate_rows(paths, kind)
    return rows / workers / config.batch_size if rows else None


def default_shuffle(config: DataConfig, schema: Schema, files: WorkListShare | None) -> int:
    """Return the window of shuffled rows of a job without the setting.

    Most files of columns are sorted, by time or by user, and a model learns less from sorted rows. Records, streams and
    rows with event times keep their order, because expiry and progressive validation rely on it. A shuffled reader
    would claim files of a work list far ahead.
    """
    if config.data is None or not reads_files(config) or files is not None or config.columns.time_column is not None:
        return 0
    if _table_kind(config, expand(config.data)) is None:
        return 0
    features = len(schema.sparse_features) + len(schema.dense_features)
    return max(_FEWEST_SHUFFLED, min(_SHUFFLED_ROWS, _SHUFFLED_VALUES // max(1, features)))


def wants_second_pass(rows: int, most_ids: int) -> bool:
    """Return True if a second pass over shuffled rows improves a model, as a rule.

    It does when ids have many rows each, and harms when they have few; docs/guide/benchmarks.md has the experiments.
    Large data is read once, because a pass takes long, and so is data of a quick trial.

    Args:
        rows: Rows of the first pass.
        most_ids: Ids of the largest table.
    """
    return rows in _ROWS_READ_TWICE and rows >= most_ids * _ROWS_PER_ID


def open_batches(
    config: DataConfig,
    rows: Dataset,
    schema: Schema,
    *,
    is_training: bool,
    shuffle_buffer: int = 0,
    then: Dataset | None = None,
) -> Dataset:
    """Return rows as the batches of a job; shuffled and repeated only for training.

    Args:
        config: Batch size and epochs.
        rows: The rows.
        schema: Features and labels of the batches.
        is_training: Whether the batches are for training.
        shuffle_buffer: Rows of a window in which rows are shuffled.
        then: Rows to read after the last epoch, in their order.
    """
    if is_training:
        # Also for one epoch: a position stays valid when the number of epochs changes.
        rows = rows.shuffle(shuffle_buffer).repeat(1 if config.epochs is None else config.epochs or None)
        if then is not None:
            rows = chain_stream(rows, then, config.kafka.following.until_time)
        if rows.is_stream and config.record in ("example", "instance", "example_batch"):
            schema = with_stamps(schema)
    wait_s = config.kafka.batch_wait_s if is_training else None
    return rows.with_schema(schema).batch(config.batch_size, wait_s=wait_s)


def chain_stream(history: Dataset, stream: Dataset, until_time: int | None = None) -> Dataset:
    """Return the rows of a history, then those of a stream, divided at an event time: no row is doubled or lost.

    Args:
        history: Rows of the past; rows from ``until_time`` on are dropped.
        stream: Rows of a stream; rows before ``until_time`` are dropped.
        until_time: Unix seconds of ``LineId.req_time``; None keeps all rows. Rows without an event time always stay.
    """
    if until_time is None:
        return history.then(stream)
    before: Any = {"field_name": "req_time", "operand": until_time, "keep_empty": True}
    return history.filter_by_value(op="lt", **before).then(stream.filter_by_value(op="ge", **before))


def open_then(config: DataConfig, *, seed: int = 0, shard: tuple[int, int] = (0, 1)) -> Dataset | None:
    """Return the rows of the stream that follows the history; None without one."""
    if config.kafka.following.then is None:
        return None
    record = config.record if config.kafka.following.then_record == "auto" else config.kafka.following.then_record
    if record not in (*get_args(RecordKind), "json_lines", "avro"):
        record = "example"
    return _stream(
        replace(config, record=record),
        config.kafka.following.then,
        seed,
        shard,
        start=config.kafka.following.until_time,
    )


def _kafka(config: DataConfig, seed: int) -> Dataset:
    if config.kafka.kafka_servers is None or config.kafka.kafka_group_id is None:
        raise ConfigError("kafka_topics needs kafka_servers and kafka_group_id; give --kafka-servers, --kafka-group-id")
    return data.kafka(
        config.kafka.kafka_servers,
        list(config.kafka.kafka_topics),
        config.kafka.kafka_group_id,
        record=_message_format(config) or _named_record(config),
        avro_schema=config.kafka.avro_schema,
        registry=config.kafka.schema_registry,
        column_types=cast(Mapping[str, TextType], config.columns.column_types),
        exclude=config.columns.exclude,
        time_column=config.columns.time_column,
        start=parse_start(config.kafka.kafka_start),
        framing=_framing(config, is_message=True),
        seed=seed,
        poll_records=config.kafka.kafka_poll_records,
        idle_end_s=config.kafka.kafka_idle_end_s,
        config=None if config.kafka.kafka_config is None else read_settings(config.kafka.kafka_config),
    )


def _stream(
    config: DataConfig,
    url: str,
    seed: int,
    shard: tuple[int, int],
    *,
    start: float | None = None,
) -> Dataset:
    parts = parse_url(url)
    message_format = _message_format(config)
    record: RecordKind = "example" if message_format is not None else _named_record(config)
    framing = _framing(config, is_message=True)
    settings: dict[str, Any] = {
        "group": config.kafka.kafka_group_id,
        "idle_end_s": config.kafka.kafka_idle_end_s,
    }
    if parts.kind == "kafka":
        settings |= {"start": parse_start(config.kafka.kafka_start), "poll_records": config.kafka.kafka_poll_records}
        settings["config"] = None if config.kafka.kafka_config is None else read_settings(config.kafka.kafka_config)
    if start is not None:
        settings["start"] = float(start)

    def make() -> Source:
        return open_source(parts, record, framing=framing, shard=shard, **settings)

    if message_format is None:
        return data.from_source(make, seed=seed, is_stream=True)
    columns = config.columns
    if message_format == "avro":
        return data.avro_messages(
            make,
            avro_schema=config.kafka.avro_schema,
            registry=config.kafka.schema_registry,
            exclude=columns.exclude,
            time_column=columns.time_column,
            seed=seed,
        )
    return data.json_messages(
        make,
        column_types=cast(Mapping[str, TextType], columns.column_types),
        exclude=columns.exclude,
        time_column=columns.time_column,
        seed=seed,
    )


def _message_format(config: DataConfig) -> Literal["json", "avro"] | None:
    """Return the format of messages with a field per feature; None for records."""
    if config.record == "json_lines":
        return "json"
    return "avro" if config.record == "avro" else None


def _named_record(config: DataConfig) -> RecordKind:
    kinds = ", ".join((*get_args(RecordKind), "json_lines", "avro"))
    if config.record == "auto":
        raise ConfigError(f"record is 'auto', and the format of a stream cannot be detected; give --record: {kinds}")
    if config.record not in get_args(RecordKind):
        raise ConfigError(f"record is {config.record!r}, which a stream cannot have; give --record: {kinds}")
    return cast(RecordKind, config.record)


def _framing(config: DataConfig, *, is_message: bool = False) -> Framing:
    """Return the framing of a file or of a message; without settings, a message is one bare record."""
    if config.framing.record_framing != "auto":
        return Framing.parse(config.framing.record_framing)
    if not (config.framing.kafka_dump or config.framing.kafka_dump_prefix or config.framing.lagrangex_header):
        if is_message:
            return Framing.bare()
        if config.record == "tf_example":
            return Framing.tfrecord()
    return Framing(
        sort_id=config.framing.sort_id,
        kafka_dump=config.framing.kafka_dump,
        kafka_dump_prefix=config.framing.kafka_dump_prefix,
        lagrangex_header=config.framing.lagrangex_header,
    )

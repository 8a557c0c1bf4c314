"""The datasets of a job: files, standard input, Kafka, or a topic of the event log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from monolith import data
from monolith.core.errors import ConfigError
from monolith.data import Dataset, Framing, Schema
from monolith.data.records.detect import detect
from monolith.data.sources.base import RecordKind
from monolith.data.sources.kafka.client import read_settings
from monolith.data.sources.kafka.start_offsets import parse_start
from monolith.data.sources.patterns import expand
from monolith.data.sources.urls import is_stream_url, open_source, parse_url
from monolith.data.sources.work_list import WorkList
from monolith.training.config.job import DataConfig

__all__ = ["WorkListShare", "open_batches", "open_rows", "reads_stream"]


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
    if all(path.endswith(".parquet") for path in paths):
        if files is not None:
            return data.parquet(work_list=files.work_list, worker=files.worker, seed=seed)
        return data.parquet(patterns, seed=seed, shard=shard)
    options: dict[str, Any] = {"compression": config.compression, "seed": seed}
    if files is None:
        options |= {"patterns": patterns, "shard": shard}
    else:
        options |= {"work_list": files.work_list, "worker": files.worker}
    if config.record != "auto":
        return data.files(record=config.record, framing=_framing(config), **options)
    detected = detect(paths[0])
    framing = (
        detected.framing if config.framing.record_framing == "auto" else Framing.parse(config.framing.record_framing)
    )
    if detected.record is None or framing is None:
        raise ConfigError(f"{paths[0]}: {' '.join(detected.evidence)}; give --record and --record-framing")
    return data.files(record=detected.record, framing=framing, **options)


def reads_stream(config: DataConfig) -> bool:
    """Return True if the training data is a topic of Kafka or of the event log."""
    return bool(config.kafka.kafka_topics) if config.data is None else is_stream_url(config.data)


def open_batches(config: DataConfig, rows: Dataset, schema: Schema, *, is_training: bool) -> Dataset:
    """Return rows as the batches of a job; shuffled and repeated only for training."""
    if is_training:
        # Also for one epoch: a position stays valid when the number of epochs changes.
        rows = rows.shuffle(config.shuffle_buffer).repeat(config.epochs or None)
    return rows.with_schema(schema).batch(config.batch_size)


def _kafka(config: DataConfig, seed: int) -> Dataset:
    if config.kafka.kafka_servers is None or config.kafka.kafka_group_id is None:
        raise ConfigError("kafka_topics needs kafka_servers and kafka_group_id; give --kafka-servers, --kafka-group-id")
    return data.kafka(
        config.kafka.kafka_servers,
        list(config.kafka.kafka_topics),
        config.kafka.kafka_group_id,
        record=_named_record(config),
        start=parse_start(config.kafka.kafka_start),
        framing=_framing(config, is_message=True),
        seed=seed,
        poll_records=config.kafka.kafka_poll_records,
        idle_end_s=config.kafka.kafka_idle_end_s,
        config=None if config.kafka.kafka_config is None else read_settings(config.kafka.kafka_config),
    )


def _stream(config: DataConfig, url: str, seed: int, shard: tuple[int, int]) -> Dataset:
    parts = parse_url(url)
    record, framing = _named_record(config), _framing(config, is_message=True)
    settings: dict[str, Any] = {"group": config.kafka.kafka_group_id, "idle_end_s": config.kafka.kafka_idle_end_s}
    if parts.kind == "kafka":
        settings |= {"start": parse_start(config.kafka.kafka_start), "poll_records": config.kafka.kafka_poll_records}
        settings["config"] = None if config.kafka.kafka_config is None else read_settings(config.kafka.kafka_config)
    return data.from_source(lambda: open_source(parts, record, framing=framing, shard=shard, **settings), seed=seed)


def _named_record(config: DataConfig) -> RecordKind:
    if config.record == "auto":
        kinds = ", ".join(get_args(RecordKind))
        raise ConfigError(f"record is 'auto', and the format of a stream cannot be detected; give --record: {kinds}")
    return config.record


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

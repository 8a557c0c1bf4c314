"""A job: a model, its data, how long it trains, and its place in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from monolith.core.config_sections import fill_sections, section, subsection
from monolith.core.errors import ConfigError
from monolith.data.records.framing import Framing
from monolith.data.sources.kafka.start_offsets import parse_start
from monolith.data.sources.text_tables import check_types
from monolith.data.sources.urls import is_stream_url, parse_url
from monolith.training.config._checks import (
    check_bool,
    check_choice,
    check_mapping,
    check_names,
    check_number,
    check_text,
    check_whole,
    label,
)
from monolith.training.config.retired import RETIRED
from monolith.training.config.run import RunConfig

__all__ = ["ColumnsConfig", "DataConfig", "FollowingConfig", "FramingConfig", "JobConfig", "KafkaConfig", "TaskConfig"]

RecordName: TypeAlias = Literal[
    "auto", "instance", "example", "example_batch", "tf_example", "parquet", "csv", "json_lines", "arrow", "avro"
]
CompressionName: TypeAlias = Literal["auto", "none", "snappy", "zstd", "zlib", "gzip"]


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The model, and how long it is trained."""

    task: str | None = None
    """The model: package.module.Class, FILE.py:Class, a registered name, or a ready-made one such as deepfm."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the model, such as {dim: 32}; of a registered task, its params by dotted name."""
    steps: int | None = None
    """Steps to take in this run; None = max_steps, or the end of the data."""
    max_steps: int | None = None
    """Step to stop at, counted over all runs of the model folder; with steps, the nearer limit counts."""
    steps_per_eval: int | None = None
    """Steps between evaluations on eval_data; None = one at the end."""
    eval_steps: int | None = None
    """Batches per evaluation; None = all."""
    more: bool = False
    """Train again on data that a training of the model folder has read to its end."""

    def __post_init__(self) -> None:
        check_text(self, "task")
        check_mapping(self, "task_options")
        check_bool(self, "more")
        check_whole(self, "steps", "max_steps", "steps_per_eval", "eval_steps", at_least=1)


@dataclass(frozen=True, kw_only=True)
class FramingConfig:
    """Framing of records."""

    record_framing: str = "auto"
    """Framing of records: tfrecord, bare, none, or flags such as sort_id,kafka_dump; auto goes by record and flags."""
    sort_id: bool = True
    """Whether records have a sort id in front; ignored where the framing is detected."""
    kafka_dump: bool = False
    """Whether records are dumps of Kafka messages; ignored where the framing is detected."""
    kafka_dump_prefix: bool = False
    """Whether such dumps have a prefix; ignored where the framing is detected."""
    lagrangex_header: bool = False
    """Whether records have a LagrangeX header; ignored where the framing is detected."""

    def __post_init__(self) -> None:
        check_bool(self, "sort_id", "kafka_dump", "kafka_dump_prefix", "lagrangex_header")
        if self.record_framing == "auto":
            return
        check_text(self, "record_framing")
        Framing.parse(self.record_framing)
        for flag in ("kafka_dump", "kafka_dump_prefix", "lagrangex_header"):
            if getattr(self, flag):
                raise ConfigError(
                    f"{label(self, flag)} and record_framing is {self.record_framing!r}, expected one of the two; "
                    f"leave {flag} out, or record_framing"
                )


@dataclass(frozen=True, kw_only=True)
class FollowingConfig:
    """The stream that follows the history."""

    then: str | None = None
    """Stream to read after the end of data, which is then the history: log://PATH/TOPIC or kafka://HOST:PORT/TOPIC."""
    then_record: RecordName = "auto"
    """Message in that stream; auto = record, or example after files of columns."""
    until_time: int | None = None
    """Unix seconds of event time between history and then: history gives the rows before, the stream those from it on.
    None = all rows of both."""

    def __post_init__(self) -> None:
        check_text(self, "then")
        check_choice(self, "then_record", get_args(RecordName))
        check_whole(self, "until_time", at_least=1, at_most=(1 << 32) - 1)
        if self.then is None:
            for name, default in (("until_time", None), ("then_record", "auto")):
                if getattr(self, name) != default:
                    raise ConfigError(f"{label(self, name)} and then is None, expected a stream; give --then")
        elif not is_stream_url(self.then):
            raise ConfigError(f"{label(self, 'then')}, expected log://PATH/TOPIC or kafka://HOST:PORT/TOPIC")
        elif parse_url(self.then).options.get("start") == "latest":
            raise ConfigError(
                f"{label(self, 'then')}, expected a start other than 'latest', which loses events of the time that the "
                "history takes; give until_time, start=earliest or a group"
            )


@dataclass(frozen=True, kw_only=True)
class KafkaConfig:
    """The stream that a job trains on."""

    kafka_servers: str | None = None
    """Brokers (host:port,...) to read the training data from, instead of files."""
    kafka_topics: tuple[str, ...] = ()
    """Topics to read."""
    kafka_group_id: str | None = None
    """Consumer group."""
    kafka_start: str = "committed"
    """Where to start without a saved position: committed, earliest, latest, or a unix time in seconds."""
    kafka_idle_end_s: float | None = None
    """Seconds without a message after which the data ends; None = never."""
    kafka_poll_records: int | None = None
    """Messages fetched together at most; None = 64 for example_batch, else 1024."""
    kafka_config: str | None = None
    """File of librdkafka settings, one name=value per line, such as sasl.* and ssl.* (not on the command line)."""
    batch_wait_s: float | None = None
    """Seconds that the first example of a batch waits for others; a batch is smaller then. None = until full."""
    following: FollowingConfig = subsection(FollowingConfig)
    avro_schema: str | None = None
    """File (.avsc) with the schema of Avro messages, for --record avro; with a registry: the schema to read them as."""
    schema_registry: str | None = None
    """Address of a schema registry, for --record avro; messages start with the id of their schema."""

    def __post_init__(self) -> None:
        check_text(self, "kafka_servers", "kafka_group_id", "kafka_config", "kafka_start")
        check_text(self, "avro_schema", "schema_registry")
        check_names(self, "kafka_topics")
        check_number(self, "kafka_idle_end_s", "batch_wait_s", at_least=0)
        check_whole(self, "kafka_poll_records", at_least=1, at_most=1_000_000)
        try:
            parse_start(self.kafka_start)
        except ConfigError as error:
            raise ConfigError(f"kafka_{error}") from None


@dataclass(frozen=True, kw_only=True)
class ColumnsConfig:
    """The columns of files of columns."""

    label_features: tuple[str, ...] = ()
    """Columns that hold the labels, in order; none = the label of the record."""
    allow_missing: tuple[str, ...] = ()
    """Columns of the model that files may lack, with a warning; '*' = any. Other missing columns are an error."""
    exclude: tuple[str, ...] = ()
    """Columns that are not read as features."""
    keys: tuple[str, ...] = ()
    """Columns that predict writes beside the scores; training records them in the model folder."""
    time_column: str | None = None
    """Column of the event time: a timestamp, a unix time in any unit, or text in ISO 8601."""
    column_types: Mapping[str, str] = field(default_factory=dict)
    """Types of columns of CSV and JSON lines, such as {zip: text, price: float}; others by the first rows."""
    csv_delimiter: str | None = None
    """Delimiter of CSV files; none = a tab for *.tsv, else a comma."""
    csv_header: tuple[str, ...] = ()
    """Names of the columns of CSV files without a header."""

    def __post_init__(self) -> None:
        check_text(self, "time_column")
        for names in ("label_features", "allow_missing", "exclude", "keys", "csv_header"):
            check_names(self, names)
        check_mapping(self, "column_types")
        check_types(self.column_types)
        if self.csv_delimiter is not None and len(self.csv_delimiter) != 1:
            raise ConfigError(f"{label(self, 'csv_delimiter')}, expected one character")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data of a job, and how it becomes batches."""

    data: str | None = None
    """Files to read: patterns and lists such as 'part-*.pb, @list.txt'; *.parquet, *.csv, *.jsonl, *.arrow; '-' is
    standard input; or a stream: log://PATH/TOPIC?group=NAME, kafka://HOST:PORT/TOPIC?group=NAME."""
    eval_data: str | None = None
    """Files to evaluate on, of the same format."""
    record: RecordName = "auto"
    """Message in the files, or format of files of columns; auto looks at the name and the content of the first one."""
    compression: CompressionName = "auto"
    """Compression of the files; auto goes by their names."""
    batch_size: int = 512
    """Examples per step."""
    epochs: int | None = None
    """Passes over the data; 0 = without end. None = one; small shuffled files whose ids have many rows get a second."""
    shuffle_buffer: int | None = None
    """Rows of a window in which rows are shuffled; 0 = in the order of the data. None = up to 1,000,000 for files of
    columns, 0 for records, streams, data with time_column and enable_dynamic_sharding."""
    enable_dynamic_sharding: bool = False
    """Workers take files from one list, so that slow workers take fewer; False = every n-th file each."""
    resume_data: bool = True
    """Resume at the data position of the last checkpoint; False starts at the beginning of the data."""
    columns: ColumnsConfig = subsection(ColumnsConfig)
    framing: FramingConfig = subsection(FramingConfig)
    kafka: KafkaConfig = subsection(KafkaConfig)

    def __post_init__(self) -> None:
        check_text(self, "data", "eval_data")
        check_choice(self, "record", get_args(RecordName))
        check_choice(self, "compression", get_args(CompressionName))
        check_bool(self, "resume_data", "enable_dynamic_sharding")
        check_whole(self, "batch_size", at_least=1)
        check_whole(self, "epochs", "shuffle_buffer")
        self._check_wait()
        self._check_then()

    def _check_wait(self) -> None:
        kafka, data = self.kafka, self.data or ""
        is_stream = kafka.kafka_servers or kafka.following.then or data == "-" or is_stream_url(data)
        if kafka.batch_wait_s is not None and not is_stream:
            raise ConfigError(
                f"batch_wait_s is {kafka.batch_wait_s} and {label(self, 'data')}, expected a stream; leave it out"
            )

    def _check_then(self) -> None:
        then = self.kafka.following.then
        if then is None:
            return
        if self.data is None or self.data == "-":
            raise ConfigError(f"{label(self, 'data')} and then is {then!r}, expected the files of the history")
        if self.epochs == 0:
            raise ConfigError(f"epochs is 0 and then is {then!r}: the history never ends; give a number of epochs")
        if self.enable_dynamic_sharding:
            raise ConfigError(
                f"enable_dynamic_sharding is True and then is {then!r}, expected every n-th file for each worker; "
                "leave it out"
            )


@dataclass(frozen=True, kw_only=True, init=False)
class JobConfig:
    """Every setting of ``monolith evaluate`` and ``predict``."""

    run: RunConfig = section(RunConfig)
    model: TaskConfig = section(TaskConfig, name="task")
    input: DataConfig = section(DataConfig, name="data")

    def __init__(self, **settings: Any) -> None:
        fill_sections(self, settings, RETIRED)
        self.__post_init__()

    def __post_init__(self) -> None:
        self.run.check_index()

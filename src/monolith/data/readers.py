"""The functions that return datasets, one per kind of input. The input is opened when the dataset is iterated over.

``sources`` contains the sources; this module checks arguments and expands patterns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, Literal

from monolith.core.errors import ConfigError
from monolith.data.dataset import Dataset
from monolith.data.records.codecs import Compression
from monolith.data.records.framing import Framing
from monolith.data.schema import Schema
from monolith.data.sources.arrow_columns import Columns
from monolith.data.sources.base import RecordKind, Source
from monolith.data.sources.files import FileSource
from monolith.data.sources.patterns import expand
from monolith.data.sources.stdin import StdinSource
from monolith.data.sources.work_list import WorkList

__all__ = ["event_log", "files", "frame", "from_source", "kafka", "parquet", "stdin"]

OnCorrupt = Literal["raise", "skip"]


def from_source(
    make: Callable[[], Source], *, schema: Schema | None = None, seed: int = 0, on_corrupt: OnCorrupt = "raise"
) -> Dataset:
    """Return the dataset of a custom source; ``make`` is called once per iteration.

    Args:
        make: Returns a new source; see ``monolith.data.sources.base.Source``.
        schema: The features, labels and fields to read.
        seed: Seed of every random choice.
        on_corrupt: "raise" on a record that cannot be parsed, or "skip" and count it. Corrupt framing always raises:
            later records cannot be found.
    """
    if on_corrupt not in ("raise", "skip"):
        raise ConfigError(f"on_corrupt is {on_corrupt!r}, expected 'raise' or 'skip'")
    return Dataset(make, schema=schema, seed=seed, skip_corrupt=on_corrupt == "skip")


def files(
    patterns: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
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
    patterns: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
    columns: Columns = None,
    *,
    schema: Schema | None = None,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    batch_rows: int = 2048,
    work_list: WorkList | None = None,
    worker: str | None = None,
) -> Dataset:
    """Return a dataset of Parquet files, with a column per feature. Needs the extra ``parquet``.

    Columns ``__LABEL__``, ``instance_weight`` and those named like LineId fields in capitals (``__UID__``,
    ``__REQ_TIME__``) fill the labels, the weight and the LineId. Instead of ``patterns``, files may come from a
    ``work_list``, as with ``files``.
    """
    from monolith.core.storage import open_file
    from monolith.data.sources.parquet import ParquetSource
    from monolith.data.sources.shared_parquet import SharedParquetSource

    if (patterns is None) == (work_list is None):
        raise ConfigError("expected patterns or a work_list, and not both; leave one of them out of parquet()")
    if work_list is not None and shard != (0, 1):
        raise ConfigError("shard is set with a work_list, which assigns the files; leave shard out")
    names = patterns if patterns is None or isinstance(patterns, str | os.PathLike) else list(patterns)
    line_fields = None if schema is None else schema.line_fields.native()
    options: dict[str, Any] = {"line_fields": line_fields, "batch_rows": batch_rows, "open_file": open_file}

    def make() -> Source:
        if work_list is not None:
            return SharedParquetSource(work_list, worker, lambda path: ParquetSource([path], columns, **options))
        assert names is not None  # checked above
        return ParquetSource(expand(names), columns, shard=shard, **options)

    return from_source(make, schema=schema, seed=seed)


def frame(
    table: Any,
    columns: Columns = None,
    *,
    schema: Schema | None = None,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    batch_rows: int = 2048,
) -> Dataset:
    """Return a dataset of a data frame: pandas, polars, pyarrow, or a dict of arrays. Columns as in ``parquet``."""
    from monolith.data.sources.frame import FrameSource

    line_fields = None if schema is None else schema.line_fields.native()

    def make() -> Source:
        return FrameSource(table, columns, line_fields=line_fields, shard=shard, batch_rows=batch_rows)

    return from_source(make, schema=schema, seed=seed)


def kafka(
    servers: str | Sequence[str],
    topics: str | Sequence[str],
    group: str,
    *,
    record: RecordKind,
    start: Literal["earliest", "latest", "committed"] | float = "committed",
    framing: Framing | None = None,
    schema: Schema | None = None,
    seed: int = 0,
    on_corrupt: OnCorrupt = "raise",
    **options: Any,
) -> Dataset:
    """Return a dataset of Kafka topics. Needs the extra ``kafka``.

    The options are those of ``monolith.data.sources.kafka.source.KafkaSource``.

    ``Dataset.state`` contains the offsets; only ``Dataset.committed`` commits them to the broker.
    """
    from monolith.data.sources.kafka.source import KafkaSource

    def make() -> Source:
        return KafkaSource(servers, topics, group, record=record, start=start, framing=framing, **options)

    return from_source(make, schema=schema, seed=seed, on_corrupt=on_corrupt)


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

    return from_source(make, schema=schema, seed=seed, on_corrupt=on_corrupt)

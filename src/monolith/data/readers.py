"""Where datasets begin: one function per kind of input. Each returns a ``Dataset`` that has read nothing yet.

What a source does is in ``sources``; here its settings are checked, patterns are expanded, and that is all.
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

__all__ = ["files", "frame", "from_source", "kafka", "parquet", "stdin"]

OnCorrupt = Literal["raise", "skip"]


def from_source(
    make: Callable[[], Source], *, schema: Schema | None = None, seed: int = 0, on_corrupt: OnCorrupt = "raise"
) -> Dataset:
    """Return the dataset of a source of your own; ``make`` is called once per iteration.

    Args:
        make: Returns a fresh source; see ``monolith.data.sources.base.Source``.
        schema: What is read out of each record.
        seed: The start of every random choice.
        on_corrupt: Whether a record that cannot be parsed ends the reading, or is counted and left out. Damage to the
            framing always ends it: what comes after cannot be found.
    """
    if on_corrupt not in ("raise", "skip"):
        raise ConfigError(f"on_corrupt is {on_corrupt!r}; it must be 'raise' or 'skip'")
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
    """Read records out of files.

    >>> ds = files("part-*.pb, @more.txt", record="example_batch", framing=Framing(lagrangex_header=True))

    Args:
        patterns: Paths, URLs, globs and ``@filelist`` names, in a list or separated by commas; see
            ``monolith.data.sources.patterns.expand``. Expanded when the reading starts.
        record: Which message the records are.
        framing: What stands before each record; None = ``Framing()`` (a sort id), or TFRecord for ``tf_example``.
            ``monolith inspect records FILE`` tells what a file has.
        compression: Of the whole file; ``auto`` looks at its first bytes, and its name.
        schema: What is read out of each record; ``Dataset.with_schema`` sets it later.
        shuffle_buffer: Rows per shuffled window; the same as ``.shuffle(n)``.
        seed: The start of every random choice.
        shard: (index, count): this worker's share of the files.
        interleave: How many files are read in turn.
        work_list: Files are taken from this list instead, shared with other workers: who is slow takes fewer.
        worker: This worker's name in the work list.
        on_corrupt: See ``from_source``.

    Raises:
        ConfigError: A setting is wrong. Files that are missing are told when the reading starts.
    """
    if (patterns is None) == (work_list is None):
        raise ConfigError("files() needs patterns or a work_list, and not both")
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
    """Read records from standard input, or from any open binary stream. It can be read once.

    To resume, start the stream at its beginning again: what was read before is skipped.
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
    """Read Parquet files, a column per feature; see ``monolith.data.sources.parquet``. Needs the extra ``parquet``.

    Columns ``__LABEL__``, ``instance_weight`` and those named like LineId fields in capitals (``__UID__``,
    ``__REQ_TIME__``) fill the labels, the weight and the LineId. Instead of ``patterns``, files may come from a
    ``work_list``, as with ``files``.
    """
    from monolith.core.storage import open_file
    from monolith.data.sources.parquet import ParquetSource
    from monolith.data.sources.shared_parquet import SharedParquetSource

    if (patterns is None) == (work_list is None):
        raise ConfigError("parquet() needs patterns or a work_list, and not both")
    if work_list is not None and shard != (0, 1):
        raise ConfigError("a work_list shares the files out; leave shard away")
    kept = patterns if patterns is None or isinstance(patterns, str | os.PathLike) else list(patterns)
    line_fields = None if schema is None else schema.line_fields.native()
    options: dict[str, Any] = {"line_fields": line_fields, "batch_rows": batch_rows, "open_file": open_file}

    def make() -> Source:
        if work_list is not None:
            return SharedParquetSource(work_list, worker, lambda path: ParquetSource([path], columns, **options))
        assert kept is not None  # one of the two
        return ParquetSource(expand(kept), columns, shard=shard, **options)

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
    """Read a data frame: pandas, polars, pyarrow, or a dictionary of arrays. Columns as in ``parquet``."""
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
    """Read records from Kafka; see ``monolith.data.sources.kafka.source.KafkaSource``. Needs the extra ``kafka``.

    Offsets are part of ``Dataset.state``, and reach the broker only through ``Dataset.committed``.
    """
    from monolith.data.sources.kafka.source import KafkaSource

    def make() -> Source:
        return KafkaSource(servers, topics, group, record=record, start=start, framing=framing, **options)

    return from_source(make, schema=schema, seed=seed, on_corrupt=on_corrupt)

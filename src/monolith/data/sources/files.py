"""``FileSource``: reads record files in order or interleaved, sharded or from a shared list, and resumes exactly.

It combines a ``FilePlan``, which names the next file, and a ``RecordReader`` per open file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from monolith import _native
from monolith.core.errors import ConfigError, DataError, RecordCorrupt
from monolith.data.records import codecs
from monolith.data.records.codecs import Compression
from monolith.data.records.detect import KINDS, detect
from monolith.data.records.framing import Framing
from monolith.data.records.reader import RecordReader
from monolith.data.sources import patterns
from monolith.data.sources._explain import check_first_records, with_remedy
from monolith.data.sources._file_plan import FilePlan, FixedPlan, SharedPlan
from monolith.data.sources.base import Position, RecordKind, Source
from monolith.data.sources.work_list import WorkList

__all__ = ["FileSource"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Format:
    record: RecordKind
    framing: Framing
    compression: Compression
    read_ahead: int


class FileSource(Source):
    """Reads the records of files.

    Files come in the order of ``patterns.expand``. With ``interleave=k``, k files are open and return a chunk each in
    turn (a chunk is 4096 records or 1 MiB, whichever is first). The next file replaces a file that ends. The order
    depends on the files and these arguments only.

    The source checks the first records of every file. If another framing or another message type fits them instead, it
    raises an error that names the right argument.

    Args:
        files: Paths, globs, lists; see ``monolith.data.sources.patterns.expand``. Or None with ``work_list``.
        record: The message type of the records.
        framing: Header before each record; default: ``Framing()``.
        compression: Compression of each file; "auto" detects it.
        shard: ``(index, count)``: read every ``count``-th file, from ``index`` on.
        interleave: Number of open files.
        repeat: Number of passes over all files; None means endlessly. There is no gap between passes.
        work_list: Claim files from this list, shared with other workers. A file is *done* when ``read`` has returned
            all its records and is called again.
        worker: The name of this worker in ``work_list``.
        read_ahead: Pieces of each open file that a thread reads and decompresses in advance; 0 for no thread.

    Raises:
        ConfigError: No file matches, or arguments contradict each other.
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
        *,
        record: RecordKind,
        framing: Framing | None = None,
        compression: Compression = "auto",
        shard: tuple[int, int] = (0, 1),
        interleave: int = 1,
        repeat: int | None = 1,
        work_list: WorkList | None = None,
        worker: str | None = None,
        read_ahead: int = 4,
    ) -> None:
        _check_arguments(record, interleave, repeat, read_ahead)
        how = _Format(
            record=record,
            framing=Framing() if framing is None else framing,
            compression=codecs.check_compression(compression),
            read_ahead=read_ahead,
        )
        self._plan = _make_plan(files, shard, repeat, work_list, worker)
        self._chunks = _Chunks(self._plan, how, interleave)
        self._record = record
        self._has_started = False
        self._has_ended = False
        self._error: Exception | None = None

    @property
    @override
    def record(self) -> RecordKind:
        return self._record

    @property
    @override
    def is_ordered(self) -> bool:
        return True

    @override
    def read(self) -> _native.Records | None:
        """Return the next chunk of records, or None at the end.

        Raises:
            RecordCorrupt: A file is corrupt, or the framing is wrong; the text names file, offset and remedy.
            SchemaMismatch: A file contains other messages than ``record``.
            OSError: A file cannot be read.
        """
        if self._error is not None:
            raise self._error
        if self._has_ended:
            return None
        if not self._has_started:
            self._plan.start()
            self._has_started = True
        try:
            chunk = self._chunks.next_chunk()
        except Exception as error:
            if self._is_closed():
                return None
            self._error = error
            raise
        if chunk is None or self._is_closed():
            self._has_ended = True
            return None
        return chunk

    def _is_closed(self) -> bool:
        """Return True if another thread has called ``close`` meanwhile."""
        return self._has_ended

    @override
    def position(self) -> Position:
        return self._chunks.position()

    @override
    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Go to a position, before the first ``read``. A compressed file is decompressed up to its offset.

        Raises:
            DataError: A file is absent, or has another size.
            ConfigError: The source has read records already.
        """
        if self._has_started or self._has_ended:
            raise ConfigError("resume() is called after read(), expected before the first read; make a new source")
        self._chunks.resume(position)
        self._has_started = True

    @override
    def committed(self, position: Position) -> None:
        pass  # files stay

    @override
    def close(self) -> None:
        """Release files and threads, and end a ``read`` that waits in another thread. May be called twice."""
        self._has_ended = True
        self._plan.close()
        self._chunks.close()


def _check_arguments(record: str, interleave: int, repeat: int | None, read_ahead: int) -> None:
    if record not in KINDS:
        raise ConfigError(f"record is {record!r}, expected one of {', '.join(KINDS)}")
    if interleave < 1:
        raise ConfigError(f"interleave is {interleave}, expected the number of open files, at least 1")
    if repeat is not None and repeat < 1:
        raise ConfigError(f"repeat is {repeat}, expected the number of passes, at least 1, or None for endless passes")
    if read_ahead < 0:
        raise ConfigError(f"read_ahead is {read_ahead}, expected the number of pieces to read in advance, at least 0")


def _make_plan(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None,
    shard: tuple[int, int],
    repeat: int | None,
    work_list: WorkList | None,
    worker: str | None,
) -> FilePlan:
    if (files is None) == (work_list is None):
        raise ConfigError("expected files or a work_list, and not both; leave one of them out")
    if work_list is None:
        if worker is not None:
            raise ConfigError(f"worker is {worker!r} without a work_list; leave it out, or pass work_list=")
        assert files is not None
        return FixedPlan(patterns.take_shard(patterns.expand(files), shard), repeat)
    if shard != (0, 1) or repeat != 1:
        raise ConfigError("shard or repeat is set with a work_list, which assigns each file once; leave them out")
    if not worker:
        raise ConfigError("worker is not set with a work_list; give each worker its own name")
    return SharedPlan(work_list, worker)


class _Chunks:
    """The chunks of all files in turn. Used by one thread at a time."""

    def __init__(self, plan: FilePlan, how: _Format, interleave: int) -> None:
        self._plan = plan
        self._how = how
        self._interleave = interleave
        self._open: list[RecordReader] = []
        self._turn = 0
        self._empty_files = 0

    def position(self) -> Position:
        """Return the position of every open file, in turn order, and of the plan."""
        opened = [
            {"path": each.path, "offset": each.offset, "records": each.records, "bytes": each.file_bytes}
            for each in self._open
        ]
        return {"open": opened, "turn": self._turn, **self._plan.position()}

    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Open the files of ``position`` at their offsets."""
        try:
            opened = [dict(each) for each in position["open"]]
            turn = int(position["turn"])
            keep = self._plan.resume(position, [str(each["path"]) for each in opened])
            for index, each in enumerate(opened):
                if keep[index]:
                    self._open.append(self._reopen(each))
                elif index < turn:
                    turn -= 1
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{position!r} is not the position of a file source ({error!r})") from error
        self._turn = turn % max(len(self._open), 1)

    def close(self) -> None:
        """Close every file."""
        for reader in self._open:
            reader.close()

    def next_chunk(self) -> _native.Records | None:
        """Return the next chunk, or None at the end."""
        while len(self._open) < self._interleave and (file := self._plan.take()) is not None:
            self._open.append(self._open_file(file))
        while self._open:
            reader = self._open[self._turn]
            chunk = self._read(reader)
            if chunk is not None:
                self._turn = (self._turn + 1) % len(self._open)
                return chunk
            self._replace(reader)
        return None

    def _replace(self, reader: RecordReader) -> None:
        """Open the next file in place of one that has ended."""
        reader.close()
        self._empty_files = 0 if reader.records else self._empty_files + 1
        self._plan.ended(self._empty_files)
        self._plan.done(reader.path)  # before take(), which may wait for other workers
        file = self._plan.take()
        if file is not None:
            self._open[self._turn] = self._open_file(file)
            return
        del self._open[self._turn]
        self._turn %= max(len(self._open), 1)

    def _read(self, reader: RecordReader) -> _native.Records | None:
        is_first = reader.offset == 0
        look = functools.partial(detect, reader.path)
        try:
            chunk = reader.read()
        except RecordCorrupt as error:
            raise with_remedy(error, self._how.framing, reader.codec, look) from error
        if is_first and chunk is not None:
            how = self._how
            check_first_records(chunk, reader.first_sort_id, how.record, how.framing, reader.codec, look)
        return chunk

    def _open_file(self, path: str, offset: int = 0, record: int = 0) -> RecordReader:
        how = self._how
        return RecordReader(
            path,
            framing=how.framing,
            compression=how.compression,
            offset=offset,
            record=record,
            read_ahead=how.read_ahead,
        )

    def _reopen(self, saved: Mapping[str, Any]) -> RecordReader:
        path = str(saved["path"])
        try:
            reader = self._open_file(path, int(saved["offset"]), int(saved["records"]))
        except OSError as error:
            raise DataError(f"file {path!r} of the position cannot be opened: {error}") from error
        if reader.file_bytes != saved["bytes"]:
            reader.close()
            raise DataError(
                f"{path} has {reader.file_bytes} bytes, expected {saved['bytes']} as in the position; restore the file"
            )
        return reader

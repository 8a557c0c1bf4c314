"""Record files as a source: in order or interleaved, sharded or shared, resumed at the exact record.

Puts together which file comes next and the reader of one file. Knows neither codecs nor framings, and does not parse
records.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from monolith.data.sources.base import Position, RecordKind
from monolith.data.sources.work_list import WorkList

__all__ = ["FileSource"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Format:
    record: RecordKind
    framing: Framing
    compression: Compression
    read_ahead: int


class FileSource:
    """The records of files.

    Files come in the order of ``patterns.expand``. With ``interleave=k``, k files are open and give a lot each in turn
    (a lot is 4096 records or 1 MiB, whichever is first); a file that ends is replaced by the next. The order depends on
    the files and these arguments only.

    The first records of every file are looked at: when they make no sense but another framing does, or they are another
    message, that is an error which names the right argument.

    Args:
        files: Paths, globs, lists; see ``monolith.data.sources.patterns.expand``. Or None with ``work_list``.
        record: Which message the records are.
        framing: What stands before each record; ``Framing()`` when not given.
        compression: How each file is compressed; "auto" looks at each.
        shard: ``(index, count)``: read every ``count``-th file, from ``index`` on.
        interleave: How many files are open at a time.
        repeat: How often to read all files; None for ever. A pass follows the one before without a gap.
        work_list: Share files with other workers. A file is *done* when all its records were handed out and ``read``
            was called again.
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
        self._lots = _Lots(self._plan, how, interleave)
        self._record = record
        self._has_started = False
        self._has_ended = False
        self._error: Exception | None = None

    @property
    def record(self) -> RecordKind:
        """Which message the records are."""
        return self._record

    @property
    def is_ordered(self) -> bool:
        """Whether a position is always followed by the same records: yes."""
        return True

    def read(self) -> _native.Records | None:
        """Return the next lot of records, or None at the end.

        Raises:
            RecordCorrupt: A file is damaged, or the framing is wrong; the text names file, offset and remedy.
            SchemaMismatch: A file holds other messages than ``record``.
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
            lot = self._lots.next_lot()
        except Exception as error:
            if self._is_closed():
                return None
            self._error = error
            raise
        if lot is None or self._is_closed():
            self._has_ended = True
            return None
        return lot

    def _is_closed(self) -> bool:
        """Whether ``close`` was called meanwhile, from another thread."""
        return self._has_ended

    def position(self) -> Position:
        """Return the place after the records that ``read`` gave last."""
        return self._lots.position()

    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Go to a place that ``position`` gave, before the first ``read``.

        A plain file is entered at once, a compressed one is decompressed up to the place.

        Raises:
            DataError: The files are not what they were: one is gone, or of another size.
            ConfigError: Records were read already.
        """
        if self._has_started or self._has_ended:
            raise ConfigError("resume comes before the first read; make a new source")
        self._lots.resume(position)
        self._has_started = True

    def committed(self, position: Position) -> None:
        """Do nothing: files are kept."""

    def close(self) -> None:
        """Let go of files and threads. May be called twice, and ends a ``read`` that waits in another thread."""
        self._has_ended = True
        self._plan.close()
        self._lots.close()


def _check_arguments(record: str, interleave: int, repeat: int | None, read_ahead: int) -> None:
    if record not in KINDS:
        raise ConfigError(f"record is {record!r}; give one of {', '.join(KINDS)}")
    if interleave < 1:
        raise ConfigError(f"interleave is {interleave}; give the number of files to have open, at least 1")
    if repeat is not None and repeat < 1:
        raise ConfigError(f"repeat is {repeat}; give how often to read the files, or None for ever")
    if read_ahead < 0:
        raise ConfigError(f"read_ahead is {read_ahead}; give how many lots to read in advance, or 0")


def _make_plan(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None,
    shard: tuple[int, int],
    repeat: int | None,
    work_list: WorkList | None,
    worker: str | None,
) -> FilePlan:
    if (files is None) == (work_list is None):
        raise ConfigError("give either files or a work_list")
    if work_list is None:
        if worker is not None:
            raise ConfigError(f"worker {worker!r} makes sense with a work_list only")
        assert files is not None
        return FixedPlan(patterns.take_shard(patterns.expand(files), shard), repeat)
    if shard != (0, 1) or repeat != 1:
        raise ConfigError("a work_list shares the files out once; leave shard and repeat away")
    if not worker:
        raise ConfigError("with a work_list, give the name of this worker, which no other has")
    return SharedPlan(work_list, worker)


class _Lots:
    """The lots of all files in turn. Used by one thread at a time."""

    def __init__(self, plan: FilePlan, how: _Format, interleave: int) -> None:
        self._plan = plan
        self._how = how
        self._interleave = interleave
        self._open: list[RecordReader] = []
        self._turn = 0
        self._empty_files = 0

    def position(self) -> Position:
        """Return the place of every open file, in turn order, and of the plan."""
        opened = [
            {"path": each.path, "offset": each.offset, "records": each.records, "bytes": each.file_bytes}
            for each in self._open
        ]
        return {"open": opened, "turn": self._turn, **self._plan.position()}

    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Open the files of ``position`` where they stood."""
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

    def next_lot(self) -> _native.Records | None:
        """Return the next lot, or None at the end."""
        while len(self._open) < self._interleave and (file := self._plan.take()) is not None:
            self._open.append(self._open_file(file))
        while self._open:
            reader = self._open[self._turn]
            lot = self._read(reader)
            if lot is not None:
                self._turn = (self._turn + 1) % len(self._open)
                return lot
            self._replace(reader)
        return None

    def _replace(self, reader: RecordReader) -> None:
        """The next file takes the turn of one that has ended."""
        reader.close()
        self._empty_files = 0 if reader.records else self._empty_files + 1
        self._plan.ended(self._empty_files)
        self._plan.done(reader.path)  # before the next is taken, for which others may be waited for
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
            lot = reader.read()
        except RecordCorrupt as error:
            raise with_remedy(error, self._how.framing, reader.codec, look) from error
        if is_first and lot is not None:
            how = self._how
            check_first_records(lot, reader.first_sort_id, how.record, how.framing, reader.codec, look)
        return lot

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
            raise DataError(f"{path}, which was being read, cannot be opened any more: {error}") from error
        if reader.file_bytes != saved["bytes"]:
            reader.close()
            raise DataError(f"{path} had {saved['bytes']} bytes and has {reader.file_bytes} now; it must not change")
        return reader

"""Parquet files that workers take from one list, as a source: who is slow takes fewer, and who resumes goes on.

Puts together which file comes next and the source of one file; how that is read, ``parquet`` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monolith import _native
from monolith.core.errors import ConfigError, DataError
from monolith.data.sources._file_plan import SharedPlan
from monolith.data.sources.arrow_columns import load_pyarrow
from monolith.data.sources.base import Position, RecordKind
from monolith.data.sources.parquet import ParquetSource
from monolith.data.sources.work_list import WorkList

__all__ = ["SharedParquetSource"]


class SharedParquetSource:
    """The rows of the Parquet files that this worker gets.

    A position is a place in the file that is being read, and how many were read to their end.

    Args:
        work_list: The files, shared with other workers. One is *done* when all its rows were handed out and ``read``
            was called again.
        worker: The name of this worker there.
        open_source: Gives the source of one file.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(self, work_list: WorkList, worker: str | None, open_source: Callable[[str], ParquetSource]) -> None:
        if not worker:
            raise ConfigError("with a work_list, give the name of this worker, which no other has")
        load_pyarrow("pyarrow.parquet")  # a missing package is told before the first read
        self._plan = SharedPlan(work_list, worker)
        self._open_source = open_source
        self._path = ""
        self._opened: ParquetSource | None = None
        self._has_started = False
        self._has_ended = False

    @property
    def record(self) -> RecordKind:
        """Which message the records are."""
        return "example_batch"

    @property
    def is_ordered(self) -> bool:
        """Whether a position is always followed by the same records: yes."""
        return True

    def read(self) -> _native.Records | None:
        """Return the next rows as one record, or None at the end; see ``ParquetSource.read``."""
        if not self._has_started and not self._has_ended:
            self._plan.start()
            self._has_started = True
        while not self._has_ended:
            if self._opened is None and not self._take_file():
                break
            assert self._opened is not None  # taken
            records = self._opened.read()
            if self._is_closed():
                break
            if records is not None:
                return records
            self._leave_file()
        self._has_ended = True
        return None

    def _is_closed(self) -> bool:
        """Whether ``close`` was called meanwhile, from another thread."""
        return self._has_ended

    def position(self) -> Position:
        """Return the place after the rows that ``read`` gave last."""
        opened = None if self._opened is None else {"path": self._path, "place": dict(self._opened.position())}
        return {"open": opened, **self._plan.position()}

    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Go to a place that ``position`` gave, before the first ``read``.

        Raises:
            DataError: The file is not what it was.
            ConfigError: Rows were read already.
        """
        if self._has_started or self._has_ended:
            raise ConfigError("resume comes before the first read; make a new source")
        try:
            opened = position["open"]
            path = "" if opened is None else str(opened["path"])
            is_ours = self._plan.resume(position, [path] if path else [])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{position!r} is not the position of shared Parquet files ({error!r})") from error
        if path and is_ours[0]:
            self._path, self._opened = path, self._open_source(path)
            self._opened.resume(opened["place"])
        self._has_started = True

    def committed(self, position: Position) -> None:
        """Do nothing: files stay."""

    def close(self) -> None:
        """Let go of the file. May be called twice, and ends a ``read`` that waits in another thread."""
        self._has_ended = True
        self._plan.close()
        if self._opened is not None:
            self._opened.close()

    def _take_file(self) -> bool:
        path = self._plan.take()
        if path is None:
            return False
        self._path, self._opened = path, self._open_source(path)
        return True

    def _leave_file(self) -> None:
        assert self._opened is not None  # it was read
        self._opened.close()
        self._opened = None
        self._plan.ended(0)
        self._plan.done(self._path)

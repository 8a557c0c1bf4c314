"""``SharedTablesSource``: reads the files of columns that this worker claims from a shared work list.

It combines a ``SharedPlan``, which claims the files, and a ``TableFilesSource`` per file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from typing_extensions import override

from monolith import _native
from monolith.core.errors import ConfigError, DataError
from monolith.data.sources._file_plan import SharedPlan
from monolith.data.sources.arrow_columns import load_pyarrow
from monolith.data.sources.base import Position, RecordKind, Source
from monolith.data.sources.column_options import WantedColumns
from monolith.data.sources.table_files import TableFilesSource
from monolith.data.sources.work_list import WorkList

__all__ = ["SharedTablesSource"]


class SharedTablesSource(Source):
    """Reads the rows of the files that this worker claims.

    A position contains the position in the open file, and the number of files read to their end.

    Args:
        work_list: The files, shared with other workers. A file is *done* when ``read`` has returned all its rows and is
            called again.
        worker: The name of this worker in the list.
        open_source: Returns the source of one file.

    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(self, work_list: WorkList, worker: str | None, open_source: Callable[[str], TableFilesSource]) -> None:
        if not worker:
            raise ConfigError("worker is not set with a work_list; give each worker its own name")
        load_pyarrow()  # a missing package is an error before the first read
        self._plan = SharedPlan(work_list, worker)
        self._open_source = open_source
        self._path = ""
        self._opened: TableFilesSource | None = None
        self._wanted: WantedColumns | None = None
        self._missing = 0
        self._has_started = False
        self._has_ended = False

    @property
    @override
    def record(self) -> RecordKind:
        return "example_batch"

    @property
    @override
    def is_ordered(self) -> bool:
        return True

    def require(self, wanted: WantedColumns) -> None:
        """Check every file for these columns, and read no other; before the first ``read``."""
        self._wanted = wanted

    @property
    def missing_columns(self) -> int:
        """Columns that files lack and may lack, summed over the files read."""
        return self._missing + (0 if self._opened is None else self._opened.missing_columns)

    @override
    def read(self) -> _native.Records | None:
        """Return the next rows as one record, or None at the end; see ``TableFilesSource.read``."""
        if not self._has_started and not self._has_ended:
            self._plan.start()
            self._has_started = True
        while not self._has_ended:
            if self._opened is None and not self._take_file():
                break
            assert self._opened is not None  # _take_file sets it
            records = self._opened.read()
            if self._is_closed():
                break
            if records is not None:
                return records
            self._leave_file()
        self._has_ended = True
        return None

    def _is_closed(self) -> bool:
        """Return True if another thread has called ``close`` meanwhile."""
        return self._has_ended

    @override
    def position(self) -> Position:
        opened = None if self._opened is None else {"path": self._path, "place": dict(self._opened.position())}
        return {"open": opened, **self._plan.position()}

    @override
    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Go to a position, before the first ``read``.

        Raises:
            DataError: The open file has changed.
            ConfigError: The source has read rows already.
        """
        if self._has_started or self._has_ended:
            raise ConfigError("resume() is called after read(), expected before the first read; make a new source")
        try:
            opened = position["open"]
            path = "" if opened is None else str(opened["path"])
            may_read = self._plan.resume(position, [path] if path else [])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{position!r} is not the position of shared files of columns ({error!r})") from error
        if path and may_read[0]:
            self._open(path).resume(opened["place"])
        self._has_started = True

    @override
    def committed(self, position: Position) -> None:
        pass  # files stay

    @override
    def close(self) -> None:
        """Close the file, and end a ``read`` that waits in another thread. May be called twice."""
        self._has_ended = True
        self._plan.close()
        opened = self._opened  # a ``read`` in another thread may leave the file
        if opened is not None:
            opened.close()

    def _take_file(self) -> bool:
        path = self._plan.take()
        if path is None:
            return False
        self._open(path)
        return True

    def _open(self, path: str) -> TableFilesSource:
        self._path, self._opened = path, self._open_source(path)
        if self._wanted is not None:
            self._opened.require(self._wanted)
        return self._opened

    def _leave_file(self) -> None:
        assert self._opened is not None  # read() has read it to its end
        self._missing += self._opened.missing_columns
        self._opened.close()
        self._opened = None
        self._plan.ended(0)
        self._plan.done(self._path)

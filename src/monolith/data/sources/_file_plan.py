"""``FilePlan``: decides which file comes next. ``FixedPlan`` reads a list, ``SharedPlan`` claims from a work list.

Plans know file names only; they open no file.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import DataError
from monolith.data.sources.work_list import Lease, WorkList

__all__ = ["FilePlan", "FixedPlan", "SharedPlan"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_POLL_S = 0.2
FULL_DISK_S = 300.0
"""How long a worker retries a change of the work list while the disk is full."""


class FilePlan(Protocol):
    """Returns files in order."""

    def take(self) -> str | None:
        """Return the next file to open, or None after the last one."""
        ...

    def position(self) -> dict[str, Any]:
        """Return the position of the plan as JSON."""
        ...

    def resume(self, position: Mapping[str, Any], open_files: Sequence[str]) -> list[bool]:
        """Go to ``position``; return for each file that was open there whether this reader may still read it."""
        ...

    def start(self) -> None:
        """Start without a position."""
        ...

    def done(self, file: str) -> None:
        """Mark a file as done: the reader's caller has all its records and has asked for more."""
        ...

    def ended(self, empty_files: int) -> None:
        """Count a file that was read to its end, perhaps ahead of the caller.

        Args:
            empty_files: How many files in a row, up to this one, had no record.

        Raises:
            DataError: No file has a record, so an endless plan would never return one.
        """
        ...

    def close(self) -> None:
        """End a ``take`` that waits in another thread."""
        ...


class FixedPlan(FilePlan):
    """The files of a list, ``repeat`` times (None: endlessly), without a gap between passes."""

    def __init__(self, files: Sequence[str], repeat: int | None) -> None:
        self._files = list(files)
        self._repeat = repeat
        self._next = 0
        self._checksums = [0]  # [n]: of the first n names
        for file in self._files:
            self._checksums.append(zlib.crc32(os.fsencode(file) + b"\n", self._checksums[-1]))

    @override
    def take(self) -> str | None:
        if self._repeat is not None and self._next >= self._repeat * len(self._files):
            return None
        file = self._files[self._next % len(self._files)]
        self._next += 1
        return file

    @override
    def position(self) -> dict[str, Any]:
        return {"next": self._next, "names": self._checksums[min(self._next, len(self._files))]}

    @override
    def resume(self, position: Mapping[str, Any], open_files: Sequence[str]) -> list[bool]:
        following = int(position["next"])
        seen = min(following, len(self._files))
        if following < 0 or (self._repeat == 1 and following > seen) or position["names"] != self._checksums[seen]:
            raise DataError(
                f"the first {following} files differ from those of the saved position; "
                "resume with the same files in the same order (new files may follow at the end)"
            )
        self._next = following
        return [True] * len(open_files)

    @override
    def start(self) -> None:
        pass

    @override
    def done(self, file: str) -> None:
        pass

    @override
    def ended(self, empty_files: int) -> None:
        if self._repeat is None and empty_files >= len(self._files):
            raise DataError(f"none of the {len(self._files)} files has a record; with repeat=None this would never end")

    @override
    def close(self) -> None:
        pass


class SharedPlan(FilePlan):
    """Files claimed from a work list, each when the reader needs it.

    While the disk of the work list is full, a claim is retried for ``FULL_DISK_S``; then ``OSError`` ends the reading.

    Args:
        work_list: The files.
        worker: The worker's name in the list.
        clock: Time source.
    """

    def __init__(self, work_list: WorkList, worker: str, clock: Clock | None = None) -> None:
        self._work_list = work_list
        self._worker = worker
        self._clock = clock or SystemClock()
        self._lease: Lease | None = None  # behind the last file that was read to its end
        self._resumed: list[str] = []  # claimed before the restart, to be read again
        self._closed = threading.Event()

    @override
    def take(self) -> str | None:
        if self._resumed:
            return self._resumed.pop(0)
        while (file := self._retry_while_full(self._claim)) is None and self._work_list.may_follow():
            if self._closed.wait(_POLL_S):
                break
        return file

    def _claim(self) -> str | None:
        return self._work_list.claim(self._worker)

    def _retry_while_full(self, change: Callable[[], Result]) -> Result:
        """Return the result of ``change``; a change that failed left the list as it was, so it can be repeated."""
        deadline: Deadline | None = None
        while True:
            try:
                return change()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if deadline is None:
                    deadline = Deadline(self._clock, FULL_DISK_S)
                    logger.warning("work list not saved, retrying worker=%s error=%s", self._worker, error)
                if deadline.is_past or self._closed.wait(_POLL_S):
                    raise

    @override
    def position(self) -> dict[str, Any]:
        # The state of the work list is saved separately, once for all workers. The key of the epoch is "life".
        lease = self._lease or self._work_list.lease(self._worker)
        return {"worker": self._worker, "finished": lease.finished, "life": lease.epoch}

    @override
    def resume(self, position: Mapping[str, Any], open_files: Sequence[str]) -> list[bool]:
        """Hold the files again that were open at ``position``.

        The list may be newer than the position. This worker reads the files that it claimed in between again, in the
        same order.

        Raises:
            FilesReassigned: Some of these files were reassigned to other workers.
        """
        self._lease = Lease(int(position["finished"]), int(position.get("life", 0)))
        held = self._work_list.take_back(self._worker, self._lease)
        self._resumed = [file for file in held if file not in open_files]
        return [file in held or self._work_list.reclaim(self._worker, file) for file in open_files]

    @override
    def start(self) -> None:
        # Files that an earlier worker of this name held.
        self._retry_while_full(lambda: self._work_list.requeue(self._worker))
        self._lease = self._work_list.lease(self._worker)

    @override
    def done(self, file: str) -> None:
        self._retry_while_full(lambda: self._work_list.done(self._worker, file))

    @override
    def ended(self, empty_files: int) -> None:
        # Not read from the work list: positions are taken ahead of the caller, before ``done``.
        assert self._lease is not None, "start() or resume() comes first"
        self._lease = self._lease._replace(finished=self._lease.finished + 1)

    @override
    def close(self) -> None:
        self._closed.set()

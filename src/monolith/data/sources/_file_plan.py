"""Which file comes next: a fixed list, read once or several times, or a work list shared with other workers.

Knows names only; nothing is opened here.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from monolith.core.errors import DataError
from monolith.data.sources.work_list import Tenure, WorkList

__all__ = ["FilePlan", "FixedPlan", "SharedPlan"]

_LOOK_S = 0.2


class FilePlan(Protocol):
    """Hands out files in order."""

    def take(self) -> str | None:
        """Return the next file to open, or None when there is none."""
        ...

    def position(self) -> dict[str, Any]:
        """Return where the plan stands, as JSON."""
        ...

    def resume(self, position: Mapping[str, Any], open_files: Sequence[str]) -> list[bool]:
        """Go to ``position``; say of each file that was open then whether it is still ours to read."""
        ...

    def start(self) -> None:
        """Begin at the beginning."""
        ...

    def done(self, file: str) -> None:
        """Note that everything in a file was handed out, and that the user came back for more."""
        ...

    def ended(self, empty_files: int) -> None:
        """Take note that a file was read to its end, maybe ahead of the user; so many in a row had no record.

        Raises:
            DataError: It would go on like this for ever.
        """
        ...

    def close(self) -> None:
        """End a ``take`` that waits in another thread."""
        ...


class FixedPlan:
    """The files of a list, ``repeat`` times (None: for ever), passes following each other without a gap."""

    def __init__(self, files: Sequence[str], repeat: int | None) -> None:
        self._files = list(files)
        self._repeat = repeat
        self._next = 0
        self._checksums = [0]  # of the first n names
        for file in self._files:
            self._checksums.append(zlib.crc32(file.encode() + b"\n", self._checksums[-1]))

    def take(self) -> str | None:
        """Return the next file to open, or None when there is none."""
        if self._repeat is not None and self._next >= self._repeat * len(self._files):
            return None
        file = self._files[self._next % len(self._files)]
        self._next += 1
        return file

    def position(self) -> dict[str, Any]:
        """Return how many files were opened, with a checksum of their names."""
        return {"next": self._next, "names": self._checksums[min(self._next, len(self._files))]}

    def resume(self, position: Mapping[str, Any], open_files: Sequence[str]) -> list[bool]:
        """Go to ``position``. Files may have been added at the end of the list since, but not before."""
        following = int(position["next"])
        seen = min(following, len(self._files))
        if following < 0 or (self._repeat == 1 and following > seen) or position["names"] != self._checksums[seen]:
            raise DataError(
                f"the first {following} files are not the same as when the position was saved; "
                "resume with the same files in the same order (new ones may follow at the end)"
            )
        self._next = following
        return [True] * len(open_files)

    def start(self) -> None:
        """Nothing to do: a list begins at its beginning."""

    def done(self, file: str) -> None:
        """Nothing to do: nobody else waits for it."""

    def ended(self, empty_files: int) -> None:
        """Refuse to go round for ever in files without a record."""
        if self._repeat is None and empty_files >= len(self._files):
            raise DataError(f"none of the {len(self._files)} files has a record; with repeat=None this would never end")

    def close(self) -> None:
        """Nothing to do: a list does not wait."""


class SharedPlan:
    """Files claimed from a work list, one when one is needed."""

    def __init__(self, work_list: WorkList, worker: str) -> None:
        self._work_list = work_list
        self._worker = worker
        self._tenure: Tenure | None = None  # at what was handed out last
        self._own: list[str] = []  # claimed before the process was started, and to be read again
        self._closed = threading.Event()

    def take(self) -> str | None:
        """Claim the next file; wait for it while one may follow."""
        if self._own:
            return self._own.pop(0)
        while (file := self._work_list.claim(self._worker)) is None and self._work_list.may_follow():
            if self._closed.wait(_LOOK_S):
                break
        return file

    def position(self) -> dict[str, Any]:
        """Return how many files had ended. The work list's state is saved apart, once for all workers."""
        tenure = self._tenure or self._work_list.tenure(self._worker)
        return {"worker": self._worker, **tenure._asdict()}

    def resume(self, position: Mapping[str, Any], open_files: Sequence[str]) -> list[bool]:
        """Take up again the files that were open.

        The list may be of a later moment than the position: what was claimed in between is read again, in the same
        order, and nobody else gets it.

        Raises:
            FilesGivenAway: Others have got some of them.
        """
        self._tenure = Tenure(int(position["finished"]), int(position.get("life", 0)))
        own = self._work_list.take_back(self._worker, self._tenure)
        self._own = [file for file in own if file not in open_files]
        return [file in own or self._work_list.reclaim(self._worker, file) for file in open_files]

    def start(self) -> None:
        """Give back what a worker of this name held before."""
        self._work_list.requeue(self._worker)
        self._tenure = self._work_list.tenure(self._worker)

    def done(self, file: str) -> None:
        """Tell the others."""
        self._work_list.done(self._worker, file)

    def ended(self, empty_files: int) -> None:
        """Count it: positions are taken ahead of the user, and so is this."""
        assert self._tenure is not None  # it was started or resumed
        self._tenure = self._tenure._replace(finished=self._tenure.finished + 1)

    def close(self) -> None:
        """Wait no longer for files of others."""
        self._closed.set()

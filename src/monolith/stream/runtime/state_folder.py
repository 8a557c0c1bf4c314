"""``StateFolder``: the snapshots and journals of one partition group, with one owner at a time.

    <folder>/LOCK                         flock of the owner, for its life
    <folder>/owner-<owner>                empty; marks the number of an owner as taken
    <folder>/journal-<owner>-<first>.log  commits of an owner from number ``first`` on
    <folder>/snap-<owner>-<n>/            state after commit n: core.bin, meta.json
    <folder>/spill/                       state beyond the memory budget; worthless after a restart

Every start takes a larger owner number. Commits and snapshots of an owner count only below the first commit of its
successor, and an owner with a successor removes no file. So a stopped process that wakes up changes nothing. The two
newest snapshots stay. One thread uses a folder.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolith.core.durable_files import make_folder, seal, sync_folder, unseal, write_synced
from monolith.core.errors import ClusterError, SnapshotCorrupt, VersionConflict
from monolith.stream.runtime.journal import Journal, read_journal

__all__ = ["Snapshot", "StateFolder"]

logger = logging.getLogger(__name__)

_JOURNAL = re.compile(r"journal-(\d+)-(\d+)\.log")
_SNAPSHOT = re.compile(r"snap-(\d+)-(\d+)")
_OWNER = re.compile(r"owner-(\d+)()")
_KEPT_SNAPSHOTS = 2
_RECOVERIES = 3
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot on disk."""

    path: Path
    owner: int
    commit: int
    meta: Mapping[str, Any]

    @property
    def core_path(self) -> Path:
        """The file of the core."""
        return self.path / "core.bin"


class StateFolder:
    """An owned folder.

    Args:
        path: The folder; created if absent.
        take_over: Ignore the lock of a process that is stopped but not dead. Its outputs are fenced.

    Raises:
        ClusterError: Another process owns the folder.
    """

    def __init__(self, path: Path, *, take_over: bool = False) -> None:
        self.path = path
        make_folder(path)
        self._lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not take_over:
                os.close(self._lock)
                raise ClusterError(
                    f"state folder '{path}' is owned by another process, expected one owner; stop that process, or "
                    "pass --take-over if it is stuck"
                ) from None
            logger.warning("state folder taken over path=%s", path)
        self._journal: Journal | None = None
        self.has_taken_over = take_over
        """Whether a stopped process may still use the folder."""
        try:
            self._files: dict[tuple[int, int], Path] = dict(self._match(_JOURNAL))
            self.owner = self._take_number()
        except BaseException:
            os.close(self._lock)
            raise
        for leftover in path.glob("*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _take_number(self) -> int:
        """Return an owner number above all others. Of processes that start together, each gets another number."""
        number = self._newest_owner()
        while True:
            number += 1
            try:
                (self.path / f"owner-{number:06}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return number

    @property
    def spill_folder(self) -> Path:
        """The folder for spilled state. Each owner has a separate one."""
        return self.path / f"spill-{self.owner}"

    def clear_spill(self) -> None:
        """Remove spilled state of earlier owners."""
        for folder in self.path.glob("spill-*"):
            if folder != self.spill_folder:
                shutil.rmtree(folder, ignore_errors=True)

    # --- recovery -----------------------------------------------------------------------------------------------------

    def recover(self, restore: Callable[[Snapshot], None]) -> tuple[Snapshot | None, list[dict[str, Any]]]:
        """Restore the newest sound snapshot and return it with the commits that follow it.

        Args:
            restore: Loads a snapshot; raises ``SnapshotCorrupt`` for a damaged one.

        Returns:
            The snapshot, None for a new folder, and the records of the later commits.

        Raises:
            SnapshotCorrupt: Every snapshot is damaged, or the folder has journals and no snapshot.
            ClusterError: Another process took over meanwhile.
            VersionConflict: A newer release wrote the newest snapshot.
        """
        for _ in range(_RECOVERIES):
            try:
                return self._recover(restore)
            except FileNotFoundError as error:
                # A predecessor that is stopped inside ``trim`` may wake up and remove files that this process listed.
                self._check_owner()
                logger.warning("recovery repeated path=%s reason=%s", self.path, error)
                self._files = dict(self._match(_JOURNAL))
        return self._recover(restore)

    def _recover(self, restore: Callable[[Snapshot], None]) -> tuple[Snapshot | None, list[dict[str, Any]]]:
        damaged: list[SnapshotCorrupt] = []
        snapshots = self._list_snapshots()
        for path, owner, commit in reversed(snapshots):
            try:
                snapshot = Snapshot(path, owner, commit, _read_meta(path))
                restore(snapshot)
            except (SnapshotCorrupt, FileNotFoundError) as error:
                if not path.exists():
                    raise FileNotFoundError(f"'{path}' was removed") from error
                damaged.append(error if isinstance(error, SnapshotCorrupt) else SnapshotCorrupt(str(error)))
                logger.error("snapshot skipped path=%s reason=%s", path, error)
                continue
            return snapshot, self._read_commits(commit)
        if damaged:
            raise SnapshotCorrupt("; ".join(str(error) for error in damaged))
        if self._files:
            raise SnapshotCorrupt(
                f"state folder '{self.path}' has {len(self._files)} journals and no snapshot, expected a snapshot; "
                "restore the folder"
            )
        return None, []

    def _read_commits(self, after: int) -> list[dict[str, Any]]:
        commits: dict[int, dict[str, Any]] = {}
        for (owner, _), path in sorted(self._files.items()):
            limit = self._limit(owner)
            for record in read_journal(path)[1:]:
                if after < record["n"] < limit:
                    commits[record["n"]] = record
        numbers = sorted(commits)
        if numbers != list(range(after + 1, after + 1 + len(numbers))):
            raise SnapshotCorrupt(
                f"journal in '{self.path}' has commits {numbers[:3]}..., expected all after {after}; restore the folder"
            )
        return [commits[number] for number in numbers]

    def _limit(self, owner: int) -> int:
        """Return the first commit of the owner after ``owner``."""
        return min((first for later, first in self._files if later > owner), default=1 << 62)

    def _list_snapshots(self) -> list[tuple[Path, int, int]]:
        found = [
            (path, owner, commit) for (owner, commit), path in self._match(_SNAPSHOT) if commit < self._limit(owner)
        ]
        return sorted(found, key=lambda each: (each[2], each[1]))

    # --- commits ------------------------------------------------------------------------------------------------------

    def start_journal(self, first: int, header: Mapping[str, Any]) -> None:
        """Open a journal file for the commits from ``first`` on. Earlier owners lose the right to these numbers.

        Raises:
            OSError: The file cannot be written. Commits continue in the file before it.
            ClusterError: Another process took over.
        """
        self._check_owner()
        path = self.path / f"journal-{self.owner:06}-{first:012}.log"
        journal = Journal(path, header)
        if self._journal is not None:
            self._journal.close()
        self._journal = journal
        self._files[self.owner, first] = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a commit to the journal; see ``Journal.append``."""
        assert self._journal is not None
        self._journal.append(record)

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def save(self, commit: int, meta: Mapping[str, Any], save_core: Callable[[Path], None]) -> None:
        """Write the snapshot after a commit.

        Raises:
            OSError: The disk is full; older snapshots stay.
            ClusterError: Another process took over.
        """
        self._check_owner()
        final = self.path / f"snap-{self.owner:06}-{commit:012}"
        folder = self.path / f"{final.name}.tmp"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            save_core(folder / "core.bin")
            write_synced(folder / "meta.json", seal({"version": _VERSION, **meta}))
            sync_folder(folder)
            if final.exists():
                shutil.rmtree(final)
            folder.rename(final)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, FileNotFoundError):
                self._check_owner()  # a successor removes unfinished snapshots
            raise
        sync_folder(self.path)

    def trim(self) -> None:
        """Remove snapshots except the two newest, and the journals before them.

        Raises:
            ClusterError: Another process took over; no file is removed.
        """
        snapshots = self._list_snapshots()
        kept = snapshots[-_KEPT_SNAPSHOTS:]
        kept_paths = {path for path, _, _ in kept}
        listed = self._match(_SNAPSHOT)
        # After the list: a successor that starts later needs only snapshots that stay, or writes later ones.
        self._check_owner()
        for _, path in listed:
            if path not in kept_paths:
                shutil.rmtree(path, ignore_errors=True)
        oldest = kept[0][2] if kept else 0
        names = sorted(self._files)
        for name, following in itertools.pairwise(names):
            if following[1] <= oldest + 1:
                self._files.pop(name).unlink(missing_ok=True)
        for (owner, _), path in self._match(_OWNER):
            if owner < self.owner:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the folder. May be called twice."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._lock >= 0:
            shutil.rmtree(self.spill_folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def _check_owner(self) -> None:
        newest = self._newest_owner()
        if newest > self.owner:
            raise ClusterError(
                f"state folder '{self.path}' has owner {newest}, and this process is owner {self.owner}; "
                "another process has taken over, stop this one"
            )

    def _newest_owner(self) -> int:
        names = [name for pattern in (_OWNER, _JOURNAL, _SNAPSHOT) for name, _ in self._match(pattern)]
        return max((owner for owner, _ in names), default=0)

    def _match(self, pattern: re.Pattern[str]) -> list[tuple[tuple[int, int], Path]]:
        found = []
        for path in self.path.iterdir():
            if match := pattern.fullmatch(path.name):
                found.append(((int(match[1]), int(match[2] or 0)), path))
        return found


def _read_meta(path: Path) -> dict[str, Any]:
    file = path / "meta.json"
    try:
        meta = unseal(file.read_bytes())
    except ValueError as error:
        raise SnapshotCorrupt(f"'{file}' is corrupt: {error}; use an older snapshot") from None
    if (version := meta.pop("version", 1)) != _VERSION:  # snapshots of before have no version
        raise VersionConflict(f"version of '{file}' is {version!r}, expected {_VERSION}; use the release that wrote it")
    return meta

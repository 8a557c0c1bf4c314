"""Store the messages of a feed in a folder with the format of a published folder.

``FeedCache`` checks names, sizes and checksums before it writes a byte. A cut appears only after all of its files, so a
``Follower`` can follow the cache like the original folder. One thread writes; other threads and processes read.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections import deque
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TypeVar

from monolith import _native
from monolith.artifacts.delta_log import Cut, DeltaReader, LogPosition, read_cut
from monolith.artifacts.delta_log.publish import CUT
from monolith.artifacts.delta_log.segment import segment_numbers, segment_path
from monolith.core.errors import ArtifactError, ConfigError
from monolith.sync.base_snapshot import BASE, read_base
from monolith.sync.dense_versions import DENSE, version_files
from monolith.sync.feed_messages import FollowResponse

__all__ = ["FeedCache"]

T = TypeVar("T")

_NAME = re.compile(
    r"cut\.json|base\.json"
    r"|dense/dense-\d{20}\.(?:json|safetensors)"
    r"|log-[0-9a-f]{16}-\d{5}-of-\d{5}/seg-\d{20}\.delta"
    r"|base-[0-9a-f]{8}/[\w.-]+"
)
_BASE = re.compile(r"base-[0-9a-f]{8}")
_LATEST = 3
"""Number of cuts whose dense weights stay, for followers that still read them."""


class FeedCache:
    """Writes the messages of a feed to a folder. Used by one thread.

    Args:
        folder: Folder of the cache; no other process may write to it. Content of an earlier process is reused.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._claim: int | None = _claim(self.folder)
        self._part = self.folder / "receiving.part"
        self._path = ""
        self._size = self._received = 0
        self._kept: set[str] | None = None
        self._is_verified = False
        self._weights: deque[set[str]] = deque(maxlen=_LATEST)
        self.begun_bytes = 0
        """Bytes of the base and segments that the last full transfer sent."""
        self.added_bytes = 0
        """Bytes of segments since then."""

    def close(self) -> None:
        """Release the folder for another process. A second call does nothing."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def positions(self) -> dict[int, LogPosition]:
        """Return the position of each shard in the cache; an empty mapping if the cache is unusable.

        The first call verifies every segment that an earlier process left.
        """
        try:
            cut = read_cut(self.folder)
            if cut is None or len(cut.folders) != len(cut.sequences):
                return {}
            found = {}
            for shard, sequence in cut.sequences.items():
                log = DeltaReader(self.folder / cut.folders[shard]).read(sequence).log if sequence else 0
                found[shard] = LogPosition(log, sequence)
            if not self._is_verified:
                for folder in cut.folders:
                    reader = DeltaReader(self.folder / folder)
                    for segment in reader.segments():
                        reader.verify(segment)
            self._is_verified = True
            return found
        except (ArtifactError, OSError):
            return {}

    def begin(self) -> None:
        """Discard a partial file and a partial base. Call it when a connection starts and when it ends."""
        self._path = ""
        self._kept = None
        self._part.unlink(missing_ok=True)
        self._remove_other_bases()

    def take(self, message: FollowResponse) -> Cut | None:
        """Store a message; return the cut that it completes, or None.

        Raises:
            ArtifactError: The message is invalid. Nothing of it was stored.
            OSError: The message cannot be stored.
        """
        if message.is_anew:
            self._kept = set()
            self.begun_bytes = self.added_bytes = 0
        if not message.path:
            return None
        self._check(message)
        if not message.offset:
            self._path, self._size, self._received = message.path, message.size, 0
            if self._size <= shutil.disk_usage(self.folder).free:
                self._part.unlink(missing_ok=True)
            else:
                raise ArtifactError(
                    f"'{message.path}' has {message.size} bytes, more than the free space of '{self.folder}'; free "
                    "disk space, or give another --sync-cache"
                )
        with self._part.open("ab") as file:
            file.write(message.content)
            self._received += len(message.content)
        if self._received < self._size:
            return None
        return self._finish()

    def _check(self, message: FollowResponse) -> None:
        path = message.path
        if not _NAME.fullmatch(path):
            raise ArtifactError(
                f"file name is {path[:100]!r}, expected a published file; check the publisher's address"
            )
        expected = (self._path, self._received, self._size) if message.offset else (path, 0, message.size)
        if (path, message.offset, message.size) != expected or message.offset + len(message.content) > message.size:
            raise ArtifactError(f"pieces of '{path}' are out of order; reconnecting")
        if not message.content and message.size:
            raise ArtifactError(f"a piece of '{path}' is empty; reconnecting")
        if _native.crc32c(message.content) != message.crc32c:
            raise ArtifactError(f"a piece of '{path}' is corrupt: its checksum differs; reconnecting")

    def _finish(self) -> Cut | None:
        path, target = self._path, self.folder / self._path
        self._path = ""
        target.parent.mkdir(exist_ok=True)
        if path == CUT:
            return self._take_cut(target)
        if path == BASE:
            self._take_base(target)
            return None
        os.replace(self._part, target)
        if self._kept is not None and not path.startswith(DENSE):
            self._kept.add(path)
            self.begun_bytes += self._size
        elif path.startswith("log-"):
            self.added_bytes += self._size
        return None

    def _read_staged(self, name: str, read: Callable[[Path], T | None]) -> T:
        """Read a received manifest in a staging folder, before followers can see it."""
        staged = self.folder / "staged"
        staged.mkdir(exist_ok=True)
        os.replace(self._part, staged / name)
        try:
            found = read(staged)
        except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
            raise ArtifactError(f"received '{name}' is invalid ({error}); check the publisher's address") from error
        assert found is not None  # the file exists
        return found

    def _take_base(self, target: Path) -> None:
        base = self._read_staged(BASE, read_base)
        if base.tables.parent != self.folder / "staged" or not _BASE.fullmatch(base.tables.name):
            raise ArtifactError(
                f"base folder is '{base.tables}', expected one in the cache; check the publisher's address"
            )
        os.replace(self.folder / "staged" / BASE, target)

    def _take_cut(self, target: Path) -> Cut:
        """Make a received cut the current one, and remove files that it does not need."""
        cut = self._read_staged(CUT, read_cut)
        if len(cut.folders) != len(cut.sequences):
            raise ArtifactError("the received cut names no folders; check the publisher's address")
        for shard, sequence in cut.sequences.items():
            place = f"{cut.folders[shard]}/seg-{sequence:020d}.delta"
            if not _NAME.fullmatch(place) or (sequence and not (self.folder / place).exists()):
                raise ArtifactError(f"the cut arrived before its segment '{place}'; reconnecting")
        weights = set(version_files(self.folder, cut.dense)) if cut.dense else set()
        for name in weights:
            if not (self.folder / name).exists():
                raise ArtifactError(f"the cut arrived before '{name}'; reconnecting")
        os.replace(self.folder / "staged" / CUT, target)
        self._weights.append(weights)
        self._tidy_up(cut)
        self._kept = None
        return cut

    def _tidy_up(self, cut: Cut) -> None:
        if len(self._weights) == _LATEST:
            needed = set().union(*self._weights)
            for path in (self.folder / DENSE).glob("dense-*"):
                if f"{DENSE}/{path.name}" not in needed:
                    path.unlink(missing_ok=True)
        for folder in self.folder.glob("log-*"):
            if folder.name not in cut.folders:
                shutil.rmtree(folder, ignore_errors=True)
        if self._kept is None:
            return
        for name in cut.folders:
            for number in segment_numbers(self.folder / name):
                if segment_path(Path(name), number).as_posix() not in self._kept:
                    segment_path(self.folder / name, number).unlink(missing_ok=True)
        if not any(name.startswith("base-") for name in self._kept):
            (self.folder / BASE).unlink(missing_ok=True)
        self._remove_other_bases()

    def _remove_other_bases(self) -> None:
        """Remove bases that ``base.json`` does not name: older ones, and those of transfers that broke off."""
        try:
            base = read_base(self.folder)
        except ArtifactError:  # followers cannot use it either
            base = None
        for folder in self.folder.glob("base-*"):
            if folder.is_dir() and (base is None or folder.name != base.tables.name):
                shutil.rmtree(folder, ignore_errors=True)


def _claim(folder: Path) -> int:
    """Lock the folder until the handle is closed or this process ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(
            f"'{folder}' is in use by another process, expected one process per cache; give another --sync-cache"
        ) from None
    return handle

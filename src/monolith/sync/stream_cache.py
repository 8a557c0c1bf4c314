"""A folder that a stream fills: of the format of a published one, so that it is followed like one.

Nothing of what comes is believed: names, lengths and checksums are looked at before a byte is written, and a cut is
there only after all of its files. Where the messages come from is not known here.
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
from monolith.sync.base import BASE, read_base
from monolith.sync.dense_versions import DENSE, version_files
from monolith.sync.stream_messages import FollowResponse

__all__ = ["StreamCache"]

T = TypeVar("T")

_NAME = re.compile(
    r"cut\.json|base\.json"
    r"|dense/dense-\d{20}\.(?:json|safetensors)"
    r"|log-[0-9a-f]{16}-\d{5}-of-\d{5}/seg-\d{20}\.delta"
    r"|base-[0-9a-f]{8}/[\w.-]+"
)
_BASE = re.compile(r"base-[0-9a-f]{8}")
_LATEST = 3
"""Cuts whose dense weights are kept: somebody may be about to read them."""


class StreamCache:
    """Takes messages, one after the other. Used by one thread; others read the folder.

    Args:
        folder: Where to; nobody else may write there. What an earlier process left is gone on from.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._claim: int | None = _claim(self.folder)
        self._part = self.folder / "receiving.part"
        self._path = ""
        self._size = self._got = 0
        self._kept: set[str] | None = None
        self._weights: deque[set[str]] = deque(maxlen=_LATEST)
        self.begun_bytes = 0
        """Bytes of what the segments begin with."""
        self.added_bytes = 0
        """Bytes of segments that came after."""

    def close(self) -> None:
        """Let another process write here; a second call does nothing."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def positions(self) -> dict[int, LogPosition]:
        """Return the segment of each shard that is here with all that leads to it; nothing where that is not sound."""
        try:
            cut = read_cut(self.folder)
            if cut is None or len(cut.folders) != len(cut.sequences):
                return {}
            found = {}
            for shard, sequence in cut.sequences.items():
                log = DeltaReader(self.folder / cut.folders[shard]).read(sequence).log if sequence else 0
                found[shard] = LogPosition(log, sequence)
            return found
        except (ArtifactError, OSError):
            return {}

    def begin(self) -> None:
        """Forget the file that was coming: a connection begins, or has ended."""
        self._path = ""
        self._kept = None
        self._part.unlink(missing_ok=True)

    def take(self, message: FollowResponse) -> Cut | None:
        """Store what a message brings; return the cut that is whole with it, if it is one.

        Raises:
            ArtifactError: It is not what a publisher sends; nothing of it was stored.
            OSError: It cannot be stored.
        """
        if message.is_anew:
            self._kept = set()
            self.begun_bytes = self.added_bytes = 0
        if not message.path:
            return None
        self._check(message)
        if not message.offset:
            self._path, self._size, self._got = message.path, message.size, 0
            if self._size <= shutil.disk_usage(self.folder).free:
                self._part.unlink(missing_ok=True)
            else:
                raise ArtifactError(
                    f"'{message.path}' is to have {message.size} bytes, more than '{self.folder}' has space for; free "
                    "some, or give another --sync-cache"
                )
        with self._part.open("ab") as file:
            file.write(message.content)
            self._got += len(message.content)
        if self._got < self._size:
            return None
        return self._finish()

    def _check(self, message: FollowResponse) -> None:
        path = message.path
        if not _NAME.fullmatch(path):
            raise ArtifactError(f"a file {path[:100]!r} came, which no publisher has; see what listens there")
        expected = (self._path, self._got, self._size) if message.offset else (path, 0, message.size)
        if (path, message.offset, message.size) != expected or message.offset + len(message.content) > message.size:
            raise ArtifactError(f"the parts of '{path}' do not follow one another; connecting again")
        if not message.content and message.size:
            raise ArtifactError(f"a part of '{path}' is empty; connecting again")
        if _native.crc32c(message.content) != message.crc32c:
            raise ArtifactError(f"a part of '{path}' was altered on its way: its checksum differs; connecting again")

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

    def _staged(self, name: str, read: Callable[[Path], T | None]) -> T:
        """Read a manifest that has come, before anybody else can."""
        staged = self.folder / "staged"
        staged.mkdir(exist_ok=True)
        os.replace(self._part, staged / name)
        try:
            found = read(staged)
        except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
            raise ArtifactError(f"'{name}' that came is none ({error}); see what listens there") from error
        assert found is not None  # it is there
        return found

    def _take_base(self, target: Path) -> None:
        base = self._staged(BASE, read_base)
        if base.tables.parent != self.folder / "staged" or not _BASE.fullmatch(base.tables.name):
            raise ArtifactError(f"a base came that is elsewhere: '{base.tables}'; see what listens there")
        os.replace(self.folder / "staged" / BASE, target)

    def _take_cut(self, target: Path) -> Cut:
        """Make a cut the one to follow, and remove what it does not need."""
        cut = self._staged(CUT, read_cut)
        if len(cut.folders) != len(cut.sequences):
            raise ArtifactError("a cut came that names no folders; see what listens there")
        for shard, sequence in cut.sequences.items():
            place = f"{cut.folders[shard]}/seg-{sequence:020d}.delta"
            if not _NAME.fullmatch(place) or (sequence and not (self.folder / place).exists()):
                raise ArtifactError(f"a cut came before its segment '{place}'; connecting again")
        weights = set(version_files(self.folder, cut.dense)) if cut.dense else set()
        for name in weights:
            if not (self.folder / name).exists():
                raise ArtifactError(f"a cut came before '{name}'; connecting again")
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
        base = read_base(self.folder)
        for folder in self.folder.glob("base-*"):
            if folder.is_dir() and (base is None or folder.name != base.tables.name):
                shutil.rmtree(folder, ignore_errors=True)


def _claim(folder: Path) -> int:
    """Keep other writers out until the handle is closed, or this process is gone."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(f"another process receives cuts in '{folder}'; give this one another --sync-cache") from None
    return handle

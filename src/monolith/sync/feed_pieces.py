"""Split the files that a subscriber lacks into messages: first the files of a cut, then the cut.

``CutPieces`` keeps the position of one subscriber. File names are the same for every subscriber. The name of a log's
folder contains the log's number, so segments of two logs never share a folder.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from monolith import _native
from monolith.artifacts.delta_log import Cut, LogPosition
from monolith.artifacts.delta_log.publish import CUT, encoded_cut
from monolith.artifacts.delta_log.segment import segment_path
from monolith.core.errors import ArtifactError
from monolith.sync.base_snapshot import BASE, BaseSnapshot, encode_base, read_base
from monolith.sync.dense_versions import version_files
from monolith.sync.feed_messages import PIECE_BYTES, FollowResponse
from monolith.sync.row_updates import RowUpdate, iterate_segments, plan_update

__all__ = ["CutPieces", "log_name"]


def log_name(position: LogPosition, shard: int, count: int) -> str:
    """Return the folder name of a log on subscribers."""
    return f"log-{position.log:016x}-{shard:05d}-of-{count:05d}"


class CutPieces:
    """Messages for one subscriber, cut after cut.

    Args:
        root: Published folder.
        at: Position of the subscriber, by shard; empty for a new subscriber.
    """

    def __init__(self, root: Path, at: Mapping[int, LogPosition]) -> None:
        self._root = root
        self._at = at
        self._dense: set[str] = set()
        self._begin: Mapping[int, LogPosition] = at

    def to(self, cut: Cut) -> Iterator[FollowResponse]:
        """Yield the messages that lead to a cut.

        Raises:
            ArtifactError: A file is damaged, or was removed meanwhile. A newer cut may work.
        """
        update = plan_update(self._root, cut, self._at)
        sent = {segment.path for segment in update.segments}
        # The subscriber reads its position from the cut's newest segments, even if the base contains their rows.
        anchors = [segment for segment in update.newest if update.is_full_rebuild and segment.path not in sent]
        if update.is_full_rebuild:
            self._begin = {} if update.base is None else update.base.positions
            self._dense = set()
        names = version_files(self._root, cut.dense) if cut.dense else []
        count = len(cut.sequences)
        with ExitStack() as stack:
            # Open the weights first: sending the rows may take longer than newer versions take to replace them.
            weights = {name: stack.enter_context(self._open(name)) for name in names if name not in self._dense}
            if update.is_full_rebuild:
                yield FollowResponse(is_anew=True)
                if update.base is not None:
                    yield from _base(update.base)
            for segment in iterate_segments([*update.segments, *anchors]):  # verified: damaged bytes are never sent
                shard, _ = segment.shard
                name = log_name(LogPosition(segment.log, segment.sequence), shard, count)
                with segment.path.open("rb") as file:
                    yield from _file(segment_path(Path(name), segment.sequence).as_posix(), file)
            for name, weight in weights.items():
                yield from _file(name, weight)
        self._dense = set(names)
        folders = tuple(log_name(update.positions[shard], shard, count) for shard in range(count))
        content = encoded_cut(dataclasses.replace(cut, folders=folders))
        yield from _content(CUT, content, has_newer_base=self._has_newer_base(update))
        self._at = update.positions

    def _open(self, name: str) -> BinaryIO:
        try:
            return (self._root / name).open("rb")
        except FileNotFoundError as error:
            raise ArtifactError(f"'{self._root / name}' is gone: newer versions replaced it") from error

    def _has_newer_base(self, update: RowUpdate) -> bool:
        """Return whether a base contains segments that the subscriber holds."""
        base = read_base(self._root)
        if base is None or base.positions.keys() != update.positions.keys():
            return False
        return any(
            position.log == update.positions[shard].log
            and position.sequence > self._begin.get(shard, LogPosition(0, 0)).sequence
            for shard, position in base.positions.items()
        )


def _base(base: BaseSnapshot) -> Iterator[FollowResponse]:
    newest = "-".join(f"{position.log:016x}.{position.sequence}" for _, position in sorted(base.positions.items()))
    folder = f"base-{_native.crc32c(newest.encode()):08x}"
    try:
        with ExitStack() as stack:
            names = sorted(path.relative_to(base.tables) for path in base.tables.rglob("*") if path.is_file())
            # Open all files first: they stay readable after a newer checkpoint removes them.
            files = {name: stack.enter_context((base.tables / name).open("rb")) for name in names}
            for name, file in files.items():
                yield from _file(f"{folder}/{name.as_posix()}", file)
    except FileNotFoundError as error:
        raise ArtifactError(f"{error}: the base snapshot was removed meanwhile; read a newer one") from error
    yield from _content(BASE, encode_base(folder, base.positions))


def _file(path: str, file: BinaryIO) -> Iterator[FollowResponse]:
    size, offset = os.fstat(file.fileno()).st_size, 0
    while True:
        content = file.read(min(PIECE_BYTES, size - offset))
        yield FollowResponse(path=path, offset=offset, size=size, content=content, crc32c=_native.crc32c(content))
        offset += len(content)
        if offset >= size or not content:
            return


def _content(path: str, content: bytes, *, has_newer_base: bool = False) -> Iterator[FollowResponse]:
    yield FollowResponse(
        path=path,
        size=len(content),
        content=content,
        crc32c=_native.crc32c(content),
        has_newer_base=has_newer_base,
    )

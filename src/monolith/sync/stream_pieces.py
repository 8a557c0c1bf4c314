"""What somebody lacks of a published folder, as messages: the files of a cut, and then the cut itself.

Files go under names of our own, the same for every subscriber: a log is named by its number, so that segments of two
logs never meet in one folder. Who asks, and over what connection, is not known here.
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
from monolith.sync.base import BASE, Base, encoded_base, read_base
from monolith.sync.dense_versions import version_files
from monolith.sync.row_moves import RowMove, opened, plan_move
from monolith.sync.stream_messages import PIECE_BYTES, FollowResponse

__all__ = ["CutPieces", "log_name"]


def log_name(position: LogPosition, shard: int, count: int) -> str:
    """Return the name of a log's folder at subscribers."""
    return f"log-{position.log:016x}-{shard:05d}-of-{count:05d}"


class CutPieces:
    """Goes through the cuts of a folder for one subscriber.

    Args:
        root: What is published.
        at: The segment of each shard that the subscriber holds; empty: it holds nothing.
    """

    def __init__(self, root: Path, at: Mapping[int, LogPosition]) -> None:
        self._root = root
        self._at = at
        self._dense: set[str] = set()
        self._begin: Mapping[int, LogPosition] = at

    def to(self, cut: Cut) -> Iterator[FollowResponse]:
        """Yield what leads to a cut.

        Raises:
            ArtifactError: It is damaged, or was removed meanwhile: a newer cut may do.
        """
        move = plan_move(self._root, cut, self._at)
        sent = {segment.path for segment in move.segments}
        # A cut's own segments say where it is, even when the base has all that is in them.
        anchors = [segment for segment in move.newest if move.is_anew and segment.path not in sent]
        with opened([*move.segments, *anchors]) as held:  # checked, so that nobody is sent what is damaged
            if move.is_anew:
                yield FollowResponse(is_anew=True)
                if move.base is not None:
                    yield from _base(move.base)
                self._begin = {} if move.base is None else move.base.positions
                self._dense = set()
            count = len(cut.sequences)
            for segment in held:
                shard, _ = segment.shard
                name = log_name(LogPosition(segment.log, segment.sequence), shard, count)
                with segment.path.open("rb") as file:
                    yield from _file(segment_path(Path(name), segment.sequence).as_posix(), file)
            yield from self._weights(cut)
        folders = tuple(log_name(move.positions[shard], shard, count) for shard in range(count))
        content = encoded_cut(dataclasses.replace(cut, folders=folders))
        yield from _content(CUT, content, has_newer_base=self._has_newer_base(move))
        self._at = move.positions

    def _weights(self, cut: Cut) -> Iterator[FollowResponse]:
        if not cut.dense:
            return
        names = version_files(self._root, cut.dense)
        for name in names:
            if name in self._dense:
                continue
            try:
                with (self._root / name).open("rb") as file:
                    yield from _file(name, file)
            except FileNotFoundError as error:
                raise ArtifactError(
                    f"'{self._root / name}' is gone: a newer version was published meanwhile"
                ) from error
        self._dense = set(names)

    def _has_newer_base(self, move: RowMove) -> bool:
        """Whether a base holds what the subscriber has as segments."""
        base = read_base(self._root)
        if base is None or base.positions.keys() != move.positions.keys():
            return False
        return any(
            position.log == move.positions[shard].log
            and position.sequence > self._begin.get(shard, LogPosition(0, 0)).sequence
            for shard, position in base.positions.items()
        )


def _base(base: Base) -> Iterator[FollowResponse]:
    newest = "-".join(f"{position.log:016x}.{position.sequence}" for _, position in sorted(base.positions.items()))
    folder = f"base-{_native.crc32c(newest.encode()):08x}"
    try:
        with ExitStack() as stack:
            names = sorted(path.relative_to(base.tables) for path in base.tables.rglob("*") if path.is_file())
            # All at once: they stay readable when a newer checkpoint removes them.
            files = {name: stack.enter_context((base.tables / name).open("rb")) for name in names}
            for name, file in files.items():
                yield from _file(f"{folder}/{name.as_posix()}", file)
    except FileNotFoundError as error:
        raise ArtifactError(f"{error}: the base was removed meanwhile; begin with a newer one") from error
    yield from _content(BASE, encoded_base(folder, base.positions))


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

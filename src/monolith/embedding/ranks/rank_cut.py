"""A snapshot that all ranks write together: each its own rows, and rank 0 the manifest.

Rank 0 broadcasts the folder, gathers the parts of all ranks, publishes the manifest and broadcasts the outcome. The
other ranks follow. All of it happens in the thread that writes checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from monolith.core.errors import ArtifactError, ConfigError, MonolithError
from monolith.embedding import Manifest, TableSpec
from monolith.embedding.ranks.channel import Channel
from monolith.embedding.snapshot import SavedTable, SharedSnapshot, TableCut, read_manifest

__all__ = ["RankCut", "leading"]


@contextmanager
def leading(saves: Channel, path: Callable[[], Path]) -> Iterator[None]:
    """Broadcast the outcome of a save that rank 0 leads; ``path`` returns the folder that is durable."""
    try:
        yield
    except BaseException as error:
        saves.broadcast_bytes(json.dumps({"failed": str(error) or type(error).__name__}).encode())
        raise
    saves.broadcast_bytes(json.dumps({"safe": str(path())}).encode())


class RankCut:
    """The tables of one rank at one instant. Rank 0 writes it by ``write``, the other ranks by ``follow``.

    Args:
        cut: The rows of this rank.
        saves: The channel of the thread that writes checkpoints.
        specs: The tables.
    """

    def __init__(self, cut: TableCut, saves: Channel, specs: Mapping[str, TableSpec]) -> None:
        self._cut = cut
        self._saves = saves
        self._specs = specs

    def write(self, path: str | PathLike[str]) -> Manifest:
        """Write the rows of every rank to the folder ``path``, all or nothing.

        Raises:
            ArtifactError: A rank failed to write its rows.
        """
        if not self._saves.is_chief:
            raise ConfigError(
                f"rank is {self._saves.rank}, expected 0 to lead a save; call follow() on the other ranks"
            )
        with SharedSnapshot(path) as shared:
            where = {"folder": str(shared.folder), "generation": shared.generation}
            self._saves.broadcast_bytes(json.dumps(where).encode())
            answers = [json.loads(answer) for answer in self._saves.gather_bytes(self._write_part(where))]
            failed = [f"rank {rank}: {answer['failed']}" for rank, answer in enumerate(answers) if "failed" in answer]
            if failed:
                raise ArtifactError(f"the tables were not saved: {'; '.join(failed)}")
            saved = shared.publish([answer["tables"] for answer in answers], {})
        return _manifest(path, saved)

    def follow(self) -> Path:
        """Write this rank's rows to the folder of rank 0; return the path once all ranks have written.

        Raises:
            ArtifactError: The save failed.
        """
        try:
            while True:
                message: dict[str, Any] = json.loads(self._saves.broadcast_bytes())
                if "safe" in message:
                    return Path(message["safe"])
                if "failed" in message:
                    raise ArtifactError(f"rank 0 did not save: {message['failed']}")
                self._saves.gather_bytes(self._write_part(message))
        finally:
            self.drop()

    def written(self, path: str | PathLike[str]) -> Manifest:
        """Return the manifest in ``path``, after the save."""
        return _manifest(path, read_manifest(path))

    def drop(self) -> None:
        """Release the tables."""
        self._cut.drop()

    def _write_part(self, where: Mapping[str, Any]) -> bytes:
        """Write this rank's rows; return its entry of the manifest, or the error, as JSON."""
        saves = self._saves
        answer: dict[str, Any]
        try:
            answer = {"tables": self._cut.write_part(where["folder"], where["generation"], saves.rank, saves.size)}
        except (MonolithError, OSError) as error:
            answer = {"failed": str(error)}
        return json.dumps(answer).encode()


def _manifest(path: str | PathLike[str], saved: list[SavedTable]) -> Manifest:
    return Manifest(
        path=Path(path),
        rows={table.name: table.rows for table in saved},
        max_time_s={table.name: table.max_time_s for table in saved},
    )

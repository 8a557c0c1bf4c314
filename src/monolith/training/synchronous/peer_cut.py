"""A snapshot that all ranks write together: each its own rows, and rank 0 the manifest.

Rank 0 says where, collects what the others wrote, publishes it, and says how it ended; the others follow what it says.
All of it happens in the thread that writes checkpoints.
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
from monolith.embedding.snapshot import SavedTable, SharedSnapshot, TableCut, read_manifest
from monolith.training.synchronous.peers import Channel

__all__ = ["PeerCut", "leading"]


@contextmanager
def leading(saves: Channel, path: Callable[[], Path]) -> Iterator[None]:
    """Tell the ranks that follow how a save ended that rank 0 leads; ``path`` gives what is safe then."""
    try:
        yield
    except BaseException as error:
        saves.from_chief(json.dumps({"failed": str(error) or type(error).__name__}).encode())
        raise
    saves.from_chief(json.dumps({"safe": str(path())}).encode())


class PeerCut:
    """The tables of one rank as they were when it was taken. Written by ``write`` at rank 0, by ``follow`` elsewhere.

    Args:
        cut: The rows of this rank.
        saves: The channel of the thread that writes.
        specs: The tables.
    """

    def __init__(self, cut: TableCut, saves: Channel, specs: Mapping[str, TableSpec]) -> None:
        self._cut = cut
        self._saves = saves
        self._specs = specs

    def write(self, path: str | PathLike[str]) -> Manifest:
        """Have every rank write its rows to the folder ``path``; publish them together, or not at all.

        Raises:
            ArtifactError: A rank could not.
        """
        if not self._saves.is_chief:
            raise ConfigError(f"rank {self._saves.rank} cannot lead a save, rank 0 does; call follow() here")
        with SharedSnapshot(path) as shared:
            where = {"folder": str(shared.folder), "generation": shared.generation}
            self._saves.from_chief(json.dumps(where).encode())
            answers = [json.loads(answer) for answer in self._saves.to_chief(self._write_part(where))]
            failed = [f"rank {rank}: {answer['failed']}" for rank, answer in enumerate(answers) if "failed" in answer]
            if failed:
                raise ArtifactError(f"the tables were not saved; {'; '.join(failed)}")
            saved = shared.publish([answer["tables"] for answer in answers], {})
        return _manifest(path, saved)

    def follow(self) -> Path:
        """Write this rank's rows where rank 0 says; return what is safe when all is done.

        Raises:
            ArtifactError: The save failed.
        """
        try:
            while True:
                told: dict[str, Any] = json.loads(self._saves.from_chief())
                if "safe" in told:
                    return Path(told["safe"])
                if "failed" in told:
                    raise ArtifactError(f"rank 0 did not save: {told['failed']}")
                self._saves.to_chief(self._write_part(told))
        finally:
            self.drop()

    def written(self, path: str | PathLike[str]) -> Manifest:
        """Return what lies in ``path`` when the save is safe."""
        return _manifest(path, read_manifest(path))

    def drop(self) -> None:
        """Let go of the tables."""
        self._cut.drop()

    def _write_part(self, where: Mapping[str, Any]) -> bytes:
        """Write this rank's rows; the answer says what the manifest is to hold, or why there is nothing."""
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

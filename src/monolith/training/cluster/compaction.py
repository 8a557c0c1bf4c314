"""``CompactionHook``: shortens the delta logs of the servers after each checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from typing_extensions import override

from monolith.core.errors import ArtifactError, MonolithError
from monolith.sync.base_snapshot import read_base
from monolith.training.checkpoints.files import TABLES
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["CompactionHook", "published_only"]

logger = logging.getLogger(__name__)


class CompactionHook(Hook):
    """Compacts the delta logs after every durable checkpoint. A failure costs only space, until the next checkpoint.

    Args:
        compact: Compacts the logs of all servers, given the folder of the checkpoint.
    """

    def __init__(self, compact: Callable[[Path], object]) -> None:
        self._compact = compact

    @override
    def after_save(self, run: Run, path: Path) -> None:
        try:
            self._compact(path)
        except MonolithError as error:
            logger.warning("delta logs not compacted path=%s error=%s", path, error)


def published_only(compact: Callable[[Path], object], published: Path) -> Callable[[Path], None]:
    """Return ``compact`` for the checkpoint that is the base of a published folder.

    A follower that starts later needs the segments behind the base. The returned function raises ``ArtifactError`` for
    another checkpoint: its base could not be written, and the next one shortens the logs.

    Args:
        compact: Compacts the logs of all servers, given the folder of the checkpoint.
        published: The published folder, on this machine.
    """

    def compact_published(checkpoint: Path) -> None:
        base, tables = read_base(published), checkpoint / TABLES
        if base is None or os.path.abspath(base.tables) != os.path.abspath(tables):
            raise ArtifactError(
                f"base of '{published}' is {None if base is None else str(base.tables)!r}, expected '{tables}', which "
                "was not published; the next published checkpoint shortens the logs"
            )
        compact(checkpoint)

    return compact_published

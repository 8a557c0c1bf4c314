"""After each checkpoint: the servers' delta logs need not hold what is in it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from monolith.core.errors import MonolithError
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["CompactionHook"]

logger = logging.getLogger(__name__)


class CompactionHook(Hook):
    """Tells the servers of every checkpoint that is safe. One that fails costs space only: the next makes up for it.

    Args:
        compact: Has the servers do it, given the checkpoint's folder.
    """

    def __init__(self, compact: Callable[[Path], object]) -> None:
        self._compact = compact

    def after_save(self, run: Run, path: Path) -> None:
        """Compact the logs."""
        try:
            self._compact(path)
        except MonolithError as error:
            logger.warning("delta logs were not compacted path=%s error=%s", path, error)

"""``CompactionHook``: shortens the delta logs of the servers after each checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from typing_extensions import override

from monolith.core.errors import MonolithError
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["CompactionHook"]

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

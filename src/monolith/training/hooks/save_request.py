"""A checkpoint asked for by a hook: the loop's own thread may not wait for one, so another does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from monolith.training.run import Run

__all__ = ["SaveRequest"]

logger = logging.getLogger(__name__)

_END_S = 20.0  # how long the end of a run waits for a save in progress


class SaveRequest:
    """At most one save under way. Used by one hook."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether the last one has not ended yet."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, run: Run, reason: str, then: Callable[[Path | Exception], None] | None = None) -> None:
        """Ask for a checkpoint of the next step boundary.

        A failure is logged, not raised: the loop tells its own. ``then`` is called in the other thread, with the folder
        or with the error.
        """

        def save() -> None:
            outcome: Path | Exception
            try:
                outcome = run.save(reason)
            except Exception as error:
                logger.warning("a checkpoint that was asked for failed reason=%r", reason, exc_info=True)
                outcome = error
            if then is not None:
                then(outcome)

        self._thread = threading.Thread(target=save, name="save-request", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Give one that is under way a moment to end."""
        if self._thread is not None:
            self._thread.join(_END_S)
            self._thread = None

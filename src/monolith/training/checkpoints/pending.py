"""Saves in progress: one thread writes them in order, and ``PendingSave`` holds the result of each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

__all__ = ["BackgroundWriter", "PendingSave"]

logger = logging.getLogger(__name__)


class PendingSave:
    """A save whose state is taken and whose files are on their way."""

    def __init__(self, step: int, reason: str, pause_s: float, future: Future[Path]) -> None:
        self.step = step
        self.reason = reason
        self.pause_s = pause_s
        """How long the save paused training, including the wait for an earlier save."""
        self.is_reported = False
        """Whether a caller has received the result."""
        self._future = future

    @property
    def is_done(self) -> bool:
        """Whether it ended, well or not."""
        return self._future.done()

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error."""
        return self._future.done() and self._future.exception() is not None

    @property
    def has_unreported_error(self) -> bool:
        """Whether it failed and no caller has received the error."""
        return not self.is_reported and self.has_failed

    def wait(self, timeout_s: float | None = None) -> Path:
        """Wait until the checkpoint is safe and return its folder.

        Raises:
            ArtifactError: It could not be written; earlier ones are as they were.
            TimeoutError: It is still under way.
        """
        self.settle(timeout_s)
        self.is_reported = True
        return self._future.result()

    def settle(self, timeout_s: float | None = None) -> None:
        """Wait until it ended, well or not."""
        self._future.exception(timeout_s)


class BackgroundWriter:
    """Writes saves in a background thread. Called by one thread."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: list[PendingSave] = []

    def wait_until_idle(self, step: int) -> None:
        """Wait for the save in progress, whether it succeeds or fails, before the save of ``step``."""
        for pending in self._pending:
            if not pending.is_done:
                logger.info("waiting for the save under way step=%d under_way=%d", step, pending.step)
                pending.settle()

    def begin(self, step: int, reason: str, pause_s: float, write: Callable[[], Path]) -> PendingSave:
        """Let the thread write."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        return self._add(PendingSave(step, reason, pause_s, self._pool.submit(write)))

    def finish(self, step: int, reason: str, pause_s: float, write: Callable[[], Path]) -> PendingSave:
        """Write before returning."""
        future: Future[Path] = Future()
        try:
            future.set_result(write())
        except Exception as error:  # reported like an error of the thread, by wait or close
            future.set_exception(error)
        return self._add(PendingSave(step, reason, pause_s, future))

    def _add(self, pending: PendingSave) -> PendingSave:
        """Keep a save until it has ended well or its error was reported."""
        self._pending = [each for each in self._pending if not each.is_done or each.has_unreported_error]
        self._pending.append(pending)
        return pending

    def close(self) -> None:
        """Wait for saves in progress, end the thread, and raise an error that no caller has received."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        for pending in [each for each in self._pending if each.has_unreported_error]:
            pending.wait()

"""``JoinRun``: several partition groups of a join in one process, one thread each.

Groups share nothing: the watermark, state and commits of each are separate. A group that fails stops alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from monolith.core.errors import ClusterError, MonolithError
from monolith.stream.runtime.group import JoinGroup

__all__ = ["JoinRun"]

logger = logging.getLogger(__name__)

_WAIT_S = 0.1


class JoinRun:
    """Runs groups until they end or ``stop`` is called. Threads may call ``stop`` and read ``groups``.

    Args:
        make_group: Makes the group of a partition number; called in the thread of the group.
        partitions: The partition numbers.
        until_end: End each group when its inputs are read, and close its windows.
    """

    def __init__(self, make_group: Callable[[int], JoinGroup], partitions: Iterable[int], *, until_end: bool) -> None:
        self._make_group = make_group
        self._until_end = until_end
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.groups: dict[int, JoinGroup] = {}
        self.failures: dict[int, Exception] = {}
        self.partitions = sorted(partitions)
        self.running: set[int] = set(self.partitions)
        self._threads = [
            threading.Thread(target=self._run, args=(partition,), name=f"join-{partition}", daemon=True)
            for partition in self.partitions
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask every group to commit, save a snapshot and end."""
        self._stop.set()
        with self._lock:
            for group in self.groups.values():
                group.is_stopping = True

    def is_done(self) -> bool:
        """Return True if every group has ended."""
        return not any(thread.is_alive() for thread in self._threads)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until every group has ended, for ``timeout_s`` at most per group. A group that still runs has failed."""
        for partition, thread in zip(self.partitions, self._threads, strict=True):
            thread.join(timeout_s)
            if thread.is_alive():
                text = f"group {partition} runs {timeout_s} s after the stop, expected its end; check disk and brokers"
                self._fail(partition, ClusterError(text))

    def _run(self, partition: int) -> None:
        try:
            group = self._make_group(partition)
        except Exception as error:
            self._fail(partition, error)
            return
        with self._lock:
            self.groups[partition] = group
            group.is_stopping = self._stop.is_set()  # a stop that came before does not see the group
        try:
            group.start()
            while not self._stop.is_set():
                if not group.step(_WAIT_S) and self._until_end and group.is_at_end():
                    group.finish()
                    break
            group.close()
        except Exception as error:  # an unexpected class too: a run without failures reports success
            self._fail(partition, error)
        finally:
            try:
                group.abandon()
            except Exception as error:  # of the disk or broker that ended the group
                logger.warning("join group released its files with an error group=%d error=%s", partition, error)
            self.running.discard(partition)

    def _fail(self, partition: int, error: Exception) -> None:
        self.failures[partition] = error
        self.running.discard(partition)
        is_expected = isinstance(error, MonolithError | OSError)
        logger.error("join group stopped group=%d error=%s", partition, error, exc_info=None if is_expected else error)

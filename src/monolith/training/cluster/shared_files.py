"""``SharedFiles``: the work list of a job whose workers claim files as they go (``enable_dynamic_sharding``).

The list is a file in the job's folder. One file lock per worker, so no server is needed and a dead worker's files are
released immediately. The list is part of every checkpoint.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from monolith.data.sources.work_list import FolderWorkList, Lease, WorkListState
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["SharedFiles", "SharedFilesHook", "finished_files", "unread_files", "worker_name"]

logger = logging.getLogger(__name__)


def worker_name(index: int) -> str:
    """Return the name of a worker in the list."""
    return f"worker-{index}"


def finished_files(position: Any, worker: str) -> int:
    """Return the number of files that a worker had trained on to their end at a position; see ``SharedPlan.position``.

    >>> finished_files({"at": {"before": {"source": {"worker": "worker-1", "finished": 3}}}}, "worker-1")
    3
    """
    return min(_counts(position, worker), default=0)


def _counts(position: Any, worker: str) -> list[int]:
    if isinstance(position, Mapping):
        is_own = position.get("worker") == worker and "finished" in position
        counts = [int(position["finished"])] if is_own else []
        return counts + [count for part in position.values() for count in _counts(part, worker)]
    if isinstance(position, list):
        return [count for part in position for count in _counts(part, worker)]
    return []


def unread_files(state: WorkListState) -> list[str]:
    """Return the files that no worker has read to their end."""
    done = set(state["done"])
    return [*(file for file in state["claimed"] if file not in done), *state["waiting"]]


class SharedFiles:
    """The ``WorkList`` of one worker. Nothing is read or written before ``begin`` or the first call.

    Files may follow while another worker still reads: its files return to the list if it dies. Files that a dead worker
    had read but not trained on, by its position, return too.

    Args:
        model_dir: The job's folder.
        files: All files, in their order.
        finished: Returns the number of files that a worker has trained on to their end, by worker index.
        is_over: Whether the job ends for this worker, which then gets no more files.
    """

    def __init__(
        self,
        model_dir: str | Path,
        files: Callable[[], Sequence[str]],
        finished: Callable[[int], int],
        *,
        is_over: Callable[[], bool],
    ) -> None:
        self._folder = Path(model_dir) / "files"
        self._files = files
        self._finished = finished
        self._is_over = is_over
        self._opened: FolderWorkList | None = None
        self._opening = threading.Lock()

    def begin(self, state: WorkListState | None) -> None:
        """Begin with the list of a checkpoint, or with all files. The chief does so before any worker reads.

        Files that are not in the checkpoint's list are appended.
        """
        files = list(self._files())
        if state is None:
            state = {"waiting": files, "claimed": {}, "done": []}
        else:
            known = {*state["waiting"], *state["claimed"]}
            state = {**state, "waiting": [*state["waiting"], *(file for file in files if file not in known)]}
        has_list = (self._folder / "work_list.json").exists()
        with self._opening:
            self._opened = FolderWorkList(self._folder, None if has_list else files, requeue_dead=False)
        self._opened.restore(state)

    def begin_worker(self, worker: str) -> None:
        """Begin without a position: all files that a worker of this name had claimed are waiting again."""
        self._list.give_back(worker, 0)

    @property
    def _list(self) -> FolderWorkList:
        with self._opening:
            if self._opened is None:
                self._opened = FolderWorkList(self._folder, requeue_dead=False)
            return self._opened

    # --- WorkList ---

    def claim(self, worker: str) -> str | None:
        """Return the next file, now claimed by ``worker``; None when none is waiting, or the job ends.

        Files of dead workers come last, so that a worker that starts late finds its own files unchanged.
        """
        if self._is_over():
            return None
        file = self._list.claim(worker)
        if file is None and self._give_back_untrained(worker):
            file = self._list.claim(worker)
        return file

    def may_follow(self) -> bool:
        """Return whether files may be waiting later: another worker still reads, and may die."""
        return not self._is_over() and bool(unread_files(self._list.state()))

    def reclaim(self, worker: str, file: str) -> bool:
        """Claim a file again that is waiting or claimed by ``worker``; return whether the claim succeeded."""
        return self._list.reclaim(worker, file)

    def done(self, worker: str, file: str) -> None:
        """Record that ``worker`` has read ``file`` to its end."""
        self._list.done(worker, file)

    def requeue(self, worker: str) -> list[str]:
        """Return the files of a dead worker to the front of the list; return those files."""
        return self._list.requeue(worker)

    def lease(self, worker: str) -> Lease:
        """Return the lease of ``worker``."""
        return self._list.lease(worker)

    def take_back(self, worker: str, lease: Lease) -> list[str]:
        """Give a worker back the files that it finished since an earlier ``lease``; return all its files.

        Raises:
            FilesReassigned: Files of the worker were reassigned since.
        """
        return self._list.take_back(worker, lease)

    def state(self) -> WorkListState:
        """Return the list, to be saved in a checkpoint after the positions of the workers."""
        return self._list.state()

    def restore(self, state: WorkListState) -> None:
        """Restore a saved list."""
        self.begin(state)

    def close(self) -> None:
        """Release the files of this worker. May be called twice."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()

    # --- files of dead workers ---

    def _give_back_untrained(self, worker: str) -> bool:
        """Return the untrained files of dead workers to the list; return whether there were any."""
        has_files = False
        for dead in self._list.dead_workers():
            if dead == worker:
                continue
            index = int(dead.rpartition("-")[2])
            files = self._list.give_back(dead, self._finished(index))
            if files:
                has_files = True
                logger.warning("worker lost, files reassigned worker=%s files=%s", dead, files)
        return has_files

    def settle(self) -> None:
        """Return the files of dead workers to the list at the end of the job, and log the unread files."""
        self._give_back_untrained("")
        unread = unread_files(self.state())
        if unread:
            logger.warning("job ended with unread files; run the job again files=%s", unread)


class SharedFilesHook(Hook):
    """Logs unread files at the end of the chief's run, before the last checkpoint."""

    def __init__(self, files: SharedFiles) -> None:
        self._files = files

    @override
    def before_end(self, run: Run) -> None:
        if run.stop_reason is None:
            self._files.settle()

"""The files of a job whose workers take them from one list as they go (``enable_dynamic_sharding``).

The list is a file in the job's folder, which all workers see anyway, with a lock of the system per worker: it needs no
process to serve it, and who dies lets go of its files in that instant. A checkpoint holds the list; who goes on from
one goes on with it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monolith.data.sources.work_list import FolderWorkList, Lease, WorkListState
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["SharedFiles", "SharedFilesHook", "finished_files", "unread_files", "worker_name"]

logger = logging.getLogger(__name__)


def worker_name(index: int) -> str:
    """Return what a worker is called in the list."""
    return f"worker-{index}"


def finished_files(place: Any, worker: str) -> int:
    """Return how many files a worker had trained on to their end at a place in its data; see ``SharedPlan.position``.

    >>> finished_files({"at": {"before": {"source": {"worker": "worker-1", "finished": 3}}}}, "worker-1")
    3
    """
    return min(_counts(place, worker), default=0)


def _counts(place: Any, worker: str) -> list[int]:
    if isinstance(place, Mapping):
        own = [int(place["finished"])] if place.get("worker") == worker and "finished" in place else []
        return own + [count for part in place.values() for count in _counts(part, worker)]
    if isinstance(place, list):
        return [count for part in place for count in _counts(part, worker)]
    return []


def unread_files(state: WorkListState) -> list[str]:
    """Return the files that nobody has read to their end."""
    done = set(state["done"])
    return [*(file for file in state["claimed"] if file not in done), *state["waiting"]]


class SharedFiles:
    """The ``WorkList`` of one worker. Nothing is read or written before ``begin`` or the first call.

    Files may follow while another worker still reads: should that one die, its files are there again. Files that a dead
    worker had read but not yet trained on, as its place says, come back too.

    Args:
        model_dir: The job's folder.
        files: All files, in their order.
        finished: How many files a worker has trained on to their end, by its index.
        is_over: Whether the job ends for this worker; it then gets no more.
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
        """Begin with the list of a checkpoint, or with all files; the chief does, before anybody reads.

        Files that are not in the checkpoint's list follow at its end.
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
        """Begin without a place: all that a worker of this name had claimed is waiting again, trained on or not."""
        self._list.give_back(worker, 0)

    @property
    def _list(self) -> FolderWorkList:
        with self._opening:
            if self._opened is None:
                self._opened = FolderWorkList(self._folder, requeue_dead=False)
            return self._opened

    # --- WorkList ---

    def claim(self, worker: str) -> str | None:
        """Return the next file, now held by ``worker``; None when there is none now, or the job ends.

        Files of dead workers come last: who is only late to start finds its own where they were.
        """
        if self._is_over():
            return None
        file = self._list.claim(worker)
        if file is None and self._give_back_untrained(worker):
            file = self._list.claim(worker)
        return file

    def may_follow(self) -> bool:
        """Whether files may be waiting later: another worker still reads, and may die."""
        return not self._is_over() and bool(unread_files(self._list.state()))

    def reclaim(self, worker: str, file: str) -> bool:
        """Take up a file again that is waiting or still held by ``worker``; return whether it could be."""
        return self._list.reclaim(worker, file)

    def done(self, worker: str, file: str) -> None:
        """Note that ``worker`` has read ``file`` to its end."""
        self._list.done(worker, file)

    def requeue(self, worker: str) -> list[str]:
        """Put what a dead worker holds back to the front of the list; return those files."""
        return self._list.requeue(worker)

    def lease(self, worker: str) -> Lease:
        """Return the lease of ``worker``."""
        return self._list.lease(worker)

    def take_back(self, worker: str, lease: Lease) -> list[str]:
        """Let a worker hold again what it finished since an earlier ``lease``; return all that it holds.

        Raises:
            FilesReassigned: Files of the worker were reassigned since.
        """
        return self._list.take_back(worker, lease)

    def state(self) -> WorkListState:
        """Return everything, to be saved with a checkpoint after the places of the workers."""
        return self._list.state()

    def restore(self, state: WorkListState) -> None:
        """Go back to a saved state."""
        self.begin(state)

    def close(self) -> None:
        """Let go of what this worker holds. May be called twice."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()

    # --- what became of others ---

    def _give_back_untrained(self, worker: str) -> bool:
        """Give out again what dead workers had not trained on; return whether there was any."""
        has_files = False
        for dead in self._list.dead_workers():
            if dead == worker:
                continue
            index = int(dead.rpartition("-")[2])
            files = self._list.give_back(dead, self._finished(index))
            if files:
                has_files = True
                logger.warning("a worker is gone, its files are given out again worker=%s files=%s", dead, files)
        return has_files

    def settle(self) -> None:
        """At the end of the job: give back what workers that died have left, for the next run, and tell of it."""
        self._give_back_untrained("")
        unread = unread_files(self.state())
        if unread:
            logger.warning("the job ends with files that were not read to their end; run it again files=%s", unread)


class SharedFilesHook(Hook):
    """Tells at the end of the chief's run what was not read, before the last checkpoint."""

    def __init__(self, files: SharedFiles) -> None:
        self._files = files

    def before_end(self, run: Run) -> None:
        """Look at the list when the other workers are through."""
        if run.stop_reason is None:
            self._files.settle()

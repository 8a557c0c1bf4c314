"""Dynamic sharding: workers claim files from one shared list, so that slow workers read fewer.

A file is *waiting*, *held* by a worker, or *done*. ``MemoryWorkList`` serves the threads of a process,
``FolderWorkList`` processes that share a folder. Invariants: one worker at a time holds a file. A file that a dead
worker held can be reassigned to another worker, which reads it from the beginning. Both lists are thread-safe.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from typing_extensions import override

from monolith.core.durable_files import make_folder, replace_file
from monolith.core.errors import ConfigError, DataError

__all__ = ["FilesReassigned", "FolderWorkList", "Lease", "MemoryWorkList", "WorkList", "WorkListState"]

WorkListState: TypeAlias = Mapping[str, Any]
"""Plain JSON: the waiting files in order, the claimed files with their workers, the done files, the epochs of workers.

The JSON key of the epochs is ``lives``.
"""


class FilesReassigned(DataError):
    """A worker cannot resume at its position: files that followed it were reassigned. It starts without a position."""


class Lease(NamedTuple):
    """Progress of a worker. A position saved under a lease can be resumed while the worker's epoch stays the same."""

    finished: int
    """Number of files that the worker has read to their end, in all epochs."""
    epoch: int
    """Incremented whenever this worker's files are reassigned. A position of an older epoch cannot be resumed."""


@runtime_checkable
class WorkList(Protocol):
    """Files that workers claim one by one. Thread-safe."""

    def claim(self, worker: str) -> str | None:
        """Return the next waiting file, now held by ``worker``; None when no file is waiting."""
        ...

    def reclaim(self, worker: str, file: str) -> bool:
        """Hold a file again after a restart; return False unless it is waiting or ``worker`` still holds it."""
        ...

    def done(self, worker: str, file: str) -> None:
        """Mark ``file`` as read to its end by ``worker``.

        Raises:
            DataError: The worker does not hold the file: it counted as dead, and another worker has it.
        """
        ...

    def may_follow(self) -> bool:
        """Return True if files may be waiting later though none is waiting now."""
        ...

    def requeue(self, worker: str) -> list[str]:
        """Put the files that a dead worker holds back to the front of the list, and return them.

        If there are any, the worker's epoch is incremented.
        """
        ...

    def lease(self, worker: str) -> Lease:
        """Return the lease of ``worker``."""
        ...

    def take_back(self, worker: str, lease: Lease) -> list[str]:
        """Roll a worker back to an earlier ``lease``: it holds the files again that it has finished since.

        Returns:
            All files that the worker holds now, in the order of its claims. It reads them before it claims more.

        Raises:
            FilesReassigned: Files of the worker were reassigned since. Its unfinished files are waiting again.
        """
        ...

    def state(self) -> WorkListState:
        """Return the state of the list, to be saved with a checkpoint."""
        ...

    def restore(self, state: WorkListState) -> None:
        """Restore a saved state; every worker then resumes at its own saved position.

        Raises:
            DataError: ``state`` is not the state of a work list.
        """
        ...


class _Ledger:
    """Bookkeeping of a work list, without locks."""

    def __init__(
        self,
        waiting: Sequence[str],
        claimed: Mapping[str, str],
        done: Sequence[str],
        epochs: Mapping[str, int] | None = None,
    ) -> None:
        self.epochs = dict(epochs or {})
        self.waiting = list(waiting)
        self.claimed = dict(claimed)  # file -> worker in the order of the claims; includes done files
        self.finished = dict.fromkeys(done)  # in the order in which they were finished

    @classmethod
    def parse(cls, state: object, where: str) -> _Ledger:
        try:
            waiting, claimed, done = (state[name] for name in ("waiting", "claimed", "done"))  # type: ignore[index]
            files = [*waiting, *claimed]
            if not all(isinstance(name, str) for name in [*files, *claimed.values()]) or len(set(files)) < len(files):
                raise TypeError("names are not text, or a file is there twice")
            if not set(done) <= set(claimed):
                raise ValueError("a file is done that no worker claimed")
            epochs = state.get("lives", {})  # type: ignore[attr-defined]
            return cls(waiting, claimed, done, {str(worker): int(epoch) for worker, epoch in epochs.items()})
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise DataError(
                f"{where} is not the state of a work list ({error!r}); start with the files again"
            ) from error

    def as_json(self) -> dict[str, Any]:
        return {
            "waiting": list(self.waiting),
            "claimed": dict(self.claimed),
            "done": list(self.finished),
            "lives": dict(self.epochs),
        }

    @property
    def files(self) -> set[str]:
        return {*self.waiting, *self.claimed}

    def holders(self) -> list[str]:
        return list(dict.fromkeys(worker for file, worker in self.claimed.items() if file not in self.finished))

    def claim(self, worker: str) -> str | None:
        if not self.waiting:
            return None
        file = self.waiting.pop(0)
        self.claimed[file] = worker
        return file

    def lease(self, worker: str) -> Lease:
        return Lease(len(self._finished_by(worker)), self.epochs.get(worker, 0))

    def take_back(self, worker: str, finished: int) -> list[str]:
        for file in self._finished_by(worker)[finished:]:
            del self.finished[file]
        return self._held_by(worker)

    def _finished_by(self, worker: str) -> list[str]:
        return [file for file in self.finished if self.claimed[file] == worker]

    def _held_by(self, worker: str) -> list[str]:
        return [file for file, holder in self.claimed.items() if holder == worker and file not in self.finished]

    def reclaim(self, worker: str, file: str) -> bool:
        if file in self.waiting:
            self.waiting.remove(file)
            self.claimed[file] = worker
        return self.claimed.get(file) == worker and file not in self.finished

    def done(self, worker: str, file: str) -> None:
        holder = self.claimed.get(file)
        if holder != worker or file in self.finished:
            status = "waiting" if holder is None else "done" if file in self.finished else f"held by {holder!r}"
            raise DataError(
                f"{file!r} is {status}, expected held by {worker!r}; the worker probably counted as dead, restart it"
            )
        self.finished[file] = None

    def requeue(self, worker: str) -> list[str]:
        files = self._held_by(worker)
        for file in files:
            del self.claimed[file]
        self.waiting[:0] = files
        if files:
            self.epochs[worker] = self.epochs.get(worker, 0) + 1
        return files

    def give_back(self, worker: str, finished: int) -> list[str]:
        self.take_back(worker, finished)
        return self.requeue(worker)

    def resume(self, worker: str, lease: Lease) -> list[str] | None:
        if lease.epoch == self.epochs.get(worker, 0):
            return self.take_back(worker, lease.finished)
        self.give_back(worker, lease.finished)
        return None


def _require_held(held: list[str] | None, worker: str) -> list[str]:
    if held is None:
        raise FilesReassigned(
            f"files of {worker!r} were reassigned after its position was saved; start the worker without a position"
        )
    return held


def _check_files(files: Sequence[str]) -> list[str]:
    if isinstance(files, str):
        raise ConfigError(f"files is {files!r}, expected a list of files; expand the pattern first")
    names = [os.fspath(file) for file in files]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"{twice!r} is in the work list twice, expected once; remove the duplicate")
    return names


class MemoryWorkList(WorkList):
    """Work list for the threads of one process.

    >>> shared = MemoryWorkList(["a", "b"])
    >>> shared.claim("first"), shared.claim("second"), shared.claim("first")
    ('a', 'b', None)
    >>> shared.requeue("second"), shared.claim("first")
    (['b'], 'b')
    """

    def __init__(self, files: Sequence[str]) -> None:
        self._ledger = _Ledger(_check_files(files), {}, [])
        self._lock = threading.Lock()

    @override
    def claim(self, worker: str) -> str | None:
        with self._lock:
            return self._ledger.claim(worker)

    @override
    def reclaim(self, worker: str, file: str) -> bool:
        with self._lock:
            return self._ledger.reclaim(worker, file)

    @override
    def done(self, worker: str, file: str) -> None:
        with self._lock:
            self._ledger.done(worker, file)

    @override
    def requeue(self, worker: str) -> list[str]:
        with self._lock:
            return self._ledger.requeue(worker)

    @override
    def may_follow(self) -> bool:
        return False  # only ``requeue`` adds files

    @override
    def lease(self, worker: str) -> Lease:
        with self._lock:
            return self._ledger.lease(worker)

    @override
    def take_back(self, worker: str, lease: Lease) -> list[str]:
        with self._lock:
            held = self._ledger.resume(worker, lease)
        return _require_held(held, worker)

    @override
    def state(self) -> WorkListState:
        with self._lock:
            return self._ledger.as_json()

    @override
    def restore(self, state: WorkListState) -> None:
        ledger = _Ledger.parse(state, "the given state")
        with self._lock:
            self._ledger = ledger


class FolderWorkList(WorkList):
    """Work list for processes that share a folder.

    The list is one JSON file. A process replaces the file as a whole while it holds a lock, so a kill leaves the list
    before or after the change. Each worker also holds its own lock. The system releases that lock when the
    worker's process dies. When no file is waiting, ``claim`` requeues the files of such dead workers. The folder must
    be on a file system with working ``flock``.

    Args:
        folder: The shared folder; created if absent.
        files: The files to read. The first process writes the list; the other processes pass the same files or None.
        requeue_dead: Whether ``claim`` requeues the files of dead workers. If False, only ``requeue`` does.

    Raises:
        ConfigError: The folder holds a list of other files, or it holds no list and ``files`` is None.
    """

    def __init__(
        self, folder: str | os.PathLike[str], files: Sequence[str] | None = None, *, requeue_dead: bool = True
    ) -> None:
        self._folder = Path(folder)
        self._requeue_dead = requeue_dead
        self._alive: dict[str, int] = {}
        self._threads = threading.Lock()
        make_folder(self._folder)
        names = None if files is None else _check_files(files)
        with self._lock_list():
            if not self._path.exists():
                if names is None:
                    raise ConfigError(f"{str(self._folder)!r} holds no work list; pass files= to create one")
                self._write(_Ledger(names, {}, []))
            elif names is not None:
                ledger = self._read()
                known = ledger.files
                if known != set(names):
                    raise ConfigError(
                        f"{str(self._folder)!r} holds a list of {len(known)} files, {len(known & set(names))} of them "
                        f"among the {len(names)} given, expected the same files; use another folder, or remove this one"
                    )

    @override
    def claim(self, worker: str) -> str | None:
        with self._update() as ledger:
            self._lock_worker(worker)
            if not ledger.waiting and self._requeue_dead:
                for holder in ledger.holders():
                    if holder != worker and self._is_dead(holder):
                        ledger.requeue(holder)
            return ledger.claim(worker)

    @override
    def reclaim(self, worker: str, file: str) -> bool:
        with self._update() as ledger:
            self._lock_worker(worker)
            return ledger.reclaim(worker, file)

    @override
    def done(self, worker: str, file: str) -> None:
        with self._update() as ledger:
            ledger.done(worker, file)

    @override
    def requeue(self, worker: str) -> list[str]:
        with self._update() as ledger:
            return ledger.requeue(worker)

    @override
    def may_follow(self) -> bool:
        return False  # only ``requeue``, or the death of a holder, adds files

    @override
    def lease(self, worker: str) -> Lease:
        with self._lock_list():
            return self._read().lease(worker)

    @override
    def take_back(self, worker: str, lease: Lease) -> list[str]:
        with self._update() as ledger:
            self._lock_worker(worker)
            held = ledger.resume(worker, lease)
        return _require_held(held, worker)

    def give_back(self, worker: str, finished: int) -> list[str]:
        """Put a dead worker's files back to the front, except the first ``finished`` files that it finished.

        Returns:
            These files; empty if the worker's process is alive.
        """
        with self._update() as ledger:
            return ledger.give_back(worker, finished) if self._is_dead(worker) else []

    def dead_workers(self) -> list[str]:
        """Return the workers that have claimed files, finished or not, and whose process is dead."""
        with self._lock_list():
            return [worker for worker in dict.fromkeys(self._read().claimed.values()) if self._is_dead(worker)]

    @override
    def state(self) -> WorkListState:
        with self._lock_list():
            return self._read().as_json()

    @override
    def restore(self, state: WorkListState) -> None:
        ledger = _Ledger.parse(state, "the given state")
        with self._lock_list():
            self._write(ledger)

    def close(self) -> None:
        """Release the locks of this process's workers: other processes then count them as dead. May be called twice."""
        with self._threads:
            while self._alive:
                os.close(self._alive.popitem()[1])

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # the constructor may have failed early
            self.close()

    @property
    def _path(self) -> Path:
        return self._folder / "work_list.json"

    @contextlib.contextmanager
    def _lock_list(self) -> Iterator[None]:
        with self._threads:
            descriptor = os.open(self._folder / "work_list.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def _update(self) -> Iterator[_Ledger]:
        with self._lock_list():
            ledger = self._read()
            before = ledger.as_json()
            yield ledger
            if ledger.as_json() != before:
                self._write(ledger)

    def _read(self) -> _Ledger:
        try:
            state = json.loads(self._path.read_text())
        except (OSError, ValueError) as error:
            raise DataError(f"work list {str(self._path)!r} cannot be read: {error}") from error
        return _Ledger.parse(state, str(self._path))

    def _write(self, ledger: _Ledger) -> None:
        for pattern in ("work_list.json.tmp-*", "work_list.json-tmp-*"):  # the second: of earlier releases
            for temporary in self._folder.glob(pattern):
                temporary.unlink(missing_ok=True)  # of a killed process: the lock keeps other writers out
        replace_file(self._path, json.dumps(ledger.as_json()).encode())

    def _worker_lock_path(self, worker: str) -> Path:
        if not re.fullmatch(r"[\w.@:-]+", worker):
            raise ConfigError(f"worker is {worker!r}, expected letters, digits and . _ @ : -; rename the worker")
        return self._folder / f"worker-{worker}.lock"

    def _lock_worker(self, worker: str) -> None:
        if worker in self._alive:
            return
        descriptor = os.open(self._worker_lock_path(worker), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(
                f"worker {worker!r} of {str(self._folder)!r} is another process already; give each worker its own name"
            ) from None
        self._alive[worker] = descriptor

    def _is_dead(self, worker: str) -> bool:
        if worker in self._alive:
            return False
        with open(self._worker_lock_path(worker), "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

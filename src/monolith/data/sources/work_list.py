"""Dynamic sharding: workers take files from one shared list, so that slow ones take fewer.

A file is *waiting*, *held* by a worker, or *done*. Two lists are here: one in memory for the threads of a process, one
in a folder for processes. Both promise that a file is held by one worker at a time, and that a file held by a worker
that died can be given to another, who reads it from its beginning. What is in the files, nothing here knows.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from monolith.core.errors import ConfigError, DataError

__all__ = ["FilesGivenAway", "FolderWorkList", "MemoryWorkList", "Tenure", "WorkList", "WorkListState"]

WorkListState: TypeAlias = Mapping[str, Any]
"""Plain JSON: the files that are waiting, in order, those held and by whom, those done, and the lives of workers."""


class FilesGivenAway(DataError):
    """A worker cannot resume at its position: files that followed it are others' by now. It begins anew."""


class Tenure(NamedTuple):
    """Where a worker of a list stands. Its position holds good for as long as its life lasts."""

    finished: int
    """Files that it has read to their end, in all its lives."""
    life: int
    """Counts how often files were taken from it: what follows a position of another life, nobody knows."""


@runtime_checkable
class WorkList(Protocol):
    """Files that workers share out among themselves. Concurrent."""

    def claim(self, worker: str) -> str | None:
        """Return the next waiting file, now held by ``worker``; None when none is waiting."""
        ...

    def reclaim(self, worker: str, file: str) -> bool:
        """Take up a file again after a restart: it is waiting, or ``worker`` still holds it. False when neither."""
        ...

    def done(self, worker: str, file: str) -> None:
        """Note that ``worker`` has read ``file`` to its end.

        Raises:
            DataError: The worker does not hold the file: it was taken for dead, and another has it.
        """
        ...

    def may_follow(self) -> bool:
        """Whether files may be waiting later though none is now."""
        ...

    def requeue(self, worker: str) -> list[str]:
        """Put what a dead worker holds back to the front of the list; return those files. Some end its life."""
        ...

    def tenure(self, worker: str) -> Tenure:
        """Return where ``worker`` stands."""
        ...

    def take_back(self, worker: str, tenure: Tenure) -> list[str]:
        """Let a worker that resumes at an earlier ``tenure`` hold again what it finished since.

        Returns:
            All that it holds now, in the order in which it claimed them: to be read before anything else.

        Raises:
            FilesGivenAway: Its life has ended. What it has not finished by then is waiting again.
        """
        ...

    def state(self) -> WorkListState:
        """Return everything, to be saved with a checkpoint."""
        ...

    def restore(self, state: WorkListState) -> None:
        """Go back to a saved state; every worker then resumes at its own saved position.

        Raises:
            DataError: The state is none of such a list.
        """
        ...


class _Ledger:
    """The bookkeeping itself, without locks."""

    def __init__(
        self,
        waiting: Sequence[str],
        claimed: Mapping[str, str],
        done: Sequence[str],
        lives: Mapping[str, int] | None = None,
    ) -> None:
        self.lives = dict(lives or {})
        self.waiting = list(waiting)
        self.claimed = dict(claimed)  # by whom, in the order of the claims; those that are done included
        self.finished = dict.fromkeys(done)  # in the order in which they were

    @classmethod
    def parse(cls, state: object, where: str) -> _Ledger:
        try:
            waiting, claimed, done = (state[name] for name in ("waiting", "claimed", "done"))  # type: ignore[index]
            files = [*waiting, *claimed]
            if not all(isinstance(name, str) for name in [*files, *claimed.values()]) or len(set(files)) < len(files):
                raise TypeError("names are not text, or a file is there twice")
            if not set(done) <= set(claimed):
                raise ValueError("a file is done that nobody claimed")
            lives = state.get("lives", {})  # type: ignore[attr-defined]
            return cls(waiting, claimed, done, {str(worker): int(life) for worker, life in lives.items()})
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise DataError(
                f"{where} is not the state of a work list ({error!r}); start with the files again"
            ) from error

    def as_json(self) -> dict[str, Any]:
        return {
            "waiting": list(self.waiting),
            "claimed": dict(self.claimed),
            "done": list(self.finished),
            "lives": dict(self.lives),
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

    def tenure(self, worker: str) -> Tenure:
        return Tenure(len(self._finished_by(worker)), self.lives.get(worker, 0))

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
            whose = "waiting" if holder is None else "done" if file in self.finished else f"held by {holder!r}"
            raise DataError(f"{worker!r} does not hold {file!r}, which is {whose}; was the worker taken for dead?")
        self.finished[file] = None

    def requeue(self, worker: str) -> list[str]:
        files = self._held_by(worker)
        for file in files:
            del self.claimed[file]
        self.waiting[:0] = files
        if files:
            self.lives[worker] = self.lives.get(worker, 0) + 1
        return files

    def give_back(self, worker: str, finished: int) -> list[str]:
        self.take_back(worker, finished)
        return self.requeue(worker)

    def resume(self, worker: str, tenure: Tenure) -> list[str] | None:
        if tenure.life == self.lives.get(worker, 0):
            return self.take_back(worker, tenure.finished)
        self.give_back(worker, tenure.finished)
        return None


def _still_held(held: list[str] | None, worker: str) -> list[str]:
    if held is None:
        raise FilesGivenAway(f"files of {worker!r} were given to others since its position was saved; begin anew")
    return held


def _checked(files: Sequence[str]) -> list[str]:
    if isinstance(files, str):
        raise ConfigError(f"a work list takes a list of files, got the text {files!r}; expand it first")
    names = [os.fspath(file) for file in files]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"{twice!r} is in the work list twice; give each file once")
    return names


class MemoryWorkList:
    """A work list for the threads of one process.

    >>> shared = MemoryWorkList(["a", "b"])
    >>> shared.claim("first"), shared.claim("second"), shared.claim("first")
    ('a', 'b', None)
    >>> shared.requeue("second"), shared.claim("first")
    (['b'], 'b')
    """

    def __init__(self, files: Sequence[str]) -> None:
        self._ledger = _Ledger(_checked(files), {}, [])
        self._lock = threading.Lock()

    def claim(self, worker: str) -> str | None:
        """Return the next waiting file, now held by ``worker``; None when none is waiting."""
        with self._lock:
            return self._ledger.claim(worker)

    def reclaim(self, worker: str, file: str) -> bool:
        """Take up a file again that is waiting or still held by ``worker``; return whether it could be."""
        with self._lock:
            return self._ledger.reclaim(worker, file)

    def done(self, worker: str, file: str) -> None:
        """Note that ``worker`` has read ``file`` to its end."""
        with self._lock:
            self._ledger.done(worker, file)

    def requeue(self, worker: str) -> list[str]:
        """Put what a dead worker holds back to the front of the list; return those files."""
        with self._lock:
            return self._ledger.requeue(worker)

    def may_follow(self) -> bool:
        """Whether files may be waiting later: not without ``requeue``."""
        return False

    def tenure(self, worker: str) -> Tenure:
        """Return where ``worker`` stands."""
        with self._lock:
            return self._ledger.tenure(worker)

    def take_back(self, worker: str, tenure: Tenure) -> list[str]:
        """Let a worker hold again what it finished since an earlier ``tenure``; return all that it holds.

        Raises:
            FilesGivenAway: Its life has ended.
        """
        with self._lock:
            held = self._ledger.resume(worker, tenure)
        return _still_held(held, worker)

    def state(self) -> WorkListState:
        """Return everything, to be saved with a checkpoint."""
        with self._lock:
            return self._ledger.as_json()

    def restore(self, state: WorkListState) -> None:
        """Go back to a saved state."""
        ledger = _Ledger.parse(state, "what was given")
        with self._lock:
            self._ledger = ledger


class FolderWorkList:
    """A work list for processes that share a folder.

    The list is one JSON file, replaced as a whole while a lock is held, so a process killed at any instant leaves it
    either before or after its step. A worker that claims also holds a lock of its own for as long as its process lives;
    the system lets go of it when the process dies, however it dies. When nothing is waiting, ``claim`` looks for files
    of such dead workers and gives them out again. The folder must be on a file system with working ``flock``.

    Args:
        folder: The shared folder; it is made when it is not there.
        files: What to read. The process that comes first writes the list; for the others it must be the same, or None.
        requeue_dead: Whether ``claim`` takes over from dead workers. Without, only ``requeue`` does.

    Raises:
        ConfigError: The folder holds a list of other files, or none and no files are given.
    """

    def __init__(
        self, folder: str | os.PathLike[str], files: Sequence[str] | None = None, *, requeue_dead: bool = True
    ) -> None:
        self._folder = Path(folder)
        self._requeue_dead = requeue_dead
        self._alive: dict[str, int] = {}
        self._threads = threading.Lock()
        self._folder.mkdir(parents=True, exist_ok=True)
        names = None if files is None else _checked(files)
        with self._locked():
            if not self._path.exists():
                if names is None:
                    raise ConfigError(f"{self._folder} holds no work list; give the files to begin with")
                self._write(_Ledger(names, {}, []))
            elif names is not None:
                ledger = self._read()
                known = ledger.files
                if known != set(names):
                    raise ConfigError(
                        f"{self._folder} holds a list of {len(known)} files, {len(known & set(names))} of them among "
                        f"the {len(names)} given; use another folder, or remove this one"
                    )

    def claim(self, worker: str) -> str | None:
        """Return the next waiting file, now held by ``worker``; None when none is waiting and no holder is dead."""
        with self._changed() as ledger:
            self._stay_alive(worker)
            if not ledger.waiting and self._requeue_dead:
                for holder in ledger.holders():
                    if holder != worker and self._is_dead(holder):
                        ledger.requeue(holder)
            return ledger.claim(worker)

    def reclaim(self, worker: str, file: str) -> bool:
        """Take up a file again that is waiting or still held by ``worker``; return whether it could be."""
        with self._changed() as ledger:
            self._stay_alive(worker)
            return ledger.reclaim(worker, file)

    def done(self, worker: str, file: str) -> None:
        """Note that ``worker`` has read ``file`` to its end."""
        with self._changed() as ledger:
            ledger.done(worker, file)

    def requeue(self, worker: str) -> list[str]:
        """Put what a dead worker holds back to the front of the list; return those files."""
        with self._changed() as ledger:
            return ledger.requeue(worker)

    def may_follow(self) -> bool:
        """Whether files may be waiting later: not without ``requeue``, or a holder that dies."""
        return False

    def tenure(self, worker: str) -> Tenure:
        """Return where ``worker`` stands."""
        with self._locked():
            return self._read().tenure(worker)

    def take_back(self, worker: str, tenure: Tenure) -> list[str]:
        """Let a worker hold again what it finished since an earlier ``tenure``; return all that it holds.

        Raises:
            FilesGivenAway: Its life has ended.
        """
        with self._changed() as ledger:
            self._stay_alive(worker)
            held = ledger.resume(worker, tenure)
        return _still_held(held, worker)

    def give_back(self, worker: str, finished: int) -> list[str]:
        """Put all that a dead worker claimed, but for the first ``finished`` files that it finished, back to the front.

        Returns:
            Those files; none when the worker lives, or lives again.
        """
        with self._changed() as ledger:
            return ledger.give_back(worker, finished) if self._is_dead(worker) else []

    def dead_workers(self) -> list[str]:
        """Return who has claimed files, finished or not, and has no process any more."""
        with self._locked():
            return [worker for worker in dict.fromkeys(self._read().claimed.values()) if self._is_dead(worker)]

    def state(self) -> WorkListState:
        """Return everything, to be saved with a checkpoint."""
        with self._locked():
            return self._read().as_json()

    def restore(self, state: WorkListState) -> None:
        """Go back to a saved state, for every process that shares the folder."""
        ledger = _Ledger.parse(state, "what was given")
        with self._locked():
            self._write(ledger)

    def close(self) -> None:
        """Let go of this process's workers: to the others they are dead. May be called twice."""
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
    def _locked(self) -> Iterator[None]:
        with self._threads:
            descriptor = os.open(self._folder / "work_list.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def _changed(self) -> Iterator[_Ledger]:
        with self._locked():
            ledger = self._read()
            before = ledger.as_json()
            yield ledger
            if ledger.as_json() != before:
                self._write(ledger)

    def _read(self) -> _Ledger:
        try:
            state = json.loads(self._path.read_text())
        except (OSError, ValueError) as error:
            raise DataError(f"the work list {self._path} cannot be read: {error}") from error
        return _Ledger.parse(state, str(self._path))

    def _write(self, ledger: _Ledger) -> None:
        for left_behind in self._folder.glob("work_list.json-tmp-*"):
            left_behind.unlink(missing_ok=True)  # of a process that was killed: nobody else writes while we may
        temporary = self._folder / f"work_list.json-tmp-{secrets.randbits(64)}"
        with open(temporary, "x") as file:
            json.dump(ledger.as_json(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)

    def _worker_lock(self, worker: str) -> Path:
        if not re.fullmatch(r"[\w.@:-]+", worker):
            raise ConfigError(f"worker {worker!r} has no usable name; use letters, digits and . _ @ : -")
        return self._folder / f"worker-{worker}.lock"

    def _stay_alive(self, worker: str) -> None:
        if worker in self._alive:
            return
        descriptor = os.open(self._worker_lock(worker), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(
                f"another process is worker {worker!r} of {self._folder}; give each its own name"
            ) from None
        self._alive[worker] = descriptor

    def _is_dead(self, worker: str) -> bool:
        if worker in self._alive:
            return False
        with open(self._worker_lock(worker), "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

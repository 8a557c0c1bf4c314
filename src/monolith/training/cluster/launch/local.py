"""``LocalJob``: starts, watches and stops the processes of a job on one machine.

Every process is ``monolith train`` with its role in the job added. The processes find each other by file discovery, in
a temporary folder. A lifeline ends all processes if the launcher is killed.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ClusterError, ConfigError
from monolith.core.lifeline import Lifeline
from monolith.core.scratch_folder import ScratchFolder
from monolith.discovery import FileDiscovery
from monolith.discovery.address import split_address

__all__ = ["Ended", "LocalJob", "Say"]

logger = logging.getLogger(__name__)

Say = Callable[[str, str, bool], None]
"""Receives every line of every process: its name, the line, and whether it is standard output."""

PROGRAM = (sys.executable, "-c", "from monolith.cli.main import main; main()")
"""The command ``monolith`` of this installation."""

_LAST_LINES = 15
_LEAVE_MS = 10_000
"""Deregistration timeout. File discovery is local, so a slow call is only waiting for the file lock."""
_DRAIN_S = 2.0
_LAST_OUTPUT_S = 0.4
"""Wait for the last lines of a dead process, so that its end is reported within a second."""
_WITHOUT_SERVER_S = 2.0
"""Grace of a worker after the loss of a server: the worker cannot save, and waits for the server in its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a process."""

    name: str
    status: int
    """0, an exit status, or the negative number of a signal."""
    last_lines: tuple[str, ...]
    """The last lines of its output."""

    @property
    def reason(self) -> str:
        """One line for operators: the process, its status, and its error or last line."""
        if self.status < 0:  # the last line is not the reason
            return f"{self.name} was ended by {signal.Signals(-self.status).name}; its last line: {self._last_line}"
        return f"{self.name} ended with {self.status}: {self.error or self._last_line}"

    @property
    def error(self) -> str:
        """The line of the error that the process reported; empty without one."""
        return next((line for line in reversed(self.last_lines) if line.startswith("error: ")), "")

    @property
    def _last_line(self) -> str:
        return next((line for line in reversed(self.last_lines) if line.strip()), "no output")


@dataclass(eq=False)
class _Process:
    name: str
    command: list[str]
    index: int
    is_server: bool
    popen: subprocess.Popen[str] | None = None
    is_over: bool = True
    starts: int = 0
    last_error: str = ""
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    readers: list[threading.Thread] = field(default_factory=list)


class LocalJob:
    """Servers and workers of one job. Entering the ``with`` block starts them; leaving it stops them.

    ``wait`` restarts processes that died; another thread may call ``stop`` meanwhile. A process that reports the same
    error twice in a row is not restarted again. After the permanent loss of a server, workers end without a checkpoint.

    Args:
        arguments: The command of every process: ``train`` and its options, without a role.
        num_ps: The number of servers.
        num_workers: The number of workers, with the chief.
        say: Receives the output of the processes.
        max_restarts: Restarts of each process that dies; 0 = its death ends the job.
        options: Options of the program before ``train``, such as ``--log-level``.
        folder: Working folder of the processes; None = that of this process.
        start_timeout_s: Timeout of the start of all servers.
        grace_s: Timeout of the end of a process, before it is killed.
        environment: Variables of the processes; None = those of this process.
        clock: Measures the timeouts.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        num_ps: int,
        num_workers: int,
        say: Say,
        max_restarts: int = 0,
        options: Sequence[str] = (),
        folder: Path | None = None,
        start_timeout_s: float = 60.0,
        grace_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not arguments or arguments[0] != "train":
            raise ConfigError(f"the command is {' '.join(arguments)!r}, expected 'train' and its options after --")
        if num_ps < 1 or num_workers < 1:
            raise ConfigError(f"num_ps is {num_ps} and num_workers is {num_workers}, expected at least one of each")
        self._say = say
        self._max_restarts = max_restarts
        self._place = folder
        self._start_timeout_s = start_timeout_s
        self._grace_s = grace_s
        self._clock = clock or SystemClock()
        self._num_ps = num_ps
        self._ended: queue.Queue[tuple[_Process, int]] = queue.Queue()
        self._lifeline = Lifeline()
        self._environment = self._lifeline.environment(os.environ if environment is None else environment)
        self._scratch = ScratchFolder("monolith-job-")
        self._folder = self._scratch.path
        self._patience: Deadline | None = None
        self._ended_server = ""
        self._starting = threading.Lock()
        self._is_stopping = False
        self._has_lost_server = False
        common = [*PROGRAM, *options, "train", "--discovery-type", "file", "--discovery-folder", str(self._folder)]
        common += ["--num-ps", str(num_ps), "--num-workers", str(num_workers)]
        common += ["--discovery-cleanup-timeout-ms", str(_LEAVE_MS)]
        self._processes = [
            _Process(
                name=f"ps {index}" if role == "ps" else f"worker {index}" if index else "chief",
                command=[*common, "--server-type", role, "--index", str(index), *arguments[1:]],
                index=index,
                is_server=role == "ps",
            )
            for role, count in (("ps", num_ps), ("worker", num_workers))
            for index in range(count)
        ]

    # --- start and stop ---

    def __enter__(self) -> Self:
        if self._is_stopping or any(process.popen is not None for process in self._processes):
            state = "has been stopped" if self._is_stopping else "is running"
            raise ClusterError(f"job {state}, expected a new one; create another LocalJob")
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_all(self) -> None:
        for process in self._processes:
            if process.is_server:
                self._start(process)
        self._await_servers()
        for process in self._processes:
            if not process.is_server:
                self._start(process)

    def wait(self, timeout_s: float | None = None) -> Ended | None:
        """Wait for the end of the job: every worker has finished, or a process has died without a restart left.

        Returns:
            None after success; else the process that ended the job.

        Raises:
            ClusterError: The job still runs after ``timeout_s``.
        """
        deadline = Deadline(self._clock, timeout_s)
        while any(not process.is_over for process in self._processes if not process.is_server):
            process, status = self._next_end(deadline)
            process.is_over = True
            if status == 0 and process.is_server and self._patience is None:
                # The chief has shut it down, so the workers end soon too; workers that do not have no server.
                self._patience = Deadline(self._clock, self._grace_s)
                self._ended_server = process.name
            if status and not self._restart(process, status):
                ended = self._how(process, status)
                self._has_lost_server = process.is_server
                if not self._is_stopping:
                    self._say(process.name, f"{ended.reason}; stopping the other processes", False)
                return ended
        return None

    def stop(self) -> None:
        """Stop all processes, workers first, so that they can save; kill those that do not end in time.

        An interruption of this call, by a second Ctrl-C, kills all processes immediately.
        """
        with self._starting:  # no process is restarted from here on
            self._is_stopping = True
        try:
            for is_server in (False, True):
                self._stop([one for one in self._processes if one.is_server is is_server and one.popen is not None])
        finally:
            for process in self._processes:
                self.signal(process.name, signal.SIGKILL)
            self._lifeline.close()
            self._scratch.close()

    def _stop(self, processes: Sequence[_Process]) -> None:
        for process in processes:
            self.signal(process.name, signal.SIGTERM)
        is_orphan = self._has_lost_server and not all(process.is_server for process in processes)
        deadline = Deadline(self._clock, min(self._grace_s, _WITHOUT_SERVER_S) if is_orphan else self._grace_s)
        for process in processes:
            self._end(process, deadline, is_orphan)

    # --- for tests and for operators ---

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process, by its name: ``ps 0``, ``chief``, ``worker 1``; no-op after its end."""
        popen = self._named(name).popen
        if popen is not None and popen.poll() is None:
            popen.send_signal(number)

    def pid(self, name: str) -> int | None:
        """Return the pid of a process; None when it does not run."""
        popen = self._named(name).popen
        return None if popen is None or popen.poll() is not None else popen.pid

    def starts(self, name: str) -> int:
        """Return the number of starts of a process."""
        return self._named(name).starts

    def _named(self, name: str) -> _Process:
        for process in self._processes:
            if process.name == name:
                return process
        raise ConfigError(f"process is {name!r}, expected one of {', '.join(one.name for one in self._processes)}")

    # --- processes ---

    def _start(self, process: _Process, *more: str) -> None:
        process.starts += 1
        process.is_over = False
        process.last_lines.clear()
        process.popen = subprocess.Popen(
            [*process.command, *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=self._place,
            env=self._environment,
            pass_fds=self._lifeline.descriptors,
            start_new_session=True,  # Ctrl-C reaches only the launcher, which ends workers before servers
        )
        streams = ((process.popen.stdout, True), (process.popen.stderr, False))
        process.readers = [
            threading.Thread(target=self._read, args=(process, stream, is_out), daemon=True)
            for stream, is_out in streams
        ]
        for reader in process.readers:
            reader.start()
        threading.Thread(target=self._watch, args=(process, process.popen), daemon=True).start()

    def _read(self, process: _Process, stream: IO[str], is_out: bool) -> None:
        with stream:
            for line in stream:
                process.last_lines.append(line.rstrip("\n"))
                self._say(process.name, line.rstrip("\n"), is_out)

    def _watch(self, process: _Process, popen: subprocess.Popen[str]) -> None:
        status = popen.wait()
        drained = Deadline(self._clock, _LAST_OUTPUT_S)
        for reader in process.readers:
            reader.join(drained.remaining_s())  # a child process may keep its output open
        self._ended.put((process, status))

    def _next_end(self, deadline: Deadline) -> tuple[_Process, int]:
        """Wait for a process to end."""
        remaining_s = min(deadline.remaining_s(), math.inf if self._patience is None else self._patience.remaining_s())
        try:
            return self._ended.get(timeout=None if remaining_s == math.inf else remaining_s)
        except queue.Empty:
            running = ", ".join(one.name for one in self._processes if not one.is_over)
            cause = ""
            if self._patience is not None and self._patience.is_past:
                cause = (
                    f"; {self._ended_server} ended {self._grace_s:g} s ago, and workers need it: start the job again"
                )
            raise ClusterError(f"the job did not end in time; running processes: {running}{cause}") from None

    def _restart(self, process: _Process, status: int) -> bool:
        with self._starting:
            if self._is_stopping or process.starts > self._max_restarts:
                return False
            ended = self._how(process, status)
            if ended.error and ended.error == process.last_error:
                return False
            process.last_error = ended.error
            count = f"{process.starts} of {self._max_restarts}"
            self._say(process.name, f"{ended.reason}; restarting ({count})", False)
            self._start(process, *self._same_port(process))
            return True

    def _how(self, process: _Process, status: int) -> Ended:
        return Ended(name=process.name, status=status, last_lines=tuple(process.last_lines))

    def _same_port(self, process: _Process) -> list[str]:
        """Return the option that keeps the port of a restarted server, which the workers know."""
        path = self._folder / "ps" / str(process.index)
        if not process.is_server or not path.is_file():
            return []
        return ["--bind-port", str(split_address(path.read_text().strip())[1])]

    def _await_servers(self) -> None:
        discovery = FileDiscovery(self._folder)
        discovery.connect()
        deadline = Deadline(self._clock, self._start_timeout_s)
        try:
            while len(discovery.query("ps")) < self._num_ps:
                if deadline.is_past:
                    raise ClusterError(f"not all servers started in {self._start_timeout_s:g} s")
                try:
                    process, status = self._ended.get(timeout=0.05)
                except queue.Empty:
                    continue
                process.is_over = True
                raise ClusterError(self._how(process, status).reason)
        finally:
            discovery.close()

    def _abort(self, process: _Process) -> None:
        """End a hung process by SIGABRT, which prints the stacks of its threads."""
        assert process.popen is not None
        logger.warning("process did not end, killing it after a stack dump process=%s", process.name)
        for number in (signal.SIGCONT, signal.SIGABRT):
            process.popen.send_signal(number)
        try:
            process.popen.wait(_DRAIN_S)
        except subprocess.TimeoutExpired:
            _kill(process.popen)

    def _end(self, process: _Process, deadline: Deadline, is_orphan: bool) -> None:
        """Wait for the end of a process until the deadline; then kill it, an orphan without a stack dump."""
        assert process.popen is not None
        try:
            process.popen.wait(deadline.remaining_s())
        except subprocess.TimeoutExpired:
            if is_orphan:
                logger.info("process killed, a server is lost process=%s", process.name)
                _kill(process.popen)
            else:
                self._abort(process)
        for reader in process.readers:
            reader.join(_DRAIN_S)


def _kill(popen: subprocess.Popen[str]) -> None:
    popen.kill()
    popen.wait()

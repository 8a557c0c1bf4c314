"""The processes of a job, each a ``monolith train`` of its own from the fork server: hurt, and started again."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from commands import Command, Shell
from monolith.core.free_ports import free_port

__all__ = ["JobProcesses"]

LIMIT_S = 180.0


class JobProcesses:
    """Servers and workers by name: ``ps 0``, ``chief``, ``worker 1``. What still runs in the end is killed.

    Args:
        folder: Where they run; their logs are there.
        options: What all of them are told, beside their place in the job.
        num_ps: Servers.
        num_workers: Workers, the chief among them.
        server_options: What servers are told besides.
        worker_options: What workers are told besides.
        limit_s: How long all of it may take. Then every process is aborted, and says where it stood.
    """

    def __init__(
        self,
        folder: Path,
        options: Sequence[object],
        *,
        num_ps: int = 1,
        num_workers: int = 1,
        server_options: Sequence[object] = (),
        worker_options: Sequence[object] = (),
        limit_s: float = LIMIT_S,
    ) -> None:
        self._shell = Shell(folder)
        self.ports = [free_port() for _ in range(num_ps)]
        common = ["train", "--num-ps", num_ps, "--num-workers", num_workers, *options]
        self._commands: dict[str, list[object]] = {}
        for index, port in enumerate(self.ports):
            place = ["--server-type", "ps", "--index", index, "--bind-port", port]
            self._commands[f"ps {index}"] = [*common, *place, *server_options]
        for index in range(num_workers):
            self._commands[f"worker {index}" if index else "chief"] = [*common, "--index", index, *worker_options]
        self._started: dict[str, list[Command]] = {name: [] for name in self._commands}
        self._alarm = threading.Timer(limit_s, self._abort)
        self._is_late = False

    def start(self, name: str, *more: object, largest_file: int | None = None) -> None:
        """Start a process, again if it was killed, with more options; a file limit makes the disk seem full to it."""
        command = [*self._commands[name], *more]
        self._started[name].append(
            self._shell.start(*command, env={"PYTHONFAULTHANDLER": "1"}, largest_file=largest_file)
        )

    def start_all(self) -> None:
        for name in self._commands:
            self.start(name)

    def signal(self, name: str, number: signal.Signals) -> None:
        process = self._started[name][-1].process
        assert process.pid is not None
        if process.is_alive():
            os.kill(process.pid, number)

    def signal_first(self, name: str, number: signal.Signals) -> None:
        """Signal the first process of a name that was started again."""
        pid = self._started[name][0].process.pid
        assert pid is not None
        os.kill(pid, number)

    def end_first(self, name: str) -> int:
        """Wait for the end of the first process of a name; return its status."""
        process = self._started[name][0].process
        process.join(LIMIT_S)
        assert process.exitcode is not None, self.logs()
        return process.exitcode

    def logged(self, name: str, start: int) -> str:
        """Return the output of one start of a process."""
        one = self._started[name][start]
        return "".join(part.read_text() for part in (one.out, one.err) if part.exists())

    def kill(self, name: str) -> None:
        """End a process as a power failure would, and return when it is gone."""
        self.signal(name, signal.SIGKILL)
        self._started[name][-1].process.join()

    def end(self, name: str) -> int:
        """Wait for the end of a process; return its status."""
        process = self._started[name][-1].process
        process.join(LIMIT_S)
        assert process.exitcode is not None, self.logs()
        return process.exitcode

    def said(self, name: str) -> str:
        """Return all that a process said, over all its starts."""
        return "".join(part.read_text() for one in self._started[name] for part in (one.out, one.err) if part.exists())

    def wait_for(self, name: str, pattern: str, times: int = 1) -> None:
        """Wait until a process has said something so many times."""
        waiting = threading.Event()
        while len(re.findall(pattern, self.said(name))) < times:
            is_over = self._is_late or not self._started[name][-1].process.is_alive()
            if is_over and len(re.findall(pattern, self.said(name))) < times:
                raise AssertionError(f"{name} has not said {pattern!r} {times} times:\n{self.logs()}")
            waiting.wait(0.02)

    def logs(self) -> str:
        """Return where all processes stand, and all that they said; ends them."""
        self._abort()
        for commands in self._started.values():
            for one in commands:
                one.process.join(30)
        return "\n".join(f"--- {name}\n{self.said(name)}" for name in self._commands)

    def __enter__(self) -> Self:
        self._alarm.daemon = True
        self._alarm.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alarm.cancel()
        for commands in self._started.values():
            for one in commands:
                if one.process.is_alive():
                    assert one.process.pid is not None
                    os.kill(one.process.pid, signal.SIGKILL)
                one.process.join()
        assert not self._is_late or error is not None, self.logs()

    def _abort(self) -> None:
        self._is_late = True
        for name, commands in self._started.items():
            if commands:
                self.signal(name, signal.SIGCONT)
                self.signal(name, signal.SIGABRT)

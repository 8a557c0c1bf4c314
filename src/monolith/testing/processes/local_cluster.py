"""``LocalCluster``: a job of several processes for tests, started like ``monolith launch local``, with faults."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from types import TracebackType
from typing import Self

from monolith.core.errors import ClusterError
from monolith.training.cluster.launch.local import Ended, LocalJob

__all__ = ["LocalCluster"]


class LocalCluster:
    """Servers and workers as processes, with their logs.

    Args:
        arguments: ``train`` and its options.
        num_ps: Servers.
        num_workers: Workers, including the chief.
        folder: Working folder of the processes.
        max_restarts: Restarts of each process that dies.
        options: Options of the program before ``train``.
        timeout_s: Timeout of each wait.
        limit_s: Deadline of the job. Then every process is aborted and prints its stacks.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        num_ps: int = 1,
        num_workers: int = 1,
        folder: Path | None = None,
        max_restarts: int = 0,
        options: Sequence[str] = (),
        timeout_s: float = 120.0,
        limit_s: float = 300.0,
    ) -> None:
        self._timeout_s = timeout_s
        self._limit_s = limit_s
        self._names = [f"ps {index}" for index in range(num_ps)]
        self._names += [f"worker {index}" if index else "chief" for index in range(num_workers)]
        self._is_late = False
        self._alarm = threading.Timer(limit_s, self._abort)
        self._said = threading.Condition(threading.RLock())
        self._waiter = ThreadPoolExecutor(1, "local-cluster")
        self._end: Future[Ended | None] | None = None
        self._lines: list[tuple[str, str]] = []
        self._job = LocalJob(
            [str(each) for each in arguments],
            num_ps=num_ps,
            num_workers=num_workers,
            say=self._hear,
            max_restarts=max_restarts,
            options=options,
            start_timeout_s=timeout_s,
            folder=folder,
            environment={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )

    def __enter__(self) -> Self:
        self._alarm.daemon = True
        self._alarm.start()
        self._job.__enter__()
        self._end = self._waiter.submit(self._job.wait)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alarm.cancel()
        self._job.stop()
        self._waiter.shutdown()
        if self._is_late and error is None:
            raise ClusterError(self._with_logs(f"the job was not over in {self._limit_s:g} s"))

    def lines(self, name: str) -> list[str]:
        """Return the log of a process so far: ``ps 0``, ``chief``, ``worker 1``."""
        with self._said:
            return [line for who, line in self._lines if who == name]

    def wait_for(self, name: str, text: str, times: int = 1) -> str:
        """Wait until a process has logged a text so many times; return the line.

        Raises:
            ClusterError: The timeout passed; the text holds the logs.
        """

        def heard() -> list[str]:
            return [line for who, line in self._lines if who == name and text in line]

        with self._said:
            self._said.wait_for(lambda: len(heard()) >= times or self._is_late, self._timeout_s)
            if len(heard()) < times:
                raise ClusterError(self._with_logs(f"{name} has not logged {text!r} in {self._timeout_s:g} s"))
            return heard()[times - 1]

    def wait(self) -> Ended | None:
        """Wait for the end of the job; see ``LocalJob.wait``.

        Raises:
            ClusterError: The timeout passed; the text holds the logs and the stacks of every process.
        """
        assert self._end is not None
        try:
            return self._end.result(self._timeout_s)
        except FutureTimeout:
            self._abort()
            self._job.stop()
            raise ClusterError(self._with_logs(f"the job is not over in {self._timeout_s:g} s")) from None

    def kill(self, name: str) -> None:
        """Kill a process (SIGKILL)."""
        self._job.signal(name, signal.SIGKILL)

    def end(self, name: str) -> None:
        """Stop a process (SIGTERM); the chief ends the job."""
        self._job.signal(name, signal.SIGTERM)

    def hold(self, name: str) -> None:
        """Pause a process until ``release``."""
        self._job.signal(name, signal.SIGSTOP)

    def release(self, name: str) -> None:
        """Resume a process."""
        self._job.signal(name, signal.SIGCONT)

    def starts(self, name: str) -> int:
        """Return the number of starts of a process."""
        return self._job.starts(name)

    def is_running(self, name: str) -> bool:
        """Return whether a process runs."""
        return self._job.pid(name) is not None

    def pid(self, name: str) -> int | None:
        """Return the id of a process; None if it does not run."""
        return self._job.pid(name)

    def _abort(self) -> None:
        """Abort all processes; each prints its stacks."""
        with self._said:
            self._is_late = True
            self._said.notify_all()
        for name in self._names:
            self._job.signal(name, signal.SIGCONT)
            self._job.signal(name, signal.SIGABRT)

    def _with_logs(self, text: str) -> str:
        with self._said:
            return "\n".join([f"{text}:", *(f"{who} | {line}" for who, line in self._lines)])

    def _hear(self, name: str, line: str, is_out: bool) -> None:
        with self._said:
            self._lines.append((name, line))
            self._said.notify_all()

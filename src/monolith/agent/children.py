"""Run the server processes of an agent: start, restart after an end, stop in order.

Main types: ``ChildPlan`` (program, environment, log), ``Child`` (one process with its restarts).

Invariants: a child runs under the lifeline of its agent, so it never survives it. A child that ends restarts after 1,
2, 4 ... 30 s; the sixth end within 10 minutes is final. A stop sends SIGTERM, waits the drain time plus 5 s, and then
sends SIGKILL.

Threading: one thread per child. ``on_end`` and ``on_final`` run in it and must return soon.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError
from monolith.core.lifeline import Lifeline

__all__ = ["MAX_ENDS", "WINDOW_S", "Child", "ChildPlan", "log_path"]

logger = logging.getLogger(__name__)

MAX_ENDS = 5
"""Ends within ``WINDOW_S`` after which a child restarts; one more is final."""
WINDOW_S = 600.0
_MAX_PAUSE_S = 30.0
_STOP_MARGIN_S = 5.0


def log_path(tfs_log: Path, server_type: str | None, *, dense_index: int | None = None) -> Path:
    """Return the log file of a server.

    >>> str(log_path(Path("/var/log/tfs.std.log"), "dense", dense_index=1))
    '/var/log/dense_tfs.std.log.mps1'
    """
    name = tfs_log.name if server_type is None else f"{server_type}_{tfs_log.name}"
    return tfs_log.with_name(name if dense_index is None else f"{name}.mps{dense_index}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPlan:
    """How to run one child."""

    name: str
    """ps, entry, dense or unified; for logs."""
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables besides those of the agent."""
    folder: Path | None = None
    """Working folder; None = that of the agent."""
    log: Path | None = None
    """File that output and errors are appended to; None = the output of the agent."""
    drain_s: float = 30.0
    """Time that the child takes at most to end its requests."""


class Child:
    """One child process with its restarts.

    Args:
        plan: How to run it.
        lifeline: Ends the child when the agent dies.
        on_end: Called with the exit status immediately after each end that was not asked for.
        on_final: Called with the reason after the last end, when the child does not restart any more.
        restarts: Whether the child restarts; False = its first end is final.
        clock: Counts ends.
    """

    def __init__(
        self,
        plan: ChildPlan,
        lifeline: Lifeline,
        *,
        on_end: Callable[[int], None] = lambda _: None,
        on_final: Callable[[str], None] = lambda _: None,
        restarts: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._plan = plan
        self._lifeline = lifeline
        self._on_end = on_end
        self._on_final = on_final
        self._restarts = restarts
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._ends: deque[float] = deque()
        self._restart_count = 0
        self._thread = threading.Thread(target=self._run, name=f"agent-child-{plan.name}", daemon=True)

    @property
    def pid(self) -> int | None:
        """Id of the running process; None while no process runs."""
        with self._lock:
            return None if self._process is None or self._process.poll() is not None else self._process.pid

    @property
    def restart_count(self) -> int:
        """Number of restarts so far."""
        return self._restart_count

    def start(self) -> None:
        """Start the process.

        Raises:
            ConfigError: The program or the log file cannot be opened.
        """
        self._spawn()
        self._thread.start()

    def request_stop(self) -> None:
        """Send SIGTERM and restart no more."""
        self._stopping.set()
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)

    def stop(self, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """End the process in order: SIGTERM, drain time plus 5 s, SIGKILL. A second call does nothing.

        Args:
            is_urgent: Looked at while waiting; True shortens the wait to 1 s.
        """
        self.request_stop()
        end_s = self._clock.monotonic_s() + self._plan.drain_s + _STOP_MARGIN_S
        urgent_since_s: float | None = None
        while (process := self._process) is not None and process.poll() is None:
            now_s = self._clock.monotonic_s()
            if urgent_since_s is None and is_urgent():
                urgent_since_s = now_s
            if now_s >= end_s or (urgent_since_s is not None and now_s >= urgent_since_s + 1.0):
                logger.warning("server did not end in time, killing it name=%s pid=%d", self._plan.name, process.pid)
                process.kill()
                process.wait()
                break
            self._clock.sleep_s(0.02)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(30.0)

    def _spawn(self) -> None:
        plan = self._plan
        with self._lock:
            if self._stopping.is_set():
                return
            output: int | None = None
            try:
                if plan.log is not None:
                    output = os.open(plan.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
                self._process = subprocess.Popen(
                    plan.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self._lifeline.environment({**os.environ, **plan.environment}),
                    pass_fds=self._lifeline.descriptors,
                    cwd=plan.folder,
                )
            except OSError as error:
                raise ConfigError(
                    f"server {plan.name} cannot start: {error}; correct the program or the log file (--tfs-log)"
                ) from error
            finally:
                if output is not None:
                    os.close(output)
        logger.info("server started name=%s pid=%d", plan.name, self._process.pid)

    def _run(self) -> None:
        while True:
            process = self._process
            assert process is not None
            status = process.wait()
            if self._stopping.is_set():
                return
            now_s = self._clock.monotonic_s()
            self._ends.append(now_s)
            while self._ends and self._ends[0] < now_s - WINDOW_S:
                self._ends.popleft()
            logger.warning("server ended name=%s pid=%d status=%d", self._plan.name, process.pid, status)
            self._call(self._on_end, status)
            if not self._restarts:
                self._call(self._on_final, f"server {self._plan.name} ended with status {status}")
                return
            if len(self._ends) > MAX_ENDS:
                self._call(
                    self._on_final,
                    f"server {self._plan.name} ended {len(self._ends)} times within {WINDOW_S:g} s, the last time "
                    f"with status {status}; see its log {self._plan.log}",
                )
                return
            if self._stopping.wait(min(2.0 ** (len(self._ends) - 1), _MAX_PAUSE_S)):
                return
            try:
                self._spawn()
            except ConfigError as error:
                self._call(self._on_final, str(error))
                return
            if self._stopping.is_set():
                return
            self._restart_count += 1

    def _call(self, action: Callable[..., None], argument: object) -> None:
        try:
            action(argument)
        except Exception:
            logger.exception("callback of a server's end failed name=%s", self._plan.name)

"""``DemoProcess``: a ``monolith`` command as a process, with its output in files, restarts and a guaranteed end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from monolith.core import lifeline
from monolith.core.errors import ClusterError

__all__ = ["DemoProcess"]

_PROGRAM = (sys.executable, "-c", "from monolith.cli.main import main; main()")
_LAST_LINES = 5
_STOP_TIMEOUT_S = 20.0


class DemoProcess:
    """One process. It ends with the block at the latest: by SIGTERM first, then by SIGKILL.

    The process has its own session, so Ctrl-C reaches only the demonstration, which then stops the process. The
    process watches its standard input as a lifeline, so it also ends when the demonstration is killed.

    Args:
        name: Name in errors.
        arguments: The command and its options.
        folder: Folder of ``NAME.out``, its output, and ``NAME.log``, its log. Restarts append to both.
    """

    def __init__(self, name: str, arguments: Sequence[object], folder: Path) -> None:
        self.name = name
        self._command = [*_PROGRAM, *map(str, arguments)]
        self._out = folder / f"{name}.out"
        self.log = folder / f"{name}.log"
        self._popen = self._start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    @property
    def output(self) -> str:
        """Output so far."""
        return self._out.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._popen.poll() is None

    def check(self) -> None:
        """Check that the process runs.

        Raises:
            ClusterError: The process has ended; the text has its last lines.
        """
        if not self.is_running:
            last = "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:]) or "nothing"
            raise ClusterError(
                f"the {self.name} ended with status {self._popen.returncode}; the end of its log, {self.log}:\n{last}"
            )

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        self._popen.send_signal(number)

    def restart(self) -> None:
        """Kill the process if it runs, and start the same command."""
        self._end(timeout_s=0.0)
        self._popen = self._start()

    def terminate(self) -> None:
        """Ask the process to end; ``end`` waits for it."""
        if self.is_running:
            self._popen.send_signal(signal.SIGCONT)  # a stopped process handles SIGTERM only after it continues
            self._popen.terminate()

    def end(self) -> None:
        """Stop the process and wait for its end."""
        self.terminate()
        self._end(_STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._out.open("ab") as out, self.log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
                start_new_session=True,
                env={**os.environ, lifeline.VARIABLE: "0"},
            )

    def _end(self, timeout_s: float) -> None:
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(timeout_s)
        finally:
            self._popen.kill()
            self._popen.wait()
            self._stdin.close()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._popen.stdin is not None
        return self._popen.stdin

"""``PsProcess``: ``monolith ps`` as a real process for tests, to be killed, paused and restarted on its ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from monolith.core.errors import ClusterError
from monolith.core.free_ports import free_port

__all__ = ["PsProcess"]

_PROGRAM = (sys.executable, "-c", "from monolith.cli.main import main; main()")
_LAST_LINES = 200


class PsProcess:
    """One server, which keeps its ports over restarts. Also a context manager.

    Args:
        index: Its shard.
        num_ps: Servers of the job.
        options: Further options of ``monolith ps``.
        advertised_host: Host for clients instead of 127.0.0.1, where a proxy listens on the same ports.
    """

    def __init__(
        self, index: int = 0, num_ps: int = 1, options: Sequence[object] = (), *, advertised_host: str = "127.0.0.1"
    ) -> None:
        self.port = free_port()
        """Port of gRPC."""
        self.data_port = free_port()
        """TCP port of the data plane."""
        self.index = index
        self._options = ["--index", index, "--num-ps", num_ps, "--port", self.port, "--data-port", self.data_port]
        self._options += ["--advertised-host", advertised_host, *options]
        self._host = advertised_host
        self._popen: subprocess.Popen[str] | None = None
        self._log: deque[str] = deque(maxlen=_LAST_LINES)
        self._reader: threading.Thread | None = None

    @property
    def address(self) -> str:
        """``host:port`` of gRPC, as its clients know it."""
        return f"{self._host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id; None if it does not run."""
        return None if self._popen is None or self._popen.poll() is not None else self._popen.pid

    @property
    def log(self) -> str:
        """End of its log, over all starts."""
        return "\n".join(self._log)

    def start(self, *more: object) -> None:
        """Start it, with further options, and return when it serves.

        Raises:
            ClusterError: It ends instead; the text holds its log.
        """
        options = [str(each) for each in [*self._options, *more]]
        self._popen = subprocess.Popen(
            [*_PROGRAM, "ps", "--json", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},  # prints its stacks when it is aborted
        )
        self._reader = threading.Thread(target=self._read, args=(self._popen,), daemon=True)
        self._reader.start()
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            self._end()
            raise ClusterError(f"server {self.index} does not start:\n{self.log}")
        assert json.loads(line)["address"] == self.address

    def kill(self) -> None:
        """Kill it (SIGKILL) and wait for its end."""
        self._signal(signal.SIGKILL)
        self._end()

    def abort(self) -> None:
        """Abort it and wait for its end; the log then holds the stacks of its threads."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGABRT)
        self._end()

    def stop(self) -> int:
        """Stop it (SIGTERM) and return its status."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        return self._end()

    def hold(self) -> None:
        """Pause it until ``release``."""
        self._signal(signal.SIGSTOP)

    def release(self) -> None:
        """Resume it."""
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._popen is not None:
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(number)

    def _end(self) -> int:
        assert self._popen is not None
        status = self._popen.wait()
        if self._reader is not None:
            self._reader.join()
        if self._popen.stdout is not None:
            self._popen.stdout.close()
        return status

    def _read(self, popen: subprocess.Popen[str]) -> None:
        assert popen.stderr is not None
        with popen.stderr as stream:
            for line in stream:
                self._log.append(line.rstrip("\n"))

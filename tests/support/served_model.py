"""``monolith serve`` of one model as a process of its own, and what a test asks it."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from commands import Shell, wait_until
from monolith.serving import Client

__all__ = ["ServedModel"]


class ServedModel:
    """A server that has loaded its model; it is killed at the end of the context.

    Args:
        shell: Where it is started.
        exports: Versions of the model.
        flags: Further options of ``serve``.
        name: What the model is called.
    """

    def __init__(self, shell: Shell, exports: Path, *flags: object, name: str = "clicks") -> None:
        command = shell.start(
            *("serve", exports, "--name", name, "--port", 0, "--rest-port", 0, "--json"),
            *("--sync-poll-s", 0.005, *flags),
        )
        self.command = command
        with ExitStack() as stack:
            stack.callback(self._kill)
            self.wait(lambda: command.out.exists() and command.out.read_text().endswith("}\n"))
            said = json.loads(command.out.read_text())
            self.address: str = said["address"]
            self._rest = said["rest_address"]
            self.client = Client(self.address, model=name, timeout_s=60)
            stack.callback(self.client.close)
            self.wait(lambda: any(each.state == "AVAILABLE" for each in self.client.status()))
            self._resources = stack.pop_all()

    def scores(self, probe: Sequence[bytes]) -> np.ndarray[Any, Any]:
        """Return what it says of an ExampleBatch."""
        return next(iter(self.client.score(probe, "example_batch").values()))

    def metric(self, start: str) -> float:
        """Return the sum of the numbers whose lines begin so."""
        with urllib.request.urlopen(f"http://{self._rest}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))

    def said(self) -> str:
        """Return its log."""
        return self.command.err.read_text()

    def wait(self, is_so: Callable[[], bool]) -> None:
        """Wait for something, while it is alive."""
        wait_until(is_so, self.command)

    def close(self) -> None:
        """Kill it; a second call does nothing."""
        self._resources.close()

    def _kill(self) -> None:
        process = self.command.process
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

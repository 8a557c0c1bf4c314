"""``monolith ps`` as a process of its own: there once it has said where, gone when its owner leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Server"]

COMMAND = [sys.executable, "-c", "from monolith.cli.main import main; main()", "--log-level", "warning", "ps", "--json"]
END_S = 60.0


class Server:
    """One parameter server among ``count``, with the rows of a snapshot when one is given."""

    def __init__(self, index: int = 0, count: int = 1, *, recover_from: Path | None = None) -> None:
        command = [*COMMAND, "--index", str(index), "--num-ps", str(count)]
        if recover_from is not None:
            command += ["--recover-from", str(recover_from)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError(f"{' '.join(command)} ended with {self._process.returncode} before it listened")
        self.address = str(json.loads(line)["address"])

    def close(self) -> None:
        """End it and wait."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

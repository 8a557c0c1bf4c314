"""``DemoProcess``: a ``monolith`` command as a process, with its output in files and a guaranteed end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from monolith.core.errors import ClusterError

__all__ = ["DemoProcess"]

_PROGRAM = (sys.executable, "-c", "from monolith.cli.main import main; main()")
_LAST_LINES = 5
_PATIENCE_S = 20.0


class DemoProcess:
    """One process. It ends with the block at the latest: by SIGTERM first, then by SIGKILL.

    The process has its own session, so Ctrl-C reaches only the demonstration, which then stops the process.

    Args:
        name: Name in errors.
        arguments: The command and its options.
        folder: Folder of ``NAME.out``, its output, and ``NAME.log``, its log.
        environment: Variables in addition to those of this process.
    """

    def __init__(
        self, name: str, arguments: Sequence[object], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._out = folder / f"{name}.out"
        self.log = folder / f"{name}.log"
        with self._out.open("wb") as out, self.log.open("wb") as log:
            self._popen = subprocess.Popen(
                [*_PROGRAM, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    @property
    def output(self) -> str:
        """Output so far."""
        return self._out.read_text(errors="replace")

    def tell(self, data: bytes) -> None:
        """Write to its standard input.

        Raises:
            ClusterError: It has ended.
        """
        try:
            self._stdin.write(data)
            self._stdin.flush()
        except BrokenPipeError as error:
            self._popen.wait()
            raise self._failure() from error

    def check(self) -> None:
        """Check that it runs.

        Raises:
            ClusterError: It has ended; the text has its last lines.
        """
        if self._popen.poll() is not None:
            raise self._failure()

    def end(self) -> None:
        """Stop it and wait for its end."""
        if self._popen.poll() is None:
            self._popen.terminate()
        with contextlib.suppress(BrokenPipeError):  # unread input is of no use any more
            self._stdin.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(_PATIENCE_S)
        finally:
            self._popen.kill()
            self._popen.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._popen.stdin is not None
        return self._popen.stdin

    def _failure(self) -> ClusterError:
        last = "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:]) or "nothing"
        return ClusterError(
            f"the {self.name} ended with status {self._popen.returncode}; the end of its log, {self.log}:\n{last}"
        )

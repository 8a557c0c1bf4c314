"""``monolith`` commands as processes of their own, started by the fork server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import training_child as child
from fork_server import fork_context
from monolith.testing.eventually import eventually

__all__ = ["Command", "Shell", "wait_until"]


@dataclass(frozen=True)
class Command:
    """One that was started."""

    process: BaseProcess
    out: Path
    err: Path

    def end(self) -> int:
        """Wait for its end; return its exit status."""
        self.process.join(120)
        status = self.process.exitcode
        if status is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"it does not end: {self.err.read_text()}")
        return status


class Shell:
    """Starts commands in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def start(
        self, *arguments: object, env: Mapping[str, str] | None = None, largest_file: int | None = None
    ) -> Command:
        self._count += 1
        out, err = (self.folder / f"{name}-{self._count}.txt" for name in ("out", "err"))
        process = fork_context().Process(
            target=child.command, args=([*map(str, arguments)], self.folder, dict(env or {}), out, err, largest_file)
        )
        process.start()
        return Command(process, out, err)

    def run(self, *arguments: object, env: Mapping[str, str] | None = None) -> str:
        """Run a command to its good end; return what it printed."""
        command = self.start(*arguments, env=env)
        assert command.end() == 0, command.err.read_text()
        return command.out.read_text()

    def json(self, *arguments: object) -> dict[str, Any]:
        """Run a command with ``--json``; return the last object."""
        found: dict[str, Any] = json.loads(self.run(*arguments, "--json").splitlines()[-1])
        return found

    def fail(self, *arguments: object, status: int = 1, largest_file: int | None = None) -> str:
        """Run a command that must fail; return its last line."""
        command = self.start(*arguments, largest_file=largest_file)
        assert command.end() == status, command.out.read_text() + command.err.read_text()
        text = command.err.read_text()
        assert "Traceback" not in text, text
        return text.splitlines()[-1] if status == 1 else text


def wait_until(is_so: Callable[[], bool], command: Command) -> None:
    """Wait until a running command has done something; fail when the command ends first."""

    def is_done() -> bool:
        if is_so():
            return True
        assert command.process.is_alive(), command.err.read_text()
        return False

    eventually(is_done, 300)

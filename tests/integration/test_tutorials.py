"""Tutorials: the blocks of each page run in order, with their servers as real processes."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands import Command, Shell, wait_until
from monolith.cli import main as program
from monolith.core.errors import MonolithError
from monolith.core.free_ports import free_port
from monolith.serving import Client

_FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
_PAGES = sorted(_FOLDER.glob("*.md"))
_BLOCK = re.compile(r"^```(python|pycon|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _is_served(model: str, port: str, token: str) -> bool:
    try:
        with Client(f"127.0.0.1:{port}", model=model, timeout_s=5, token=token) as client:
            return any(version.state == "AVAILABLE" for version in client.status())
    except MonolithError:
        return False


class Reader:
    """Runs the blocks of a page in a folder; gives every port of the page a free one."""

    def __init__(self, folder: Path) -> None:
        self._shell = Shell(folder)
        self._servers: list[Command] = []
        self._names: dict[str, object] = {"__name__": "page"}

    def read(self, page: Path) -> None:
        """Run every block of the page in order."""
        text = page.read_text()
        for port in sorted(set(re.findall(r"\b85\d\d\b", text))):
            text = re.sub(rf"\b{port}\b", str(free_port()), text)
        blocks = list(_BLOCK.finditer(text))
        assert blocks, page
        for block in blocks:
            kind, code = block.groups()
            line = text.count("\n", 0, block.start(2))
            if kind == "python":
                exec(compile("\n" * line + code, str(page), "exec"), self._names)
            elif kind == "sh":
                for command in code.replace("\\\n", " ").splitlines():
                    self._run(command)
            else:
                self._compare(code, page, line)

    def _run(self, command: str) -> None:
        words = shlex.split(command.removesuffix("&"), comments=True)
        if not words:
            return
        assert words[0] == "monolith", command
        if command.endswith("&"):
            server = self._shell.start(*words[1:])
            self._servers.append(server)
            name, port = (words[words.index(option) + 1] for option in ("--name", "--port"))
            token = Path(words[words.index("--token-file") + 1]).read_text() if "--token-file" in words else ""
            wait_until(lambda: _is_served(name, port, token), server)
            return
        done = CliRunner().invoke(program.app, words[1:])
        assert done.exit_code == 0, f"{command}: {done.exception or done.output}"

    def _compare(self, code: str, page: Path, line: int) -> None:
        test = doctest.DocTestParser().get_doctest(code, self._names, page.name, str(page), line)
        failures, _ = doctest.DocTestRunner().run(test, clear_globs=False)
        self._names = test.globs
        assert failures == 0, f"{page.name}, line {line + 1}: the captured output has the difference"

    def close(self) -> None:
        """Stop the servers; fail if one does not end well."""
        for server in self._servers:
            pid = server.process.pid
            assert pid is not None
            assert server.process.is_alive(), server.err.read_text()
            os.kill(pid, signal.SIGTERM)
        for server in self._servers:
            assert server.end() == 0, server.err.read_text()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "setup_logging", lambda level: None)
    reader = Reader(tmp_path)
    yield reader
    reader.close()


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_it_is_written(page: Path, reader: Reader) -> None:
    reader.read(page)

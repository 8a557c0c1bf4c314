"""``monolith agent controller`` refuses bad usage with one line that names the remedy."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from monolith.cli import main as program
from monolith.core.errors import ConfigError, ConnectionFailed


def run(*arguments: str) -> None:
    CliRunner().invoke(program.app, ["agent", "controller", *arguments], catch_exceptions=False)


def test_an_unknown_command_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unsupported cmd frob, options are decl\|pub\|unpub\|bzid_info"):
        run("frob")


def test_missing_servers_are_named() -> None:
    with pytest.raises(ConfigError, match="host:port"):
        run("bzid_info")


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1 within 0\.2 s"):
        run("bzid_info", "--zk-servers", "127.0.0.1:1", "--timeout-s", "0.2")

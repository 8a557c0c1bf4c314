"""``monolith agent serving-client`` refuses bad usage."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from monolith.cli import main as program
from monolith.core.errors import ConfigError


@pytest.mark.parametrize("arguments", [["unlod"], ["--cmd-type", "unlod"]])
def test_an_unknown_command_is_refused(arguments: list[str]) -> None:
    names = ["--bzid", "shop", "--model-name", "clicks", "--zk-servers", "127.0.0.1:1", "--timeout-s", "0.2"]
    with pytest.raises(ConfigError, match=r"command is 'unlod', expected one of load, unload, status"):
        CliRunner().invoke(program.app, ["agent", "serving-client", *arguments, *names], catch_exceptions=False)

"""``monolith launch ray`` reads the options of the ``train`` command."""

from __future__ import annotations

from typer.testing import CliRunner

from monolith.cli.main import app


def test_the_help_of_the_command_is_printed() -> None:
    result = CliRunner().invoke(app, ["launch", "ray", "--", "train", "--help"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "--model-dir" in result.output

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

import monolith
from monolith.cli import main as program
from monolith.core.errors import ConfigError


@pytest.fixture
def failing_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the command ``fail``, which raises as a command of ours would."""

    def fail() -> None:
        """Refuse."""
        raise ConfigError("dim must be positive,\n  got 0; check SliceSpec.dim")

    module = ModuleType("failing_command")
    module.register = lambda app: app.command("fail")(fail)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "failing_command", module)
    monkeypatch.setitem(program._COMMANDS, "fail", "failing_command")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """Run the program as the shell would, and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["monolith", *arguments])
    monkeypatch.setattr(program, "setup_logging", lambda level: None)
    with pytest.raises(SystemExit) as exited:
        program.main()
    return exited.value.code


def test_help_lists_every_command_and_an_example() -> None:
    result = CliRunner().invoke(program.app, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in program._COMMANDS)
    assert "Example: monolith" in result.output


@pytest.mark.parametrize("name", sorted(program._COMMANDS))
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(program.app, [name, "--help"])
    assert result.exit_code == 0
    assert "xample" in result.output


def test_the_version_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"{monolith.__version__}\n"


@pytest.mark.usefixtures("failing_command")
def test_a_refusal_is_one_line_on_standard_error_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "fail") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "error: dim must be positive, got 0; check SliceSpec.dim\n"


def test_an_unknown_command_is_wrong_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "dance") == 2
    assert "dance" in capsys.readouterr().err


def test_an_unknown_log_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="'LOUD'"):
        CliRunner().invoke(program.app, ["--log-level", "LOUD", "bench", "x"], catch_exceptions=False)


@pytest.mark.usefixtures("failing_command")
def test_only_the_named_command_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(program._COMMANDS, "broken", "monolith.cli.no_such_module")
    assert run(monkeypatch, "fail") == 1


def test_the_program_is_a_typer_application() -> None:
    assert isinstance(program.app, typer.Typer)


def test_the_log_level_of_the_command_line_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[str] = []
    monkeypatch.setattr(program, "setup_logging", levels.append)
    CliRunner().invoke(program.app, ["--log-level", "WARNING", "bench", "--help"], catch_exceptions=False)
    assert levels == ["WARNING"]

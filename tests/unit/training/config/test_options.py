from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from monolith.core.config import load
from monolith.core.errors import ConfigError
from monolith.training.config import RunConfig, RunnerConfig
from monolith.training.config.options import config_options, with_config_options

app = typer.Typer()


@app.command()
@with_config_options(RunConfig)
def train(
    task: Annotated[str, typer.Argument(help="What to train.")],
    flags: Mapping[str, Any],
    max_steps: Annotated[int, typer.Option(help="Where to stop.")] = 10,
) -> None:
    """Train a model."""
    config = load(RunConfig, command_line=flags).config
    checkpoint = config.checkpoint
    values = f"{config.runtime.seed} {checkpoint.restore.clear_nn} {checkpoint.background_save}"
    typer.echo(f"{task} {max_steps} {sorted(flags)} {values}")


def run(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}).invoke(app, list(arguments))


def test_a_command_gets_the_flags_that_were_given_and_its_own() -> None:
    done = run("ranker", "--seed", "7", "--max-steps", "3")
    assert done.output == "ranker 3 ['seed'] 7 False True\n"


def test_without_flags_nothing_is_given() -> None:
    assert run("ranker").output == "ranker 10 [] 0 False True\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--clear-nn"], "['clear_nn'] 0 True True"),
        (["--no-clear-nn"], "['clear_nn'] 0 False True"),
        (["--background-save"], "['background_save'] 0 False True"),
        (["--no-background-save"], "['background_save'] 0 False False"),
    ],
)
def test_switches_have_both_forms(arguments: list[str], expected: str) -> None:
    assert run("ranker", *arguments).output == f"ranker 10 {expected}\n"


def test_a_switch_that_is_turned_both_ways_is_refused() -> None:
    error = run("ranker", "--clear-nn", "--no-clear-nn").exception
    assert isinstance(error, ConfigError)
    assert "--clear-nn and --no-clear-nn are both given" in str(error)


def test_a_value_that_does_not_fit_is_refused_by_its_flag() -> None:
    error = run("ranker", "--seed", "often").exception
    assert str(error) == "seed is 'often' in --seed; give a whole number"


def test_an_unknown_flag_is_wrong_usage() -> None:
    done = run("ranker", "--sead", "1")
    assert done.exit_code == 2
    assert "--seed" in done.output


def test_help_has_every_flag_in_full_and_in_the_panel_of_its_section() -> None:
    text = run("--help").output
    for spec in config_options(RunConfig):
        assert re.search(rf"{spec.flag}\s", text), spec.flag
    assert "Checkpoint options" in text
    assert "What to train." in text


def test_the_flags_of_a_runner_are_all_different() -> None:
    specs = config_options(RunnerConfig)
    flags = [flag for spec in specs for flag in (spec.flag, spec.opposite) if flag]
    assert len(set(flags)) == len(flags)
    by_field = {spec.field: spec for spec in specs}
    assert (by_field["reload_alias_map"].metavar, by_field["reload_alias_map"].default) == ("{A: B}", "none")
    assert (by_field["background_save"].flag, by_field["background_save"].opposite) == (
        "--no-background-save",
        "--background-save",
    )


def test_a_command_that_cannot_take_the_flags_is_refused() -> None:
    def without() -> None:
        """Take no flags."""

    def twice(seed: int, flags: Mapping[str, Any]) -> None:
        """Add a field."""

    with pytest.raises(ConfigError, match="without has no parameter 'flags'; add 'flags: Mapping"):
        with_config_options(RunConfig)(without)
    with pytest.raises(ConfigError, match="twice has a parameter 'seed', which is a field too"):
        with_config_options(RunConfig)(twice)

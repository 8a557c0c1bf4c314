"""Options in groups: typer sees each of them, the command gets them filled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from monolith.cli._option_groups import with_option_groups


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where something is."""

    folder: Annotated[Path, typer.Argument(help="Where it is.")]
    depth: Annotated[int, typer.Option(min=0)] = 3
    tag: Annotated[list[str] | None, typer.Option(help="May come often.")] = None


@dataclass(frozen=True, kw_only=True)
class DepthOptions:
    """Has a name that another group has."""

    depth: Annotated[int, typer.Option()] = 0


def run(*arguments: str) -> tuple[int, str]:
    def show(place: PlaceOptions, loud: Annotated[bool, typer.Option(help="Shout.")] = False) -> None:
        """Show a place."""
        typer.echo(f"{place.folder} {place.depth} {place.tag} {loud}")

    app = typer.Typer()
    app.command()(with_option_groups(show))
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


def test_a_group_is_filled_from_the_command_line_and_its_defaults() -> None:
    assert run("here") == (0, "here 3 None False\n")
    assert run("here", "--depth=5", "--tag=a", "--tag=b", "--loud") == (0, "here 5 ['a', 'b'] True\n")


def test_an_option_of_a_group_is_checked_as_any_other() -> None:
    assert run("here", "--depth=-1")[0] == 2
    assert run()[0] == 2


def test_help_shows_the_group_as_a_panel_and_the_commands_own_options_apart() -> None:
    status, shown = run("--help")
    assert status == 0
    assert "Show a place." in shown
    assert shown.index("--loud") < shown.index("Place options") < shown.index("--depth")


def test_an_option_that_two_groups_have_is_refused() -> None:
    def show(place: PlaceOptions, other: DepthOptions) -> None: ...

    with pytest.raises(TypeError, match="depth of show"):
        with_option_groups(show)

"""``monolith agent``: the commands of a fleet. Each command is a module ``cli/agent_<name>.py``."""

from __future__ import annotations

import typer

from monolith.cli import agent_controller

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add ``agent`` to the program."""
    group = typer.Typer(no_args_is_help=True, help="Run and control a fleet of model servers through ZooKeeper.")
    group.callback()(_no_options)
    agent_controller.register(group)
    app.add_typer(group, name="agent")


def _no_options() -> None:
    pass

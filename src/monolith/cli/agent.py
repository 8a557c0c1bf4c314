"""``monolith agent``: the commands of a fleet. Each command is a module ``cli/agent_<name>.py``."""

from __future__ import annotations

import typer

from monolith.cli import (
    agent_client,
    agent_controller,
    agent_run,
    agent_serving_client,
    agent_status,
    agent_tfs,
)

__all__ = ["register"]

_EPILOG = "Example: monolith agent controller bzid_info --zk-servers zk:2181 --bzid shop"


def register(app: typer.Typer) -> None:
    """Add ``agent`` to the program."""
    group = typer.Typer(
        no_args_is_help=True, help="Run and control a fleet of model servers through ZooKeeper.", epilog=_EPILOG
    )
    group.callback()(_no_options)
    for module in (agent_run, agent_status, agent_controller, agent_client, agent_serving_client, agent_tfs):
        module.register(group)
    app.add_typer(group, name="agent")


def _no_options() -> None:
    pass

"""``monolith agent``: the commands of a fleet. Each command is a module ``cli/agent_<name>.py``."""

from __future__ import annotations

from typing import Any

import typer
import typer.core

from monolith.cli import (
    agent_client,
    agent_controller,
    agent_run,
    agent_serving_client,
    agent_status,
    agent_tfs,
)
from monolith.core.errors import ConfigError

__all__ = ["register"]

_EPILOG = "Example: monolith agent controller bzid_info --zk-servers zk:2181 --bzid shop"


_BINS = {"agent": "run", "agent_client": "client", "tfs_client": "tfs"}


class _Group(typer.core.TyperGroup):
    """Accepts ``--bin_name NAME`` of the original instead of a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        joined = next((each for each in args if each.startswith("--bin_name=")), None)
        name: str | None = None
        if joined is not None:
            name = joined.partition("=")[2]
            args = [each for each in args if each != joined]
        elif "--bin_name" in args[:-1]:
            place = args.index("--bin_name")
            name = args[place + 1]
            args = args[:place] + args[place + 2 :]
        if name is not None:
            if name not in _BINS:
                raise ConfigError(f"Unknown bin: {name}; give one of {', '.join(_BINS)}")
            args = [_BINS[name], *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add ``agent`` to the program."""
    group = typer.Typer(
        cls=_Group,
        no_args_is_help=True,
        help="Run and control a fleet of model servers through ZooKeeper.",
        epilog=_EPILOG,
    )
    group.callback()(_no_options)
    for module in (agent_run, agent_status, agent_controller, agent_client, agent_serving_client, agent_tfs):
        module.register(group)
    app.add_typer(group, name="agent")


def _no_options() -> None:
    pass

"""``monolith agent run``: runs one agent with its servers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from monolith.agent.running import Agent

__all__ = ["register"]

_EPILOG = "Example: MY_POD_NAME=ps-0 SHARD_ID=0 monolith agent run --conf agent.conf --tfs-log logs/server.log"


def register(app: typer.Typer) -> None:
    """Add ``run`` to the group."""
    app.command("run", epilog=_EPILOG)(run)


def run(
    conf: Annotated[Path | None, typer.Option("--conf", help="Configuration file of the agent.")] = None,
    tfs_log: Annotated[
        Path, typer.Option("--tfs-log", "--tfs_log", help="Log of the servers; their type goes before its name.")
    ] = Path("/var/log/tfs.std.log"),
    end_with_server: Annotated[
        bool, typer.Option("--end-with-server", help="End the agent when one of its servers ends.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of /metrics and /healthz; default: off.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one JSON object.")] = False,
) -> None:
    """Run one agent and its model servers. SIGTERM and Ctrl-C withdraw its nodes and stop its servers."""
    from monolith.agent.config import load_config
    from monolith.agent.dense_group import is_dense_group, run_dense_group, with_own_replica
    from monolith.agent.running import run_agent
    from monolith.core.errors import ConfigError

    try:
        if conf is None:
            raise ConfigError("--conf is missing, expected the configuration file of the agent; give --conf agent.conf")
        config = load_config(conf)
    except ConfigError as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from error
    config = with_own_replica(config, os.environ)
    if is_dense_group(config, os.environ):
        arguments = ["--tfs-log", str(tfs_log), *(["--end-with-server"] if end_with_server else [])]
        run_dense_group(config, conf, arguments)
        return

    def show(agent: Agent, page: int | None) -> None:
        if as_json:
            typer.echo(json.dumps({"agent_port": agent.port, "metrics_port": page}))
        else:
            typer.echo(f"agent: port {agent.port}" + ("" if page is None else f"    metrics: port {page}"))

    run_agent(
        config,
        tfs_log=tfs_log,
        restarts=not end_with_server,
        metrics_port=metrics_port,
        on_started=show,
    )

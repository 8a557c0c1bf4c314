"""``monolith agent serving-client``: loads and unloads models of a version 2 fleet."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Annotated

import typer

__all__ = ["register"]

_COMMANDS = ("load", "unload", "status")
_EPILOG = (
    "Example: monolith agent serving-client load --zk-servers zk:2181 --bzid shop --model-name clicks "
    "--model-dir /models/clicks/exported_models"
)


def register(app: typer.Typer) -> None:
    """Add ``serving-client`` to the group."""
    app.command("serving-client", epilog=_EPILOG)(serving_client)


def serving_client(
    command: Annotated[str | None, typer.Argument(help="load, unload or status (the default).")] = None,
    cmd_type: Annotated[str | None, typer.Option("--cmd-type", "--cmd_type", help="The same as COMMAND.")] = None,
    zk_servers: Annotated[str, typer.Option("--zk-servers", "--zk_servers", help="host:port,... of ZooKeeper.")] = "",
    bzid: Annotated[str, typer.Option("--bzid", help="Namespace.")] = "",
    model_name: Annotated[str, typer.Option("--model-name", "--model_name", help="Name of the model.")] = "",
    model_dir: Annotated[str, typer.Option("--model-dir", "--model_dir", help="load: base of the export.")] = "",
    ckpt: Annotated[str | None, typer.Option("--ckpt", help="load: name of a checkpoint.")] = None,
    num_shard: Annotated[
        int, typer.Option("--num-shard", "--num_shard", help="load: number of shards; -1 = as few as fit.")
    ] = -1,
    timeout_s: Annotated[float, typer.Option(min=0.1, max=1e6, help="Longest time for one call to ZooKeeper.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask the fleet to load or unload a model, or print its progress."""
    from monolith.agent.portal import Portal
    from monolith.agent.records import ModelMeta, state_name
    from monolith.agent.session import make_session
    from monolith.core.errors import ConfigError

    chosen = command or cmd_type or "status"
    if chosen not in _COMMANDS:
        raise ConfigError(f"command is {chosen!r}, expected one of {', '.join(_COMMANDS)}; give one of these")
    for flag, value in (("--bzid", bzid), ("--model-name", model_name)):
        if not value:
            raise ConfigError(f"{flag} is '', expected a name; give {flag}")
    session = make_session(zk_servers, os.environ.get("ZK_AUTH") or None, timeout_s=timeout_s)
    session.start()
    try:
        portal = Portal(session, bzid)
        if chosen == "load":
            portal.load(ModelMeta(model_name=model_name, model_dir=model_dir, ckpt=ckpt, num_shard=num_shard))
        elif chosen == "unload":
            portal.unload(model_name)
        state = portal.state(model_name)
    finally:
        session.stop()
    if as_json:
        typer.echo(json.dumps({"command": chosen, "model": model_name, **dataclasses.asdict(state)}))
        return
    typer.echo(f"portal: {str(state.portal).lower()}    publish: {str(state.publish).lower()}")
    for task, number in sorted(state.service.items()):
        typer.echo(f"{task}  {state_name(number)}")

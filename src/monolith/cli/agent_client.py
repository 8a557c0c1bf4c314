"""``monolith agent client``: asks an agent, and shows or cleans the nodes of a fleet."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from monolith.agent.config import AgentConfig
    from monolith.agent.portal import Portal

__all__ = ["register"]

_EPILOG = "Example: monolith agent client hb --conf agent.conf --server-type ps"
_COMMANDS = ("hb", "gr", "addr", "get", "load", "unload", "clean")
_NODES = ("addr", "portal", "pub", "res", "lock", "elect", "info")


def register(app: typer.Typer) -> None:
    """Add ``client`` to the group."""
    app.command("client", epilog=_EPILOG)(client)


def client(
    command: Annotated[str | None, typer.Argument(help=f"{', '.join(_COMMANDS)}; default: hb.")] = None,
    cmd_type: Annotated[str | None, typer.Option("--cmd-type", "--cmd_type", help="The same as COMMAND.")] = None,
    conf: Annotated[Path | None, typer.Option("--conf", help="Configuration file of the agent.")] = None,
    port: Annotated[int, typer.Option("--port", help="Port of the agent; 0 = that of the configuration.")] = 0,
    args: Annotated[str, typer.Option("--args", help=f"get, clean: {', '.join(_NODES)}.")] = "addr",
    server_type: Annotated[str, typer.Option("--server-type", "--server_type", help="ps, entry or dense.")] = "ps",
    task: Annotated[int, typer.Option("--task", help="gr: number of the task.")] = 0,
    model_dir: Annotated[str, typer.Option("--model-dir", "--model_dir", help="load, info: base of the export.")] = "",
    ckpt: Annotated[str | None, typer.Option("--ckpt", help="load, info: name of a checkpoint.")] = None,
    num_shard: Annotated[int, typer.Option("--num-shard", "--num_shard", help="load: number of shards.")] = -1,
    model_name: Annotated[str, typer.Option("--model-name", "--model_name", help="The model.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask an agent for its addresses, or show, load, unload and clean the nodes of its bzid."""
    from monolith.agent.config import read_config
    from monolith.core.errors import ConfigError

    chosen = command or cmd_type or "hb"
    if chosen not in _COMMANDS:
        raise ConfigError(f"command is {chosen!r}, expected one of {', '.join(_COMMANDS)}; give one of these")
    if args not in _NODES:
        raise ConfigError(f"--args is {args!r}, expected one of {', '.join(_NODES)}; give one of these")
    if server_type not in ("ps", "entry", "dense"):
        raise ConfigError(f"--server-type is {server_type!r}, expected ps, entry or dense; give one of these")
    if conf is None:
        raise ConfigError("--conf is missing, expected the configuration file of the agent; give --conf agent.conf")
    config = read_config(conf, chooses_ports=False)
    model = config.service.base_name or model_name
    if chosen in ("hb", "gr"):
        result = _ask(config, chosen, port, server_type, task, model)
    elif chosen == "get" and args == "info":
        from monolith.agent.model_sizes import measure_model

        sizes = measure_model(model_dir, ckpt)
        result = {name: [size.bytes, size.path] for name, size in sizes.items()}
    else:
        result = _nodes(config, chosen, args, model, model_dir, ckpt, num_shard)
    _show(chosen, args, result, as_json, server_type, task)


def _ask(config: AgentConfig, chosen: str, port: int, server_type: str, task: int, model: str) -> Any:
    from monolith.agent.address_client import AddressClient
    from monolith.agent.hosts import find_own_host
    from monolith.core.errors import ConfigError

    number = port or config.ports.agent_port
    if number is None:
        raise ConfigError("--port is 0 and the configuration has no agent_port; give --port or set PORT2")
    address = find_own_host(config.environment).reachable_address(number)
    with AddressClient(address) as agent:
        if chosen == "hb":
            answer = agent.heart_beat(server_type).addresses
            return {key: list(listed.address) for key, listed in sorted(answer.items())}
        return list(agent.get_replicas(server_type, task, model).address_list.address)


def _nodes(
    config: AgentConfig, chosen: str, args: str, model: str, model_dir: str, ckpt: str | None, num_shard: int
) -> Any:
    from monolith.agent.portal import Portal
    from monolith.agent.records import ModelMeta
    from monolith.agent.session import make_session

    session = make_session(config.service.zk_servers or "", os.environ.get("ZK_AUTH") or None)
    session.start()
    try:
        portal = Portal(session, config.service.bzid or "")
        if chosen == "load":
            meta = ModelMeta(model_name=model, model_dir=model_dir, ckpt=ckpt, num_shard=num_shard)
            portal.load(meta, replaces=True)
            return None
        if chosen == "unload":
            portal.unload(model)
            return None
        if chosen == "clean":
            return _clean(session, portal, args, model)
        if chosen == "addr" or args == "addr":
            return {
                path: {"archon_address": meta.archon_address, "address": meta.address, "state": meta.stat or 0}
                for path, meta in portal.replicas(model).items()
            }
        folder = _folder(portal, args)
        if session.exists(folder) is None:
            return None
        return {name: session.get(f"{folder}/{name}")[0].decode(errors="replace") for name in portal.children(folder)}
    finally:
        session.stop()


def _folder(portal: Portal, args: str) -> str:
    paths = portal.paths
    return {
        "portal": paths.portal,
        "pub": paths.publish,
        "res": paths.resource,
        "lock": paths.locks,
        "elect": paths.election,
    }[args]


def _clean(session: Any, portal: Portal, args: str, model: str) -> Any:
    from monolith.core.errors import ConfigError
    from monolith.discovery.zookeeper_nodes import delete_tree

    if args not in ("portal", "pub", "addr", "res"):
        raise ConfigError(f"--args is {args!r}: {args} is not support!; clean portal, pub, addr or res")
    folder = portal.paths.service(model) if args == "addr" else _folder(portal, args)
    names = portal.children(folder)
    for name in names:
        delete_tree(session, f"{folder}/{name}")
    return names


def _show(chosen: str, args: str, result: Any, as_json: bool, server_type: str, task: int) -> None:
    from monolith.agent.records import state_name

    if as_json:
        typer.echo(json.dumps({"command": chosen, "result": result}))
    elif chosen == "hb":
        for key, addresses in result.items():
            typer.echo(f"{key}  -> ({len(addresses)}) ")
            for address in addresses:
                typer.echo(f"\t{address}")
    elif chosen == "gr":
        typer.echo(f"{server_type.upper()} {task}  =>  {result}")
    elif chosen == "addr" or (chosen == "get" and args == "addr"):
        for path, values in result.items():
            state = state_name(values["state"])
            typer.echo(
                f"{path}\tarchon_address: {values['archon_address']}\taddress: {values['address']}\tstate: {state}"
            )
        if not result:
            typer.echo("the model has not load !")
    elif chosen == "get":
        if result is None:
            typer.echo(f"no {args} found !")
        elif not result:
            typer.echo("{}")
        else:
            for name, content in result.items():
                typer.echo(f"{name} {content}")
    elif result is not None:
        typer.echo(f"{chosen}: {', '.join(result)}")
    else:
        typer.echo(f"{chosen}: done")

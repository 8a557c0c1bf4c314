"""``monolith agent controller``: declares models, publishes them to layouts, shows a bzid."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from monolith.agent.controller import Controller

__all__ = ["register"]

_COMMANDS = ("decl", "pub", "unpub", "bzid_info")

_EPILOG = (
    "Example: monolith agent controller decl --zk-servers zk:2181 --bzid shop --export-base /models/clicks    Then: "
    "monolith agent controller pub --zk-servers zk:2181 --bzid shop --layout main --model-name 'clicks:*'"
)


def register(app: typer.Typer) -> None:
    """Add ``controller`` to the group."""
    app.command("controller", epilog=_EPILOG)(controller)


def controller(
    command: Annotated[str | None, typer.Argument(help="decl, pub, unpub or bzid_info (the default).")] = None,
    cmd: Annotated[str | None, typer.Option("--cmd", help="The same as COMMAND.")] = None,
    zk_servers: Annotated[str, typer.Option("--zk-servers", "--zk_servers", help="host:port,... of ZooKeeper.")] = "",
    bzid: Annotated[str, typer.Option("--bzid", help="Namespace.")] = "test",
    export_base: Annotated[
        str, typer.Option("--export-base", "--export_base", help="decl: folder with entry, ps_0, ...")
    ] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="decl: replace an existing declaration.")] = False,
    model_name: Annotated[
        str,
        typer.Option(
            "--model-name", "--model_name", help="pub, unpub: MODEL:GLOB of sub-graphs. decl: name of the model."
        ),
    ] = "",
    layout: Annotated[str, typer.Option("--layout", help="pub, unpub: name of the layout.")] = "",
    arch: Annotated[str, typer.Option("--arch", help="decl: entry_ps, the only architecture.")] = "entry_ps",
    timeout_s: Annotated[float, typer.Option(min=0.1, max=1e6, help="Longest time for one call to ZooKeeper.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Declare models, publish them to layouts, and show a bzid."""
    from monolith.agent.controller import Controller
    from monolith.agent.session import make_session
    from monolith.core.errors import ConfigError

    chosen = command or cmd or "bzid_info"
    if chosen not in _COMMANDS:
        raise ConfigError(f"unsupported cmd {chosen}, options are {'|'.join(_COMMANDS)}")
    session = make_session(zk_servers, os.environ.get("ZK_AUTH") or None, timeout_s=timeout_s)
    session.start()
    try:
        result = _run(
            Controller(session, bzid),
            chosen,
            export_base=export_base,
            overwrite=overwrite,
            model_name=model_name,
            layout=layout,
            arch=arch,
        )
    finally:
        session.stop()
    _show(chosen, result, as_json)


def _run(
    controller: Controller,
    command: str,
    *,
    export_base: str,
    overwrite: bool,
    model_name: str,
    layout: str,
    arch: str,
) -> Any:
    if command == "decl":
        return controller.declare(export_base, model_name=model_name or None, overwrite=overwrite, arch=arch)
    if command == "pub":
        return controller.publish(layout, model_name)
    if command == "unpub":
        return controller.unpublish(layout, model_name)
    return controller.bzid_info()


def _show(command: str, result: Any, as_json: bool) -> None:
    if command == "bzid_info":
        typer.echo(json.dumps(result) if as_json else f"\n{json.dumps(result, indent=2)}")
        return
    names = [str(each) for each in result]
    if as_json:
        typer.echo(json.dumps({"command": command, "saved_models": names}))
    else:
        typer.echo(f"{command}: {', '.join(names)}")

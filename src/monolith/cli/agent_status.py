"""``monolith agent status``: prints the fleet as a table."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

__all__ = ["register"]

_EPILOG = "Example: monolith agent status --zk-servers zk:2181 --bzid shop"


def register(app: typer.Typer) -> None:
    """Add ``status`` to the group."""
    app.command("status", epilog=_EPILOG)(status)


def status(
    zk_servers: Annotated[str, typer.Option("--zk-servers", "--zk_servers", help="host:port,... of ZooKeeper.")],
    bzid: Annotated[str, typer.Option("--bzid", help="Namespace.")] = "test",
    ask: Annotated[bool, typer.Option("--ask/--no-ask", help="Ask servers for versions and agents for memory.")] = True,
    timeout_s: Annotated[float, typer.Option(min=0.1, max=1e6, help="Longest time for one call.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """Print each replica of each sub-model: shard, state, version, address, free memory, age of its node."""
    from monolith.agent.fleet_view import COLUMNS, read_fleet
    from monolith.agent.session import make_session
    from monolith.cli._display import size_text
    from monolith.core.clock import SystemClock

    session = make_session(zk_servers, os.environ.get("ZK_AUTH") or None, timeout_s=timeout_s)
    session.start()
    try:
        rows = read_fleet(session, bzid, now_s=SystemClock().now_s(), asks_servers=ask, timeout_s=timeout_s)
    finally:
        session.stop()
    if as_json:
        typer.echo(json.dumps([row.to_json() for row in rows]))
        return
    table = [COLUMNS]
    for row in rows:
        memory = "-" if row.memory is None else size_text(row.memory)
        age = "-" if row.age_s is None else f"{row.age_s:.1f}"
        values = (row.model, row.sub_model, row.shard, row.replica, row.state, row.version, row.address, memory, age)
        table.append(tuple("-" if value is None else str(value) for value in values))  # type: ignore[arg-type]
    widths = [max(len(str(line[place])) for line in table) for place in range(len(COLUMNS))]
    for line in table:
        typer.echo("  ".join(str(value).ljust(width) for value, width in zip(line, widths, strict=True)).rstrip())

"""``monolith size``: estimates the servers, workers, memory, disk and network of a job."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Annotated

import typer

from monolith.core.errors import ConfigError

__all__ = ["register"]

_EPILOG = "Example: monolith size --rows 1e9 --dim 16 --events-per-s 100000 --ids-per-event 30"


def register(app: typer.Typer) -> None:
    """Add ``size`` to the program."""
    app.command("size", epilog=_EPILOG)(size)


def size(
    rows: Annotated[float, typer.Option(help="Rows of all tables: distinct users, items and other ids; 1e9 works.")],
    dim: Annotated[int, typer.Option(help="Columns of a row: the sum over its slices.")],
    events_per_s: Annotated[float, typer.Option(help="Events to train on per second, at the peak.")],
    ids_per_event: Annotated[float, typer.Option(help="Ids of one event, with all ids of lists.")],
    optimizer: Annotated[str, typer.Option(help="Optimizer of the rows, such as adagrad, adam or ftrl.")] = "adagrad",
    server_memory_gb: Annotated[float, typer.Option(help="Memory of one server in GB.")] = 32.0,
    server_cores: Annotated[int, typer.Option(help="Cores of one server.")] = 4,
    worker_cores: Annotated[int, typer.Option(help="Cores of one worker.")] = 4,
    events_per_core_s: Annotated[
        float, typer.Option(help="Events per second and core of a worker; measure it with your model.")
    ] = 20_000.0,
    updates_per_core_s: Annotated[
        float, typer.Option(help="Row updates per second and core of a server; monolith bench ps measures it.")
    ] = 1_000_000.0,
    load: Annotated[float, typer.Option(help="Share of memory and rates to use; the rest is a reserve.")] = 0.7,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimate as one JSON object.")] = False,
) -> None:
    """Estimate the size of a cluster from rows, columns and events per second."""
    from rich.console import Console
    from rich.table import Table

    from monolith.cli._display import size_text
    from monolith.training.cluster.sizing import Workload, size_cluster

    if not math.isfinite(rows):
        raise ConfigError(f"--rows is {rows}, expected a finite number such as 1e9")
    workload = Workload(
        rows=round(rows),
        dim=dim,
        optimizer=optimizer,
        events_per_s=events_per_s,
        ids_per_event=ids_per_event,
        server_memory_gb=server_memory_gb,
        server_cores=server_cores,
        worker_cores=worker_cores,
        events_per_core_s=events_per_core_s,
        updates_per_core_s=updates_per_core_s,
        load=load,
    )
    estimate = size_cluster(workload)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(estimate)))
        return
    table = Table(show_header=False, box=None)
    reason = f"{estimate.servers_for_memory} for memory, {estimate.servers_for_rate} for the rate"
    for name, text in (
        ("bytes per row", f"{estimate.bytes_per_row:.0f}"),
        ("rows in memory", size_text(round(estimate.table_bytes))),
        ("servers", f"{estimate.servers} ({reason})"),
        ("memory per server", size_text(round(estimate.memory_per_server))),
        ("network per server", f"{size_text(round(estimate.network_per_server))}/s"),
        ("workers", str(estimate.workers)),
        ("one checkpoint", size_text(round(estimate.checkpoint_bytes))),
    ):
        table.add_row(name, text)
    Console().print(table)

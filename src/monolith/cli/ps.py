"""``monolith ps``: runs one parameter server until it is told to end. Parses arguments; the server does the rest."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from monolith.ps.server import ParameterServer

__all__ = ["register"]

_EPILOG = (
    "Example: monolith ps --index 0 --num-ps 2 --port 7001    With discovery: monolith ps --index 0 --num-ps 2 "
    "--discovery file --discovery-path runs/cluster --recover-from runs/clicks/checkpoints/step-1000/tables"
)


def register(app: typer.Typer) -> None:
    """Add ``ps`` to the program."""
    app.command("ps", epilog=_EPILOG)(ps)


def ps(
    index: Annotated[int, typer.Option(min=0, help="Which shard this server holds, from 0.")] = 0,
    num_ps: Annotated[int, typer.Option(min=1, help="Parameter servers of the job.")] = 1,
    host: Annotated[str, typer.Option(help="Interface to listen on; the default is this machine only.")] = "127.0.0.1",
    advertised_host: Annotated[str, typer.Option(help="Name under which others reach it, if not --host.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of gRPC; 0 = any.")] = 0,
    data_plane: Annotated[bool, typer.Option(help="Offer the native data plane; not with TLS.")] = True,
    data_port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port of the data plane; 0 = any.")] = 0,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of /metrics and /healthz; not served when not given.")
    ] = None,
    recover_from: Annotated[
        Path | None, typer.Option(help="Folder of a tables snapshot to take this shard's rows from.")
    ] = None,
    memory_limit_mb: Annotated[int | None, typer.Option(min=1, help="Memory of all tables; then no new rows.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of the server (PEM); turns TLS on.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="Authority of the clients' certificates (PEM).")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the bearer token that callers must know.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="gRPC calls answered at the same time.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one JSON object.")] = False,
) -> None:
    """Run one parameter server. SIGTERM and Ctrl-C end it after the calls under way."""
    from monolith.ps.config import ServerConfig
    from monolith.ps.security import Security
    from monolith.ps.server import ParameterServer

    token = "" if token_file is None else token_file.read_text().strip()
    security = Security(cert_file=tls_cert, key_file=tls_key, ca_file=tls_client_ca, token=token)
    config = ServerConfig(
        index=index,
        shards=num_ps,
        host=host,
        advertised_host=advertised_host,
        port=port,
        data_plane=data_plane,
        data_port=data_port,
        metrics_port=metrics_port,
        recover_from=recover_from,
        memory_limit_bytes=None if memory_limit_mb is None else memory_limit_mb << 20,
        security=security,
        threads=threads,
    )
    with _stop_signals() as ended, ParameterServer(config) as server:
        _show(server, as_json)
        ended.wait()


def _show(server: ParameterServer, as_json: bool) -> None:
    config = server.config
    if as_json:
        shown = {"index": config.index, "num_ps": config.shards, "address": server.address, "pid": os.getpid()}
        typer.echo(json.dumps({**shown, "metrics_address": server.metrics_address}))
        return
    typer.echo(f"parameter server {config.index} of {config.shards} listens on {server.address}")
    if server.metrics_address:
        typer.echo(f"metrics: http://{server.metrics_address}/metrics")


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

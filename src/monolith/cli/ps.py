"""``monolith ps``: runs one parameter server until it is told to end. Parses arguments; the server does the rest."""

from __future__ import annotations

import json
import logging
import os
import queue
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from monolith.core.errors import ClusterError

if TYPE_CHECKING:
    from monolith.discovery import DiscoveryGuard
    from monolith.ps.server import ParameterServer

__all__ = ["register"]

logger = logging.getLogger(__name__)

_EPILOG = (
    "Example: monolith ps --index 0 --num-ps 2 --port 7001    With discovery: monolith ps --index 0 --num-ps 2 "
    "--discovery file --discovery-folder runs/cluster --recover-from runs/clicks/checkpoints/step-1000/tables"
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
    discovery: Annotated[
        str | None, typer.Option(help="Where to register: file, zookeeper or consul; nowhere when not given.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Name of the job in ZooKeeper or Consul.")] = None,
    discovery_folder: Annotated[Path | None, typer.Option(help="Folder of discovery by file.")] = None,
    zk_server: Annotated[str | None, typer.Option(help="host:port,... of ZooKeeper.")] = None,
    consul_server: Annotated[str | None, typer.Option(help="host:port of the Consul agent.")] = None,
    heartbeat_s: Annotated[float, typer.Option(min=0.1, help="Seconds between signs of life to discovery.")] = 10.0,
    recover_from: Annotated[
        Path | None, typer.Option(help="Folder of a tables snapshot to take this shard's rows from.")
    ] = None,
    delta_log: Annotated[
        Path | None,
        typer.Option(help="Folder of this server's delta log: what is learnt is kept there, and recovered from there."),
    ] = None,
    delta_interval: Annotated[
        float, typer.Option(min=0.01, help="Seconds between segments of the delta log: what a crash may lose.")
    ] = 1.0,
    memory_limit_mb: Annotated[int | None, typer.Option(min=1, help="Memory of all tables; then no new rows.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of the server (PEM); turns TLS on.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="Authority of the clients' certificates (PEM).")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the bearer token that callers must know.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="gRPC calls answered at the same time.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one JSON object.")] = False,
) -> None:
    """Run one parameter server. SIGTERM and Ctrl-C end it after the calls under way."""
    from monolith.core.stop_signals import stop_signals
    from monolith.discovery import DiscoveryGuard, DiscoverySettings, open_discovery
    from monolith.ps.config import ServerConfig
    from monolith.ps.server import ParameterServer
    from monolith.rpc.security import Security, read_token

    token = read_token(token_file, "--token-file")
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
        delta_log=delta_log,
        delta_interval_s=delta_interval,
        memory_limit_bytes=None if memory_limit_mb is None else memory_limit_mb << 20,
        security=security,
        threads=threads,
    )
    settings = DiscoverySettings(
        discovery_type=cast(Any, discovery),
        job=job,
        folder=discovery_folder,
        zk_server=zk_server,
        consul_server=consul_server,
    )
    found = open_discovery(settings, os.environ)
    with stop_signals() as endings, ParameterServer(config) as server, DiscoveryGuard(found) as guard:
        if found is not None:
            guard.register(server.service_info())
        _show(server, as_json)
        while True:
            try:
                endings.get(timeout=heartbeat_s)
                break
            except queue.Empty:
                if found is not None:
                    _say_alive(guard, server.service_info().id)


def _say_alive(guard: DiscoveryGuard, service_id: str) -> None:
    try:
        guard.heartbeat(service_id)
    except ClusterError as error:  # the tables are worth more than the registration
        logger.warning("discovery did not take a sign of life id=%s error=%s", service_id, error)


def _show(server: ParameterServer, as_json: bool) -> None:
    config = server.config
    if as_json:
        shown = {"index": config.index, "num_ps": config.shards, "address": server.address, "pid": os.getpid()}
        typer.echo(json.dumps({**shown, "metrics_address": server.metrics_address}))
        return
    typer.echo(f"parameter server {config.index} of {config.shards} listens on {server.address}")
    if server.metrics_address:
        typer.echo(f"metrics: http://{server.metrics_address}/metrics")

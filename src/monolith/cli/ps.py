"""``monolith ps``: runs one parameter server until a signal stops it."""

from __future__ import annotations

import json
import logging
import os
import queue
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from monolith.core.errors import AlreadyRegistered, ClusterError

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
    index: Annotated[int, typer.Option(min=0, help="Index of this server's shard, from 0.")] = 0,
    num_ps: Annotated[int, typer.Option(min=1, help="Number of parameter servers of the job.")] = 1,
    host: Annotated[str, typer.Option(help="Interface to listen on; the default is this machine only.")] = "127.0.0.1",
    advertised_host: Annotated[str, typer.Option(help="Host name for clients, if it differs from --host.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="gRPC port; 0 = any free port.")] = 0,
    data_plane: Annotated[bool, typer.Option(help="Offer the native data plane; not available with TLS.")] = True,
    data_port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port of the data plane; 0 = any free port.")
    ] = 0,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of /metrics and /healthz; default: off.")
    ] = None,
    discovery: Annotated[
        str | None, typer.Option(help="Service discovery to register in: file, zookeeper or consul; default: none.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Job name in ZooKeeper or Consul.")] = None,
    discovery_folder: Annotated[Path | None, typer.Option(help="Shared folder, for --discovery file.")] = None,
    zk_server: Annotated[str | None, typer.Option(help="ZooKeeper servers, host:port,...")] = None,
    consul_server: Annotated[str | None, typer.Option(help="Consul agent, host:port.")] = None,
    heartbeat_s: Annotated[float, typer.Option(min=0.1, help="Seconds between heartbeats to discovery.")] = 10.0,
    recover_from: Annotated[
        Path | None, typer.Option(help="Folder of a tables snapshot to restore this shard's rows from.")
    ] = None,
    delta_log: Annotated[
        Path | None,
        typer.Option(help="Folder of this server's delta log: makes learned rows durable, and recovers them at start."),
    ] = None,
    delta_interval: Annotated[
        float, typer.Option(min=0.01, help="Seconds between segments of the delta log; a crash loses at most this.")
    ] = 1.0,
    force_expiry: Annotated[
        bool, typer.Option("--force-expiry", "--force", help="Save and evict although most rows have expired.")
    ] = False,
    evict_every_hours: Annotated[
        float, typer.Option(min=0.0, help="Event hours between evictions of expired rows; 0 = only on request.")
    ] = 24.0,
    discard_log: Annotated[
        bool, typer.Option("--discard-log", help="Set the delta log of another number of servers aside and start.")
    ] = False,
    memory_limit_mb: Annotated[
        int | None, typer.Option(min=1, help="Memory limit of all tables in MiB; see --when-full.")
    ] = None,
    when_full: Annotated[
        str | None,
        typer.Option(
            help="Reaction of a full table: refuse (new rows are rejected) or evict_oldest (the least recently updated "
            "rows leave). Default: as the model declares."
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Server certificate (PEM); turns TLS on.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of --tls-cert (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="CA of client certificates (PEM); clients must then have one.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the bearer token that clients must send.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="gRPC calls answered in parallel.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one JSON object.")] = False,
) -> None:
    """Run one parameter server. SIGTERM and Ctrl-C stop it after the open calls."""
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
        force_expiry=force_expiry,
        evict_every_hours=evict_every_hours or None,
        discard_log=discard_log,
        memory_limit_bytes=None if memory_limit_mb is None else memory_limit_mb << 20,
        when_full=cast(Any, when_full),
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
    registry = open_discovery(settings, os.environ)
    with stop_signals() as endings, ParameterServer(config) as server, DiscoveryGuard(registry) as guard:
        if registry is not None:
            guard.register(server.service_info())
        _show(server, as_json)
        while True:
            try:
                endings.get(timeout=heartbeat_s)
                break
            except queue.Empty:
                if registry is not None:
                    _send_heartbeat(guard, server.service_info().id)


def _send_heartbeat(guard: DiscoveryGuard, service_id: str) -> None:
    try:
        guard.heartbeat(service_id)
    except AlreadyRegistered as error:  # workers must not train on two copies of one shard
        logger.error("place in discovery lost to another server, stopping id=%s error=%s", service_id, error)
        raise
    except ClusterError as error:  # the tables are worth more than the registration
        logger.warning("heartbeat failed id=%s error=%s", service_id, error)


def _show(server: ParameterServer, as_json: bool) -> None:
    config = server.config
    if as_json:
        shown = {"index": config.index, "num_ps": config.shards, "address": server.address, "pid": os.getpid()}
        typer.echo(json.dumps({**shown, "metrics_address": server.metrics_address}))
        return
    typer.echo(f"parameter server {config.index} of {config.shards} listens on {server.address}")
    if server.metrics_address:
        typer.echo(f"metrics: http://{server.metrics_address}/metrics")

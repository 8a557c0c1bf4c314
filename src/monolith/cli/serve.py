"""``monolith serve``: runs one model server until it is told to end. Parses arguments; the server does the rest."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from monolith.cli._remote_parts import discovery_of, registered, remote_calls
from monolith.cli._tf_serving_flags import translated
from monolith.core.errors import ConfigError

if TYPE_CHECKING:
    from monolith.ps.security import Security
    from monolith.serving import BatchSettings, ModelConfig, ModelServer

__all__ = ["register"]

logger = logging.getLogger(__name__)

_EPILOG = (
    "Example: monolith serve runs/clicks/exported_models --name clicks    Many models: monolith serve "
    "--model-config-file models.conf --config-poll-s 10    The flags of tensorflow_model_server are understood too, "
    "with - and with _."
)
_PORT = "0 = any, -1 = not served."


class _Command(typer.core.TyperCommand):
    """Understands the flags of tensorflow_model_server."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours, ignored = translated(args)
        for flag in ignored:
            logger.warning("a flag of tensorflow_model_server has no meaning here and is ignored flag=%s", flag)
        return super().parse_args(ctx, ours)


def register(app: typer.Typer) -> None:
    """Add ``serve`` to the program."""
    app.command("serve", cls=_Command, epilog=_EPILOG)(serve)


def serve(
    base_path: Annotated[
        Path | None, typer.Argument(help="Folder of a model's versions; or --model-config-file.")
    ] = None,
    name: Annotated[str, typer.Option(help="What clients call the model.")] = "default",
    model_base_path: Annotated[Path | None, typer.Option(help="The same as BASE_PATH.")] = None,
    model_config_file: Annotated[
        Path | None, typer.Option(help="Models as a ModelServerConfig of TensorFlow Serving, as text.")
    ] = None,
    config_poll_s: Annotated[float, typer.Option(min=0, help="Seconds between looks at that file; 0 = once.")] = 0.0,
    version_poll_s: Annotated[float, typer.Option(min=0, help="Seconds between looks for versions; 0 = once.")] = 1.0,
    host: Annotated[str, typer.Option(help="Interface to listen on; the default is this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=-1, max=65535, help=f"Port of gRPC; {_PORT}")] = 8500,
    rest_port: Annotated[int, typer.Option(min=-1, max=65535, help=f"Port of REST and metrics; {_PORT}")] = 8501,
    batching: Annotated[bool, typer.Option(help="Compute requests that wait together.")] = True,
    batching_parameters_file: Annotated[
        Path | None, typer.Option(help="BatchingParameters of TensorFlow Serving, as text.")
    ] = None,
    max_batch_rows: Annotated[int, typer.Option(min=1, help="Rows computed in one call.")] = 4096,
    batch_wait_ms: Annotated[float, typer.Option(min=0, help="How long a batch may wait for more requests.")] = 0.0,
    model_threads: Annotated[int, typer.Option(min=1, help="Calls of models at the same time.")] = 2,
    threads_per_call: Annotated[int, typer.Option(min=1, help="Threads of one call.")] = 1,
    max_queued_rows: Annotated[
        int, typer.Option(min=1, help="Rows that may wait; then requests are refused.")
    ] = 200_000,
    max_calls: Annotated[int, typer.Option(min=1, help="Calls of gRPC, and connections of REST, at a time.")] = 1024,
    grpc_threads: Annotated[int, typer.Option(min=1, help="Calls of gRPC answered at the same time.")] = 64,
    grpc_channel_arguments: Annotated[str, typer.Option(help="Of gRPC: name=value,...")] = "",
    max_message_mb: Annotated[int, typer.Option(min=1, max=2047, help="Largest request or answer.")] = 64,
    request_timeout_s: Annotated[float, typer.Option(help="Longest time for a request.")] = 30.0,
    drain_s: Annotated[float, typer.Option(min=0, help="How long requests may go on after SIGTERM.")] = 10.0,
    load_threads: Annotated[int, typer.Option(min=1, help="Versions loaded at the same time.")] = 2,
    load_retries: Annotated[int, typer.Option(min=0, help="How often a failed load is tried again.")] = 5,
    load_retry_interval_s: Annotated[float, typer.Option(min=0, help="Pause before that.")] = 60.0,
    warm_up: Annotated[bool, typer.Option(help="Replay a version's warm-up requests before it is served.")] = True,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of the server (PEM); turns TLS on.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="Authority of the clients' certificates (PEM).")] = None,
    ssl_config_file: Annotated[Path | None, typer.Option(help="SSLConfig of TensorFlow Serving, as text.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the bearer token that callers must know.")] = None,
    monitoring_config_file: Annotated[
        Path | None, typer.Option(help="MonitoringConfig of TensorFlow Serving, as text: the path of the metrics.")
    ] = None,
    request_log: Annotated[str, typer.Option(help="Begin of the names of files with sampled requests.")] = "",
    request_log_rate: Annotated[float, typer.Option(min=0, max=1, help="Share of the requests in them.")] = 0.0,
    sync_from: Annotated[
        list[str] | None,
        typer.Option(help="Folder that training publishes in: follow it. MODEL=FOLDER for one of several models."),
    ] = None,
    sync_poll_s: Annotated[float, typer.Option(min=0.001, help="Seconds between looks for another cut there.")] = 0.05,
    num_versions: Annotated[
        int, typer.Option(min=1, help="Newest versions that are served; of ps and dense give 2, for roll-outs.")
    ] = 1,
    remote: Annotated[
        list[str] | None, typer.Option(help="Of an entry: PART=host:port,... with all replicas; once for each part.")
    ] = None,
    remote_file: Annotated[
        Path | None, typer.Option(help='The same as JSON, {"ps_0": ["host:port"]}, read again when it changes.')
    ] = None,
    remote_timeout_ms: Annotated[float, typer.Option(help="Longest time for rows or dense part of a batch.")] = 1000.0,
    hedge_ms: Annotated[
        float | None, typer.Option(help="Ask another replica too when one takes so long; off when not given.")
    ] = None,
    allow_degraded: Annotated[
        bool, typer.Option(help="Answer without the rows of a missing shard; such answers are marked and counted.")
    ] = False,
    remote_token_file: Annotated[Path | None, typer.Option(help="Bearer token of the servers that are asked.")] = None,
    remote_ca: Annotated[Path | None, typer.Option(help="Authority of their certificates (PEM); turns TLS on.")] = None,
    discovery: Annotated[
        str | None, typer.Option(help="Where servers of sub-models are found: file, zookeeper or consul.")
    ] = None,
    replica: Annotated[
        int | None, typer.Option(min=0, help="Register there as this replica of --name, such as ps_0.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Name of the job in ZooKeeper or Consul.")] = None,
    discovery_folder: Annotated[Path | None, typer.Option(help="Folder of discovery by file.")] = None,
    zk_server: Annotated[str | None, typer.Option(help="host:port,... of ZooKeeper.")] = None,
    consul_server: Annotated[str | None, typer.Option(help="host:port of the Consul agent.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one JSON object.")] = False,
) -> None:
    """Serve exported models over TensorFlow Serving's API. SIGTERM and Ctrl-C end it after the requests under way."""
    from monolith.core.lifeline import end_with_starter
    from monolith.core.stop_signals import stop_signals
    from monolith.ps.security import Security
    from monolith.serving import BatchSettings, ModelServer, RemoteSettings, ServingConfig, servable_loader
    from monolith.serving.figures import Figures
    from monolith.serving.following import Following, parse_sources

    token = "" if token_file is None else token_file.read_text().strip()
    settings = BatchSettings(
        max_rows=max_batch_rows,
        wait_s=batch_wait_ms / 1e3,
        threads=model_threads,
        max_queued_rows=max_queued_rows,
    )
    remote_settings = RemoteSettings(
        timeout_s=remote_timeout_ms / 1e3,
        hedge_s=None if hedge_ms is None else hedge_ms / 1e3,
        allow_degraded=allow_degraded,
        max_message_bytes=max_message_mb << 20,
        security=Security(
            ca_file=remote_ca, token="" if remote_token_file is None else remote_token_file.read_text().strip()
        ),
    )
    _tune_process(threads_per_call)
    figures = Figures()
    end_with_starter(os.environ)
    with (
        stop_signals() as endings,
        _security(tls_cert, tls_key, tls_client_ca, ssl_config_file, token) as security,
        discovery_of(discovery, job, discovery_folder, zk_server, consul_server) as found,
        remote_calls(remote or [], remote_file, found, remote_settings, figures.remote_call) as calls,
    ):
        config = ServingConfig(
            models=_models(base_path or model_base_path, name, model_config_file, num_versions),
            model_config_file=model_config_file,
            model_config_poll_s=config_poll_s,
            version_poll_s=version_poll_s,
            host=host,
            port=None if port < 0 else port,
            rest_port=None if rest_port < 0 else rest_port,
            security=security,
            batching=_batching(settings, batching, batching_parameters_file),
            max_message_bytes=max_message_mb << 20,
            max_calls=max_calls,
            grpc_threads=grpc_threads,
            grpc_options=_channel_arguments(grpc_channel_arguments),
            request_timeout_s=request_timeout_s,
            drain_s=drain_s,
            load_threads=load_threads,
            load_retries=load_retries,
            load_retry_interval_s=load_retry_interval_s,
            warm_up=warm_up,
            metrics_path=_metrics_path(monitoring_config_file),
            request_log_rate=request_log_rate,
            request_log_prefix=request_log,
        )
        load = servable_loader(calls, threads=threads_per_call)
        following = Following(load, parse_sources(sync_from or []), poll_s=sync_poll_s)
        with (
            ModelServer(config, following, figures=figures, samples=following.samples) as server,
            registered(found, name, replica, server.address),
        ):
            _show(server, as_json)
            endings.get()


def _tune_process(threads_per_call: int) -> None:
    from monolith.embedding import set_threads

    set_threads(threads_per_call)  # calls are computed beside each other; helpers would only be in their way
    # A request passes through several threads. Each would wait the default of 5 ms for a thread that loads a version.
    sys.setswitchinterval(1e-4)
    gc.freeze()  # what was imported stays, and is not to be walked over in the middle of a request


def _models(base_path: Path | None, name: str, config_file: Path | None, num_versions: int) -> list[ModelConfig]:
    from monolith.serving import ModelConfig, VersionPolicy

    if (base_path is None) == (config_file is None):
        raise ConfigError("give either the folder of a model's versions or --model-config-file")
    return (
        []
        if base_path is None
        else [ModelConfig(name=name, base_path=base_path, policy=VersionPolicy(count=num_versions))]
    )


def _batching(settings: BatchSettings, is_on: bool, file: Path | None) -> BatchSettings:
    from dataclasses import replace

    from monolith.serving.batching import parse_batching_parameters

    if not is_on:
        return replace(settings, max_rows=1, wait_s=0.0)
    return settings if file is None else parse_batching_parameters(file.read_text(), str(file), settings)


def _channel_arguments(text: str) -> list[tuple[str, str | int]]:
    found: list[tuple[str, str | int]] = []
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise ConfigError(f"--grpc-channel-arguments has {part!r}; write name=value,name=value")
        found.append((key, int(value) if value.lstrip("-").isdigit() else value))
    return found


def _metrics_path(file: Path | None) -> str:
    from monolith.serving import messages

    default = "/monitoring/prometheus/metrics"
    if file is None:
        return default
    found = messages.MonitoringConfig()
    messages.parse_text(file.read_text(), found, str(file))
    return found.prometheus_config.path or default


@contextmanager
def _security(
    cert: Path | None, key: Path | None, client_ca: Path | None, ssl_config: Path | None, token: str
) -> Iterator[Security]:
    from monolith.ps.security import Security
    from monolith.serving import messages

    if ssl_config is None:
        yield Security(cert_file=cert, key_file=key, ca_file=client_ca, token=token)
        return
    if cert is not None or key is not None or client_ca is not None:
        raise ConfigError("--ssl-config-file is given beside --tls-...; give one of them")
    found = messages.SSLConfig()
    messages.parse_text(ssl_config.read_text(), found, str(ssl_config))
    with tempfile.TemporaryDirectory(prefix="monolith-tls-") as folder:  # only this user can enter it
        texts = {"cert_file": found.server_cert, "key_file": found.server_key}
        if found.client_verify:
            texts["ca_file"] = found.custom_ca
        files = {field: Path(folder) / field for field in texts}
        for field, path in files.items():
            path.write_text(texts[field])
        yield Security(token=token, **files)  # type: ignore[arg-type]


def _show(server: ModelServer, as_json: bool) -> None:
    shown = {"address": server.address, "rest_address": server.rest_address, "pid": os.getpid()}
    if as_json:
        typer.echo(json.dumps(shown))
        return
    names = ", ".join(server.models.names()) or "no models yet"
    where = [f"gRPC on {server.address}"] if server.address else []
    where += [f"REST on http://{server.rest_address}"] if server.rest_address else []
    typer.echo(f"serves {names}: {', '.join(where)}")

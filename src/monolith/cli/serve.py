"""``monolith serve``: runs one model server until a signal stops it."""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from monolith.cli._option_groups import with_option_groups
from monolith.cli._serve_options import (
    BatchingOptions,
    LoadingOptions,
    ModelOptions,
    MonitoringOptions,
    NetworkOptions,
)
from monolith.cli._serve_remote import DiscoveryOptions, RemoteOptions
from monolith.cli._serve_security import SecurityOptions
from monolith.cli._serve_sync import CanaryOptions, SyncOptions
from monolith.cli._tf_serving_flags import translate

if TYPE_CHECKING:
    from monolith.serving import ModelServer
    from monolith.serving.servable.servable import Servable

__all__ = ["register"]

logger = logging.getLogger(__name__)

_EPILOG = (
    "Example: monolith serve runs/clicks/exported_models --name clicks    Many models: monolith serve "
    "--model-config-file models.conf --config-poll-s 10    Follow training: add --sync-from runs/clicks/published    "
    "The flags of tensorflow_model_server work too, with - and with _."
)


class _Command(typer.core.TyperCommand):
    """Accepts the flags of tensorflow_model_server too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flags, ignored = translate(args)
        for flag in ignored:
            logger.warning("flag of tensorflow_model_server ignored flag=%s", flag)
        return super().parse_args(ctx, flags)


def register(app: typer.Typer) -> None:
    """Add ``serve`` to the program."""
    app.command("serve", cls=_Command, epilog=_EPILOG)(with_option_groups(serve))


def serve(
    models: ModelOptions,
    network: NetworkOptions,
    batches: BatchingOptions,
    loading: LoadingOptions,
    access: SecurityOptions,
    monitoring: MonitoringOptions,
    sync: SyncOptions,
    canary: CanaryOptions,
    remotes: RemoteOptions,
    registry: DiscoveryOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one JSON object.")] = False,
) -> None:
    """Serve exported models with the API of TensorFlow Serving. SIGTERM and Ctrl-C stop it after the open requests."""
    from monolith.core.lifeline import end_with_starter
    from monolith.core.stop_signals import stop_signals
    from monolith.data.sources.event_log.writer_metrics import log_writer_samples
    from monolith.serving import ModelServer, ServingConfig, servable_loader
    from monolith.serving.follow.following import Following
    from monolith.serving.metrics import ServingMetrics

    _tune_process(batches.threads_per_call)
    metrics = ServingMetrics()
    end_with_starter(os.environ)
    with (
        stop_signals() as endings,
        access.opened() as security,
        registry.opened() as discovery,
        remotes.calls(discovery, network.max_message_bytes, metrics.remote_call) as calls,
    ):
        config = ServingConfig(
            security=security,
            batching=batches.settings(),
            **models.settings(),
            **network.settings(),
            **loading.settings(),
            **access.settings(),
            **monitoring.settings(),
        )
        load = _freeze_after_first(
            servable_loader(
                calls,
                threads=batches.threads_per_call,
                in_memory=loading.in_memory,
                verify="checksums" if loading.verify == "checksums" else "sizes",
            )
        )
        following = Following(load, **sync.settings(), canary=canary.guard())
        samples = lambda: [*following.samples(), *log_writer_samples()]  # noqa: E731
        with (
            closing(following),
            ModelServer(config, following, metrics=metrics, samples=samples) as server,
            registry.registered(discovery, models.name, server.address),
        ):
            _show(server, as_json)
            endings.get()


def _tune_process(threads_per_call: int) -> None:
    from monolith.embedding import set_threads

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:  # connections, mapped tables and segments share the descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    set_threads(threads_per_call)  # batches run in parallel, so more threads per batch would slow them down
    # A request passes through several threads. Each could wait 5 ms, the default, for a thread that loads a version.
    sys.setswitchinterval(1e-4)


def _freeze_after_first(load: Callable[[Path], Servable]) -> Callable[[Path], Servable]:
    """Return a loader that excludes the objects of its first load from garbage collection.

    Most of them belong to imported modules and stay anyway. Scanning them would delay requests.
    """
    once = [None]

    def load_one(folder: Path) -> Servable:
        loaded = load(folder)
        if once:
            once.clear()
            gc.collect()
            gc.freeze()
        return loaded

    return load_one


def _show(server: ModelServer, as_json: bool) -> None:
    shown = {"address": server.address, "rest_address": server.rest_address, "pid": os.getpid()}
    if as_json:
        typer.echo(json.dumps(shown))
        return
    shown_names = [
        name if server.models.statuses(name) else f"{name} (no version yet)" for name in server.models.names()
    ]
    names = ", ".join(shown_names) or "no models yet"
    addresses = [f"gRPC on {server.address}"] if server.address else []
    addresses += [f"REST on http://{server.rest_address}"] if server.rest_address else []
    typer.echo(f"serves {names}: {', '.join(addresses)}")

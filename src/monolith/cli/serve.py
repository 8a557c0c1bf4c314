"""``monolith serve``: runs one model server until it is told to end. Parses arguments; the server does the rest."""

from __future__ import annotations

import gc
import json
import logging
import os
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
from monolith.cli._tf_serving_flags import translated

if TYPE_CHECKING:
    from monolith.serving import ModelServer
    from monolith.serving.servable import Servable

__all__ = ["register"]

logger = logging.getLogger(__name__)

_EPILOG = (
    "Example: monolith serve runs/clicks/exported_models --name clicks    Many models: monolith serve "
    "--model-config-file models.conf --config-poll-s 10    The flags of tensorflow_model_server are understood too, "
    "with - and with _."
)


class _Command(typer.core.TyperCommand):
    """Understands the flags of tensorflow_model_server."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours, ignored = translated(args)
        for flag in ignored:
            logger.warning("a flag of tensorflow_model_server has no meaning here and is ignored flag=%s", flag)
        return super().parse_args(ctx, ours)


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
    """Serve exported models over TensorFlow Serving's API. SIGTERM and Ctrl-C end it after the requests under way."""
    from monolith.core.lifeline import end_with_starter
    from monolith.core.stop_signals import stop_signals
    from monolith.serving import ModelServer, ServingConfig, servable_loader
    from monolith.serving.following import Following
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
            **monitoring.settings(),
        )
        load = _lasting(servable_loader(calls, threads=batches.threads_per_call, in_memory=loading.in_memory))
        following = Following(load, **sync.settings(), canary=canary.guard())
        with (
            closing(following),
            ModelServer(config, following, metrics=metrics, samples=following.samples) as server,
            registry.registered(discovery, models.name, server.address),
        ):
            _show(server, as_json)
            endings.get()


def _tune_process(threads_per_call: int) -> None:
    from monolith.embedding import set_threads

    set_threads(threads_per_call)  # calls are computed beside each other; helpers would only be in their way
    # A request passes through several threads. Each would wait the default of 5 ms for a thread that loads a version.
    sys.setswitchinterval(1e-4)


def _lasting(load: Callable[[Path], Servable]) -> Callable[[Path], Servable]:
    """Return the loader; what is there after its first load is not walked over in the middle of a request.

    Those are the modules, most of all, of which some are imported only then. They stay.
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
    names = ", ".join(server.models.names()) or "no models yet"
    where = [f"gRPC on {server.address}"] if server.address else []
    where += [f"REST on http://{server.rest_address}"] if server.rest_address else []
    typer.echo(f"serves {names}: {', '.join(where)}")

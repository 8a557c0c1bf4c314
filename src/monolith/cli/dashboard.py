"""``monolith dashboard``: a live page over the metrics of a deployment."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]

_EPILOG = (
    "Example: monolith dashboard --targets trainer=127.0.0.1:9100,server=127.0.0.1:8501 --server 127.0.0.1:8501 "
    "--ps 127.0.0.1:7000"
)


def register(app: typer.Typer) -> None:
    """Add ``dashboard`` to the program."""
    app.command("dashboard", epilog=_EPILOG)(dashboard)


def dashboard(
    targets: Annotated[str, typer.Option(help="Metrics pages to watch: [NAME=]HOST:PORT, separated by commas.")],
    server: Annotated[str | None, typer.Option(help="REST address of a model server, for the predict box.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the predict token of --server.", exists=True, dir_okay=False)
    ] = None,
    ps: Annotated[
        str | None, typer.Option(help="gRPC addresses of all parameter servers in order, for the explain box.")
    ] = None,
    host: Annotated[str, typer.Option(help="Interface to listen on. The page has no login.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 = any free port.")] = 8600,
    interval_s: Annotated[float, typer.Option(min=0.1, max=1e6, help="Seconds between two reads of a target.")] = 1.0,
) -> None:
    """Show live charts of quality, freshness, throughput, tables and lag, and the health of every process."""
    from monolith.core.lifeline import end_with_starter
    from monolith.dashboard import DashboardServer, Scraper
    from monolith.dashboard.boxes import Explainer, Predictor
    from monolith.dashboard.scraper import parse_target
    from monolith.rpc.security import read_token

    end_with_starter(os.environ)
    token = read_token(token_file, "--token-file") or None
    scraper = Scraper([parse_target(text.strip()) for text in targets.split(",")], interval_s=interval_s)
    explainer = None if ps is None else Explainer([address.strip() for address in ps.split(",")])
    try:
        with DashboardServer(
            scraper,
            predictor=None if server is None else Predictor(server, token),
            explainer=explainer,
            host=host,
            port=port,
        ) as page:
            typer.echo(f"dashboard on http://{host}:{page.port}/ (Ctrl-C ends it)")
            _wait_for_signal()
    finally:
        scraper.close()
        if explainer is not None:
            explainer.close()


def _wait_for_signal() -> None:
    ended = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
    ended.wait()

"""``monolith demo``: the whole real-time loop on this machine, a dashboard, and a table of its results."""

from __future__ import annotations

import dataclasses
import math
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from monolith.cli._display import json_text

if TYPE_CHECKING:
    from monolith.demo.demo import DemoResult

__all__ = ["register"]

_FEWEST_SECONDS_OF_TWO_TABLES = 40.0

_EPILOG = "Example: monolith demo --seconds 60    On Kafka: monolith demo --kafka localhost:9092"


def register(app: typer.Typer) -> None:
    """Add ``demo`` to the program."""
    app.command("demo", epilog=_EPILOG)(demo)


def demo(
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of visits before the last table.")] = 60.0,
    headless: Annotated[bool, typer.Option("--headless", help="Start no dashboard and open no browser.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Run on after the table, until Ctrl-C, and keep the files of the run.")
    ] = False,
    events_per_s: Annotated[float, typer.Option(min=1, help="Impressions and clicks per second.")] = 2_000.0,
    publish_interval_s: Annotated[float, typer.Option(min=0.05, help="Seconds between publishes.")] = 1.0,
    batch_interval_s: Annotated[float, typer.Option(min=1, help="Seconds between updates of the batch server.")] = 20.0,
    kafka: Annotated[str | None, typer.Option(help="Kafka brokers, host:port,..., instead of the event log.")] = None,
    zookeeper: Annotated[
        str | None, typer.Option(help="ZooKeeper servers, host:port,..., for the discovery of the training job.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the run, and of the first export for later runs; default: temporary.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as one JSON object.")] = False,
) -> None:
    """Run the real-time loop: visitors, event log, joiner, trainer, two parameter servers and two model servers.

    One model server follows every publish, the other one only once per batch interval. Every part is a process.
    A first table comes after a quarter of the time. Ctrl-C ends all processes.
    """
    from monolith.demo.demo import Demo, DemoOptions
    from monolith.demo.visitors import VisitorSettings

    options = DemoOptions(
        seconds=seconds,
        folder=folder,
        with_dashboard=not headless,
        keep=keep,
        kafka=kafka,
        zookeeper=zookeeper,
        publish_s=publish_interval_s,
        batch_s=batch_interval_s,
        visitors=VisitorSettings(events_per_s=events_per_s),
    )

    def open_browser(url: str) -> None:
        if sys.stdout.isatty():
            webbrowser.open(url)

    def show_quarter(result: DemoResult) -> None:
        if not as_json and seconds >= _FEWEST_SECONDS_OF_TWO_TABLES:
            _show(result, as_json)

    with _exit_on_signals():
        try:
            with Demo(options, lambda line: typer.echo(line, err=True)).run(open_browser, show_quarter) as result:
                _show(result, as_json)
                if keep:
                    typer.echo("the loop runs until Ctrl-C", err=True)
                    threading.Event().wait()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Exit on SIGTERM and SIGHUP as on Ctrl-C, so that the processes of the demo end too."""

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(result: DemoResult, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(dataclasses.asdict(result)))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"The real-time loop in {result.seconds:.0f} s", show_header=False)
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in result.stages_s.items())
    for name, value in (
        ("events (impressions and clicks)", f"{result.events:,} ({result.events_per_s:,.0f}/s)"),
        ("examples of the joiner", f"{result.examples:,}"),
        ("ids with a row", f"{result.ids:,}"),
        ("AUC real-time", f"{result.live_auc:.4f}"),
        ("AUC batch", f"{result.batch_auc:.4f}"),
        ("AUC best possible", f"{result.best_auc:.4f}"),
        ("clicks on the first quarter of a page", f"{result.live_top:.1%} (batch {result.batch_top:.1%})"),
        ("calibration (predicted / true clicks)", f"{result.calibration:.3f}"),
        ("event to servable, p50, p99", _pair(result.event_to_servable_p50_s, result.event_to_servable_p99_s)),
        ("mean seconds per stage", stages),
        ("requests", f"{result.requests_per_s:,.1f}/s, p99 {1000 * result.request_p99_s:.1f} ms"),
        ("failed requests", f"{result.failures:,}"),
        ("from the start to the first request", f"{result.start_s:.1f} s"),
        ("from the start to the first live chart", _or_none(result.first_chart_s)),
    ):
        table.add_row(name, value)
    Console().print(table)


def _or_none(seconds: float) -> str:
    return "no dashboard" if math.isnan(seconds) else f"{seconds:.1f} s"


def _pair(first_s: float, second_s: float) -> str:
    return f"{first_s:.2f} s, {second_s:.2f} s"

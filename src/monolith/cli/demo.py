"""``monolith demo``: trains a model on generated clicks, serves it, and shows how live events change its scores."""

from __future__ import annotations

import dataclasses
import json
import signal
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from monolith.demo.demo import Demo, DemoResult
    from monolith.demo.live import LiveDemo, ScoreMove
    from monolith.demo.moves import Turn

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add ``demo`` to the program."""
    app.command("demo", epilog="Example: monolith demo --clicks 100000 --headless")(demo)


def demo(
    folder: Annotated[Path, typer.Option(help="Folder for clicks, model and checkpoints.")] = Path("monolith-demo"),
    clicks: Annotated[int, typer.Option(help="Impressions to train on.")] = 400_000,
    moves: Annotated[int, typer.Option(min=1, help="Items that users start or stop liking while the server runs.")] = 6,
    headless: Annotated[
        bool, typer.Option("--headless", help="Print plain lines and exit at the end; the default without a terminal.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object; implies --headless.")
    ] = False,
) -> None:
    """Train a DeepFM on generated clicks, serve it, and show how soon live events change its scores.

    Trainer and server are separate processes. On a terminal they run until Ctrl-C.
    """
    from monolith.demo.demo import Demo

    is_headless = headless or as_json or not sys.stdout.isatty()
    with _end_signals() as signals:
        made = Demo(folder, clicks)
        made.generate()
        typer.echo(f"{clicks:,} impressions generated in {made.train_file}", err=True)
        result = made.run()
        if not as_json:
            _show(result)
        typer.echo("starting a trainer that publishes every second, and a server that follows it", err=True)
        signals.are_deferred = True
        with made.live(check_end=signals.check) as live:
            moved = _lines(live, moves) if is_headless else _live_table(live, moves)
            if as_json:
                typer.echo(json.dumps(_as_json(result, moved, live)))
                return
            _show_freshness(moved, live)
            if not is_headless:
                _keep_serving(live)
    _show_next_steps(made)


class _EndSignals:
    """Ends the demo on Ctrl-C, SIGTERM and SIGHUP, by an exception, so that its processes end too.

    While signals are deferred, ``check`` raises the exception. A handler that raises inside a call of gRPC may lose the
    exception, or print it. A second signal raises immediately.
    """

    def __init__(self) -> None:
        self.are_deferred = False
        self._received = 0

    def receive(self, number: int, _: FrameType | None = None) -> None:
        """Handle a signal."""
        is_first, self._received = not self._received, number
        if not (is_first and self.are_deferred):
            self.check()

    def check(self) -> None:
        """Raise the exception of a received signal."""
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received:
            sys.exit(128 + self._received)


@contextmanager
def _end_signals() -> Iterator[_EndSignals]:
    signals = _EndSignals()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield signals
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signals.receive) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- live -------------------------------------------------------------------------------------------------------------


def _lines(live: LiveDemo, count: int) -> list[ScoreMove]:
    moved = []
    for move in live.moves(count):
        change = f"score {move.before:.3f} -> {move.after:.3f} (others {move.others:+.3f})"
        typer.echo(f"item {move.item_id} is {_taste(move.is_up)} now: {change} after {move.seconds:.2f} s", err=True)
        moved.append(move)
    return moved


def _live_table(live: LiveDemo, count: int) -> list[ScoreMove]:
    from rich.live import Live
    from rich.table import Table

    moved: list[ScoreMove] = []
    turning: list[str] = []

    def table() -> Table:
        shown = Table("item", "is now", "score before", "score now", "other items", "seen after", title="Live events")
        for move in moved:
            color = "green" if move.is_up else "red"
            scores = (f"{move.before:.3f}", f"[{color}]{move.after:.3f}", f"{move.others:+.3f}")
            shown.add_row(str(move.item_id), _taste(move.is_up), *scores, f"{move.seconds:.2f} s")
        if turning:
            shown.add_row(*turning, "", "...")
        return shown

    def watch(turn: Turn, score: float) -> None:
        turning[:] = [str(turn.item_id), _taste(turn.is_up), "", f"{score:.3f}"]

    with Live(get_renderable=table, refresh_per_second=10):
        for move in live.moves(count, watch):
            turning.clear()
            moved.append(move)
    return moved


def _taste(is_up: bool) -> str:
    return "liked" if is_up else "disliked"


def _keep_serving(live: LiveDemo) -> None:
    """Keep the server running until Ctrl-C."""
    typer.echo(f"The server runs until Ctrl-C. Send it a request:\n  {live.curl}")
    try:
        live.wait()
    except KeyboardInterrupt:
        typer.echo("")


# --- results ----------------------------------------------------------------------------------------------------------


def _as_json(result: DemoResult, moved: Sequence[ScoreMove], live: LiveDemo) -> dict[str, object]:
    seconds = [move.seconds for move in moved]
    return dataclasses.asdict(result) | {
        "samples_per_s": result.samples_per_s,
        "checkpoint": str(result.checkpoint),
        "moves": [dataclasses.asdict(move) for move in moved],
        "event_to_predict_median_s": statistics.median(seconds),
        "event_to_predict_worst_s": max(seconds),
        "requests": live.requests,
    }


def _show(result: DemoResult) -> None:
    _print_table(
        "DeepFM on the clicks of a known world",
        {
            "impressions trained on": f"{result.clicks:,}",
            "samples per second": f"{result.samples_per_s:,.0f}",
            "ids with a row": f"{result.ids:,}",
            "memory of the tables": f"{result.table_bytes / 2**20:.1f} MiB",
            "AUC on later clicks": f"{result.auc:.4f}",
            "best possible AUC": f"{result.best_auc:.4f}",
            "predicted / true clicks": f"{result.calibration:.3f}",
            "checkpoint": f"{result.checkpoint_bytes / 2**20:.1f} MiB",
        },
    )


def _show_freshness(moved: Sequence[ScoreMove], live: LiveDemo) -> None:
    seconds = [move.seconds for move in moved]
    right = sum((move.after > move.before) == move.is_up for move in moved)
    _print_table(
        "From an event to the score that shows it",
        {
            "publishes": "once a second",
            "median": f"{statistics.median(seconds):.2f} s",
            "worst": f"{max(seconds):.2f} s",
            "scores that moved the right way": f"{right} of {len(moved)}",
            "requests answered": f"{live.requests:,}",
        },
    )


def _print_table(title: str, rows: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)


def _show_next_steps(made: Demo) -> None:
    typer.echo("Try next:")
    for line in (
        f"monolith serve {made.exported} --name clicks --sync-from {made.published}",
        made.curl,
        f"monolith inspect delta {made.published}",
        f"monolith inspect checkpoint {made.model_dir}",
        f"monolith train --task dcnv2 --data {made.train_file} --eval-data {made.test_file} --model-dir runs/dcnv2",
        "python examples/03_movie_ranking.py",
    ):
        typer.echo(f"  {line}")

"""``monolith demo``: trains a model on the clicks of a known world and shows how near it comes to the best possible."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from monolith.testing.demo import Demo, DemoResult

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add ``demo`` to the program."""
    app.command("demo", epilog="Example: monolith demo --clicks 100000")(demo)


def demo(
    folder: Annotated[Path, typer.Option(help="Where clicks, model and checkpoints go.")] = Path("monolith-demo"),
    clicks: Annotated[int, typer.Option(help="Impressions to train on.")] = 600_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Train a DeepFM on generated clicks whose true probabilities are known."""
    from monolith.testing.demo import Demo

    made = Demo(folder, clicks)
    made.generate()
    typer.echo(f"{clicks:,} impressions generated in {made.train_file}", err=True)
    result = made.run()
    if as_json:
        more = {"samples_per_s": result.samples_per_s, "checkpoint": str(result.checkpoint)}
        typer.echo(json.dumps(dataclasses.asdict(result) | more))
        return
    _show(result)
    _show_next_steps(made)


def _show(result: DemoResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="DeepFM on the clicks of a known world", show_header=False)
    for name, value in (
        ("impressions trained on", f"{result.clicks:,}"),
        ("samples per second", f"{result.samples_per_s:,.0f}"),
        ("ids with a row", f"{result.ids:,}"),
        ("memory of the tables", f"{result.table_bytes / 2**20:.1f} MiB"),
        ("AUC on later clicks", f"{result.auc:.4f}"),
        ("best possible AUC", f"{result.best_auc:.4f}"),
        ("predicted / true clicks", f"{result.calibration:.3f}"),
        ("checkpoint", f"{result.checkpoint_bytes / 2**20:.1f} MiB"),
    ):
        table.add_row(name, value)
    Console().print(table)


def _show_next_steps(made: Demo) -> None:
    typer.echo("Try next:")
    for line in (
        f"monolith inspect checkpoint {made.model_dir}",
        f"monolith inspect records {made.train_file}",
        f"monolith train --task dcnv2 --data {made.train_file} --eval-data {made.test_file} --model-dir runs/dcnv2",
        "python examples/03_movie_ranking.py",
    ):
        typer.echo(f"  {line}")

"""``monolith experiment``: the two experiments of the Monolith paper, as tables, plots and JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolith.cli._display import json_text
from monolith.core.errors import ConfigError

if TYPE_CHECKING:
    from monolith.demo.experiments import CollisionResult, SyncIntervalReport

__all__ = ["register"]

_EPILOG = "Example: monolith experiment sync-interval --hours 2 --plot runs/sync-interval"
_COLLISIONS_EPILOG = "Example: monolith experiment collisions --seeds 0,1,2 --plot runs/collisions"

Seeds = Annotated[str, typer.Option(help="Seeds, separated by commas; one training each.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of training; as many as cores if not given.")]
Plot = Annotated[Path | None, typer.Option(help="Write PLOT.png and PLOT.svg; needs the extra 'plots'.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add ``experiment`` to the program."""
    experiment = typer.Typer(no_args_is_help=True, help="Repeat the experiments of the Monolith paper.", epilog=_EPILOG)
    experiment.callback()(_no_options)
    experiment.command("sync-interval", epilog=_EPILOG)(sync_interval)
    experiment.command("collisions", epilog=_COLLISIONS_EPILOG)(collisions)
    app.add_typer(experiment, name="experiment")


def _no_options() -> None:
    pass


def sync_interval(
    data: Annotated[
        str | None, typer.Option(help="Parquet or record files with event times; a drifting world if not given.")
    ] = None,
    task: Annotated[str, typer.Option(help="Model for --data, as in monolith train.")] = "deepfm",
    label_features: Annotated[str | None, typer.Option(help="Label columns of --data, separated by commas.")] = None,
    record: Annotated[str, typer.Option(help="Record kind of --data, as in monolith train.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a batch of --data.")] = 256,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of --data to use; all if not given.")] = None,
    intervals: Annotated[str, typer.Option(help="Publish intervals in seconds of event time.")] = "1,60,600,3600",
    hours: Annotated[float, typer.Option(help="Event time of the world to score, after the warm-up.")] = 4.0,
    events_per_s: Annotated[int, typer.Option(min=1, help="Impressions of the world per second.")] = 50,
    seeds: Seeds = "0,1,2",
    threads: Threads = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Measure the AUC that publish intervals of a second, a minute, ten minutes and an hour reach.

    One trainer makes all versions, and each version scores the same rows. The longest interval is the warm-up.
    """
    from monolith.demo.experiments import measure_world

    _check_finite("--hours", hours)
    numbers = _parse_numbers("--seeds", seeds, int)
    intervals_s = _parse_numbers("--intervals", intervals, float)
    if data is None:
        reports = measure_world(
            numbers,
            hours=hours,
            intervals_s=intervals_s,
            events_per_s=events_per_s,
            threads=threads,
            progress=_show_progress(as_json),
        )
    else:
        options: dict[str, Any] = {
            "task": task,
            "data": data,
            "record": record,
            "batch_size": batch_size,
            "shuffle_buffer": 0,
        }
        if label_features is not None:
            options["label_features"] = tuple(label_features.split(","))
        reports = _measure_data(options, rows, numbers, intervals_s, threads, _show_progress(as_json))
    if as_json:
        typer.echo(json_text({"reports": [dataclasses.asdict(report) for report in reports]}))
    else:
        _show_intervals(reports)
    if plot is not None:
        from monolith.demo.experiments.plots import plot_sync_interval

        _echo_paths(plot_sync_interval(reports, plot))


def _measure_data(
    options: dict[str, Any],
    rows: int | None,
    seeds: Sequence[int],
    intervals_s: Sequence[float],
    threads: int | None,
    progress: Callable[[int, float], None],
) -> list[SyncIntervalReport]:
    from itertools import islice

    from monolith.demo.experiments import measure_file
    from monolith.training.config.job import JobConfig
    from monolith.training.runner import Job

    def make_job(seed: int) -> Job:
        return Job(JobConfig(**options, seed=seed, threads=threads, log_step_count_steps=0, save_summary_steps=0))

    batches = make_job(seeds[0]).read_training_data()
    wanted = None if rows is None else -(-rows // options["batch_size"])
    return measure_file(
        lambda seed: make_job(seed).estimator,
        islice(batches, wanted),
        seeds=seeds,
        intervals_s=intervals_s,
        progress=progress,
    )


def collisions(
    clicks: Annotated[int, typer.Option(min=1000, help="Impressions to train on.")] = 300_000,
    factor: Annotated[float, typer.Option(min=0.01, help="Multiplies the collision rates of the paper.")] = 1.0,
    seeds: Seeds = "0,1,2",
    threads: Threads = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Compare tables with one row per id to hashed tables, at the collision rates of the paper.

    The rates are 7.73 % of users and 2.86 % of items. Both models see the same rows in the same order.
    """
    from monolith.demo.experiments import measure_collisions

    _check_finite("--factor", factor)
    results = measure_collisions(
        _parse_numbers("--seeds", seeds, int),
        clicks=clicks,
        factor=factor,
        threads=threads,
        progress=_show_progress(as_json),
    )
    if as_json:
        typer.echo(json_text({"results": [dataclasses.asdict(result) for result in results]}))
    else:
        _show_collisions(results)
    if plot is not None:
        from monolith.demo.experiments.plots import plot_collisions

        _echo_paths(plot_collisions(results, plot))


def _parse_numbers(option: str, text: str, kind: Callable[[str], Any]) -> list[Any]:
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} is {text!r}, expected numbers separated by commas") from None
    if not all(0 <= number < math.inf for number in numbers):
        raise typer.BadParameter(f"{option} is {text!r}, expected finite numbers, none below 0")
    return numbers


def _check_finite(option: str, number: float) -> None:
    if not math.isfinite(number):
        raise ConfigError(f"{option} is {number}, expected a finite number")


def _show_progress(is_silent: bool) -> Callable[[int, float], None]:
    """Return a function that prints every tenth of a training to standard error."""
    shown: dict[int, int] = {}

    def show(seed: int, share: float) -> None:
        tenth = int(share * 10)
        if not is_silent and tenth > shown.get(seed, 0):
            shown[seed] = tenth
            typer.echo(f"seed {seed}: {tenth * 10} % trained", err=True)

    return show


def _show_intervals(reports: Sequence[SyncIntervalReport]) -> None:
    from rich.console import Console
    from rich.table import Table

    from monolith.demo.experiments.plots import format_seconds

    table = Table(title="AUC on the rows after each publish")
    for name in ("seed", "rows", "interval", "AUC", "loss to the shortest", "95 % interval", "perfect model"):
        table.add_column(name, justify="right")
    for report in reports:
        for each in report.intervals:
            table.add_row(
                str(report.seed),
                f"{report.rows:,}",
                format_seconds(each.interval_s),
                f"{each.auc:.4f}",
                f"{each.loss:.4f}",
                f"{each.loss_low:.4f} to {each.loss_high:.4f}",
                "" if each.best_auc is None else f"{each.best_auc:.4f}",
            )
        table.add_section()
    Console().print(table)


def _show_collisions(results: Sequence[CollisionResult]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="AUC on later rows")
    for name in ("seed", "one row per id", "hashed ids", "loss", "best possible", "users / items that collide"):
        table.add_column(name, justify="right")
    for each in results:
        shares = " / ".join(f"{share:.2%}" for share in each.colliding_shares.values())
        values = (each.auc, each.hashed_auc, each.auc - each.hashed_auc, each.best_auc)
        table.add_row(str(each.seed), *(f"{value:.4f}" for value in values), shares)
    Console().print(table)


def _echo_paths(paths: Sequence[Path]) -> None:
    for path in paths:
        typer.echo(f"plot written path={path}", err=True)

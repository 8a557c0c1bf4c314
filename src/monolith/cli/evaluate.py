"""``monolith evaluate``: measures a trained model on data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from monolith.cli._job_help import OF_EVALUATION, TRAINING_ONLY, job_command
from monolith.training.config.job import JobConfig
from monolith.training.config.options import with_config_options

__all__ = ["register"]

_EXAMPLE = "Example: monolith evaluate --model-dir runs/clicks --data 'day-9.parquet' --json"


def register(app: typer.Typer) -> None:
    """Add ``evaluate`` to the program."""
    command = app.command("evaluate", cls=job_command(OF_EVALUATION, TRAINING_ONLY), epilog=_EXAMPLE)
    command(with_config_options(JobConfig)(evaluate))


def evaluate(
    flags: Mapping[str, Any],
    config: Annotated[Path | None, typer.Option(help="YAML or JSON file with any of the settings.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Path or URL of a checkpoint; default: the newest one.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Evaluate every new checkpoint, up to the one of --max-steps.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON, one object per line.")] = False,
) -> None:
    """Print the metrics of a trained model on data, without training. The model class is read from --model-dir."""
    from monolith.cli._job import load_job, show_metrics
    from monolith.training.runner import Job

    loaded = load_job(flags, config, JobConfig)
    job = Job(loaded.config)
    if not follow:
        show_metrics(job.evaluate(checkpoint), as_json=as_json)
        return
    for metrics in job.evaluate_new_checkpoints():
        show_metrics(metrics, as_json=as_json)

"""``monolith predict``: writes keys and predictions of a trained model, one row per example."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from monolith.cli._job_help import OF_EVALUATION, TRAINING_ONLY, job_command
from monolith.training.config.job import JobConfig
from monolith.training.config.options import with_config_options

__all__ = ["register"]

_EXAMPLE = "Example: monolith predict --model-dir runs/clicks --data day-9.parquet --keys user --out scores.parquet"


def register(app: typer.Typer) -> None:
    """Add ``predict`` to the program."""
    command = app.command("predict", cls=job_command(OF_EVALUATION, TRAINING_ONLY), epilog=_EXAMPLE)
    command(with_config_options(JobConfig)(predict))


def predict(
    flags: Mapping[str, Any],
    config: Annotated[Path | None, typer.Option(help="YAML or JSON file with any of the settings.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Path or URL of a checkpoint; default: the newest one.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "--output", help="File to write, *.parquet or JSON lines; default: JSON lines on standard output."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="No effect: standard output is always JSON.")] = False,
) -> None:
    """Write one row per example: its keys, the prediction of each head, and the extra outputs of the model."""
    from monolith.cli._job import load_job
    from monolith.data.score_files import open_score_file
    from monolith.training.runner import Job

    job = Job(load_job(flags, config, JobConfig).config)
    with open_score_file(out) as file:
        for columns in job.predict(checkpoint):
            file.write(columns)

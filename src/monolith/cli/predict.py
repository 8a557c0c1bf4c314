"""``monolith predict``: writes the predictions of a trained model, one line per example."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from monolith.cli._job_help import OF_EVALUATION, TRAINING_ONLY, job_command
from monolith.core.errors import ConfigError
from monolith.training.config.job import JobConfig
from monolith.training.config.options import with_config_options

__all__ = ["register"]

_EXAMPLE = "Example: monolith predict --model-dir runs/clicks --data 'day-9.parquet' --out scores.jsonl"


def register(app: typer.Typer) -> None:
    """Add ``predict`` to the program."""
    command = app.command("predict", cls=job_command(OF_EVALUATION, TRAINING_ONLY), epilog=_EXAMPLE)
    command(with_config_options(JobConfig)(predict))


def predict(
    flags: Mapping[str, Any],
    config: Annotated[Path | None, typer.Option(help="YAML or JSON file with any of the settings.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder of a checkpoint; default: the newest one.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="No effect: the output is always JSON.")] = False,
) -> None:
    """Write one JSON object per example: the prediction of each head, and the extra outputs of the model."""
    from monolith.cli._job import load_job
    from monolith.core.storage import NewFile
    from monolith.training.runner import Job

    job = Job(load_job(flags, config, JobConfig).config)
    file = None if out is None else NewFile(str(out))
    try:
        for outputs in job.predict(checkpoint):
            lines = _lines(outputs)
            if file is None:
                sys.stdout.writelines(lines)
            else:
                file.write("".join(lines).encode())
    except BaseException:
        if file is not None:
            file.discard()
        raise
    if file is not None:
        file.publish()


def _lines(outputs: Mapping[str, Any]) -> list[str]:
    """Return one line of JSON per example."""
    sizes = {name: len(value) if value.ndim else None for name, value in outputs.items()}
    if len(set(sizes.values())) != 1:
        raise ConfigError(f"the outputs have {sizes} rows, expected one row per example; check the extra outputs")
    columns = [value.tolist() for value in outputs.values()]
    return [json.dumps(dict(zip(outputs, row, strict=True))) + "\n" for row in zip(*columns, strict=True)]

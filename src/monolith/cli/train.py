"""``monolith train``: trains a model on files or a stream, and resumes from the newest checkpoint."""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from monolith.cli._job_help import OF_TRAINING, job_command
from monolith.core.errors import ConfigError
from monolith.core.freed_memory import keep_freed_memory
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.config.cluster import RanksMode
from monolith.training.config.options import with_config_options

__all__ = ["register"]

_EXIT_S = 60.0

_EXAMPLE = (
    "Example: monolith train --task deepfm --data 'day-*.parquet' --label-features click --model-dir runs/clicks    "
    "Your model: monolith train --task ranker.py:Ranker --data 'part-*.pb' --model-dir runs/ranker --max-steps 10000"
)


def register(app: typer.Typer) -> None:
    """Add ``train`` to the program."""
    app.command("train", cls=job_command(OF_TRAINING), epilog=_EXAMPLE)(with_config_options(ClusterJobConfig)(train))


def train(
    flags: Mapping[str, Any],
    config: Annotated[Path | None, typer.Option(help="YAML or JSON file with any of the settings.")] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every setting and its origin, and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> None:
    """Train a model.

    Resumes from the newest checkpoint in --model-dir, at the exact position in the data. Ctrl-C saves a checkpoint and
    exits.
    """
    keep_freed_memory()
    from monolith.cli._job import load_job, show_columns, show_metrics

    loaded = load_job(flags, config, ClusterJobConfig)
    if print_config:
        from monolith.training.config import report

        if as_json:
            typer.echo(json.dumps(report.report_json(loaded.report)))
        else:
            report.print_config(loaded.report)
        return
    if loaded.config.run.export.export_when_saving and not loaded.config.run.model_dir:
        raise ConfigError("export_when_saving is True and model_dir is '', expected a folder; give --model-dir")
    if loaded.config.is_distributed or loaded.config.cluster.server_type == "evaluator":
        from monolith.training.cluster.roles.process import run_process

        faulthandler.enable()  # a crash or abort prints the stack of every thread
        metrics = run_process(loaded.config, os.environ)
        # A library's thread may keep the interpreter from exiting, and the job's other processes would wait for it.
        # After this time, print the stacks and exit.
        faulthandler.dump_traceback_later(_EXIT_S, exit=True)
        if metrics is not None:
            show_metrics(metrics, as_json=as_json)
        return
    if isinstance(loaded.config.cluster.mode, RanksMode):
        from monolith.training.cluster.roles.rank import run_rank
        from monolith.training.hooks import StopSignalHook

        metrics = run_rank(loaded.config, os.environ, hooks=[StopSignalHook()])
        if metrics is not None:
            show_metrics(metrics, as_json=as_json)
        return
    _refuse_ranks(os.environ)
    from monolith.training.hooks import StopSignalHook
    from monolith.training.runner import Job

    job = Job(loaded.config, hooks=[StopSignalHook()], on_report=None if as_json else show_columns)
    if loaded.config.run.runtime.only_feature_engineering:
        for path in job.write_features().paths:
            typer.echo(path)
        return
    show_metrics(job.train(), as_json=as_json)


def _refuse_ranks(environment: Mapping[str, str]) -> None:
    """Refuse ranks without synchronous training: each would train alone and write to the same folder."""
    from monolith.training.groups.ranks.rank_env import detect_launcher

    if (launcher := detect_launcher(environment)) is not None:
        raise ConfigError(
            f"{launcher} started this process as one of several ranks, and enable_sync_training is False; add "
            "--enable-sync-training, or start one process"
        )

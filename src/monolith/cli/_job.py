"""Shared by ``train``, ``evaluate`` and ``predict``: loading the settings of a job, and showing metrics."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monolith.core.config import Loaded, load
from monolith.training.config.job import JobConfig
from monolith.training.config.retired import RETIRED

if TYPE_CHECKING:
    from monolith.training.data_report import DataReport

__all__ = ["load_job", "show_columns", "show_metrics"]


J = TypeVar("J", bound=JobConfig)


def load_job(flags: Mapping[str, Any], config: Path | None, config_type: type[J]) -> Loaded[J]:
    """Load the settings of a job: command line > environment > file > parameters of the task > default.

    The working folder joins ``sys.path``, as with ``python -m``, so that --task can name its modules.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    sources: dict[str, Any] = {"command_line": flags, "environment": os.environ, "file": config, "retired": RETIRED}
    loaded = load(config_type, **sources)
    settings = _task_settings({line.field: line.value for line in loaded.report})
    return load(config_type, task=settings, **sources) if settings else loaded


def _task_settings(values: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    if values.get("server_type") == "ps":  # a parameter server starts without torch, which a task imports
        return {}
    from monolith.training.runner import task_settings

    return task_settings(values["task"], values["task_options"], values["model_dir"])


def show_metrics(metrics: Mapping[str, float], *, as_json: bool) -> None:
    """Print metrics on standard output: a table, or one JSON object."""
    if as_json:
        plain = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        typer.echo(json.dumps(plain))
        return
    table = Table(show_header=False, box=None)
    for name, value in metrics.items():
        is_whole = math.isfinite(value) and value == int(value)
        table.add_row(name, f"{value:,.0f}" if is_whole else f"{value:.6g}")
    Console().print(table)


def show_columns(report: DataReport) -> None:
    """Print the role of each column on standard error."""
    table = Table(box=box.SIMPLE_HEAD, title=f"columns of the first {report.rows:,} rows", title_justify="left")
    for heading in ("column", "role", "type", "missing", "first values"):
        table.add_column(heading, overflow="fold")
    for each in report.columns:
        style = "dim" if each.role == "not read" else None
        table.add_row(
            Text(each.name), each.role, each.type, f"{each.missing:.1%}", Text(" | ".join(each.first)), style=style
        )
    Console(stderr=True).print(table)

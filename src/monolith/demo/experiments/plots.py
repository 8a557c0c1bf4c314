"""Plots of experiments as PNG and SVG. Needs the extra ``plots``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monolith.core.errors import ConfigError
from monolith.demo.experiments.collisions import CollisionResult
from monolith.demo.experiments.sync_interval import SyncIntervalReport

__all__ = ["format_seconds", "plot_collisions", "plot_sync_interval"]

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")  # a palette for all kinds of color vision


def plot_sync_interval(reports: Sequence[SyncIntervalReport], base: Path) -> list[Path]:
    """Write ``base.png`` and ``base.svg``: AUC over the publish interval, one line per seed.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure, axes = _new_figure("Publish interval and AUC on the next rows")
    for report, color in zip(reports, _COLORS * len(reports), strict=False):
        intervals = [each.interval_s for each in report.intervals]
        axes.plot(intervals, [each.auc for each in report.intervals], "o-", color=color, label=f"seed {report.seed}")
        best = [each.best_auc for each in report.intervals]
        if None not in best:
            axes.plot(intervals, best, ":", color=color, label=f"perfect model, seed {report.seed}")
    axes.set_xscale("log")
    axes.set_xticks([each.interval_s for each in reports[0].intervals])
    axes.set_xticklabels([format_seconds(each.interval_s) for each in reports[0].intervals])
    axes.minorticks_off()
    axes.set_xlabel("publish interval in event time")
    axes.set_ylabel("AUC")
    axes.legend(fontsize="small")
    return _write(figure, base)


def plot_collisions(results: Sequence[CollisionResult], base: Path) -> list[Path]:
    """Write ``base.png`` and ``base.svg``: AUC with exact and with hashed ids, one pair of bars per seed.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure, axes = _new_figure("One row per id against hashed ids")
    places = range(len(results))
    axes.bar([place - 0.2 for place in places], [each.auc for each in results], 0.4, label="exact", color=_COLORS[0])
    axes.bar(
        [place + 0.2 for place in places], [each.hashed_auc for each in results], 0.4, label="hashed", color=_COLORS[1]
    )
    lowest = min(min(each.auc, each.hashed_auc) for each in results)
    highest = max(max(each.auc, each.hashed_auc) for each in results)
    axes.set_ylim(lowest - (highest - lowest + 0.001), highest + (highest - lowest + 0.001) / 2)
    axes.set_xticks(list(places), [f"seed {each.seed}" for each in results])
    axes.set_ylabel("AUC on later rows")
    axes.legend()
    return _write(figure, base)


def format_seconds(seconds: float) -> str:
    """Return a short text such as ``10 min``.

    >>> [format_seconds(value) for value in (1, 60, 600, 3600, 90)]
    ['1 s', '1 min', '10 min', '1 h', '90 s']
    """
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def _new_figure(title: str) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "matplotlib is not installed, expected it for plots; pip install 'monolith[plots]'"
        ) from error
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _write(figure: Any, base: Path) -> list[Path]:
    base.parent.mkdir(parents=True, exist_ok=True)
    paths = [base.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths

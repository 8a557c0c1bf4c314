"""Texts of sizes, times and reports, and the progress bar of ``monolith inspect``."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["checking_bar", "json_text", "size_text", "time_text"]


def json_text(report: Any) -> str:
    """Return a report as JSON, which has neither NaN nor infinity: such numbers are null.

    >>> json_text({"auc": float("nan"), "rows": [1.5, float("inf")]})
    '{"auc": null, "rows": [1.5, null]}'
    """
    return json.dumps(_finite(report), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def size_text(count: int) -> str:
    """Return a number of bytes as text with a unit.

    >>> size_text(103), size_text(2_345_678)
    ('103 bytes', '2.346 MB')
    """
    number = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.4g} {unit}"
        number /= 1000
    return f"{number:.4g} TB"


def time_text(time_s: float) -> str:
    """Return unix seconds as a UTC date and time; "none" for zero.

    Event times are data: those beyond the year 9999 have no date, for example microseconds instead of milliseconds.

    >>> time_text(1_700_000_000), time_text(1.7e12)
    ('2023-11-14 22:13:20 UTC', 'unix time 1700000000000 s')
    """
    if time_s == 0:
        return "none"
    try:
        return f"{datetime.datetime.fromtimestamp(time_s, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError):
        return f"unix time {time_s:.0f} s"


@contextlib.contextmanager
def checking_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback that moves a progress bar on a terminal; elsewhere it does nothing."""
    if not sys.stderr.isatty():
        yield lambda name, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("checking {task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)

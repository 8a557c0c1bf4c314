"""Texts of sizes and times, and the progress bar of ``monolith inspect``."""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections.abc import Callable, Iterator

__all__ = ["checking_bar", "size_text", "time_text"]


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
    """Return unix seconds as a UTC date and time; "none" for zero."""
    if time_s == 0:
        return "none"
    return f"{datetime.datetime.fromtimestamp(time_s, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


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

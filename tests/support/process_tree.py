"""``programs_of``: the programs that a program has started."""

from __future__ import annotations

import psutil

from preloaded_popen import SERVER_NAME

__all__ = ["programs_of"]


def programs_of(pid: int) -> list[psutil.Process]:
    """Return all processes below a process, without the one that forks programs for it."""
    return [each for each in psutil.Process(pid).children(recursive=True) if each.name() != SERVER_NAME]

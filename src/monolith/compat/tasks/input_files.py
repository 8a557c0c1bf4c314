"""Selects the files of a task: folders of days between two dates, and the files that a restarted job has finished.

The functions work on names and counts, and open no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from monolith.core.errors import ConfigError

__all__ = ["FIRST_DATE", "LAST_DATE", "files_between", "finished_files"]

FIRST_DATE = "00000000"
LAST_DATE = "99999999"


def files_between(
    files: Iterable[str], folder: str, start_date: str | None = None, end_date: str | None = None
) -> list[str]:
    """Return the files whose date is from ``start_date`` to ``end_date``, both included.

    The date is the 8 digits after ``folder/``. None = unbounded.

    >>> files_between(["in/20200501/a", "in/20200502/b", "in/20200503/c"], "in", "20200502", "20200502")
    ['in/20200502/b']

    Raises:
        ConfigError: A bound is not a date of 8 digits, the first is after the last, or a file has no date there.
    """
    first = _date("start_date", FIRST_DATE if start_date is None else start_date)
    last = _date("end_date", LAST_DATE if end_date is None else end_date)
    if first > last:
        raise ConfigError(f"start_date {first} is after end_date {last}; both are included, so they may be equal")
    prefix = folder.rstrip("/") + "/"
    kept = []
    for file in files:
        date = file[len(prefix) : len(prefix) + 8]
        if not file.startswith(prefix) or not _is_date(date):
            raise ConfigError(f"{file!r} has no date YYYYMMDD after {prefix!r}; narrow the pattern of the files")
        if first <= date <= last:
            kept.append(file)
    return kept


def finished_files(
    examples_per_file: Sequence[int], hosts: int, *, steps: int, batch_per_replica: int, replicas_per_host: int = 8
) -> list[int]:
    """Return, per host, how many of its first files a job of ``steps`` steps has read completely.

    Files go to hosts in turn, and each host has used ``batch_per_replica * steps * replicas_per_host`` examples. A
    file counts when all of it is within those, and all files of the host before it too.

    This is for jobs that were saved without their place in the data; ``Dataset.state`` resumes at the exact record.

    >>> finished_files([100, 100, 100, 100, 100], 2, steps=10, batch_per_replica=2)
    [1, 1]

    Raises:
        ConfigError: A number is negative, or there is no host.
    """
    for name, value, least in (
        ("hosts", hosts, 1),
        ("steps", steps, 0),
        ("batch_per_replica", batch_per_replica, 1),
        ("replicas_per_host", replicas_per_host, 1),
        ("examples_per_file", min(examples_per_file, default=0), 0),
    ):
        if value < least:
            raise ConfigError(f"{name} is {value}; it must be {least} or more")
    used = batch_per_replica * steps * replicas_per_host
    return [_fitting(examples_per_file[host::hosts], used) for host in range(hosts)]


def _fitting(sizes: Sequence[int], room: int) -> int:
    for count, size in enumerate(sizes):
        room -= size
        if room < 0:
            return count
    return len(sizes)


def _date(name: str, value: str | int) -> str:
    text = str(value)
    if not _is_date(text):
        raise ConfigError(f"{name} is {value!r}; write YYYYMMDD")
    return text


def _is_date(text: str) -> bool:
    return len(text) == 8 and text.isascii() and text.isdigit()

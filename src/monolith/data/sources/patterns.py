"""``expand``: turns patterns into a list of files: globs, comma lists, ``@filelist``, templates of dates and numbers.

The order is stable: patterns in the given order, files sorted by name within each pattern, each file once, where it
first appears. Only file lists are opened.
"""

from __future__ import annotations

import datetime
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from monolith.core import storage
from monolith.core.errors import ConfigError

__all__ = ["date_patterns", "expand", "expand_template", "take_shard"]

_TEMPLATE = re.compile(r"\{(DATE|INT)\(\s*(\d+)\s*,\s*(\d+)\s*\)\}")
_MOST_NAMES = 100_000
_HOUR = datetime.timedelta(hours=1)
_DAY = datetime.timedelta(days=1)


def expand(
    patterns: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    missing: Literal["error", "skip"] = "error",
) -> list[str]:
    """Return the files that ``patterns`` name.

    Text is split at commas outside braces; the items of a list are not split. Each part is one of

    * a path or a URL;
    * a glob, with ``**`` for any depth of folders (wildcards match neither hidden files nor folders);
    * ``@list.txt``: a file with one path, glob or template per line, ``#`` for comments; relative paths are relative
      to the working folder;
    * any of these with ``{DATE(20201120,20201210)}`` or ``{INT(0,5)}``, both ends included. Dates and numbers without
      a file are skipped, if at least one has a file.

    A ``Path`` object is one file, with any characters.

    Args:
        patterns: Text, a path, or a list of them.
        missing: "error" or "skip" for a pattern without a file. No file in all patterns is always an error.

    Raises:
        ConfigError: A pattern matches no file, or a line of a file list is invalid; the text names it.
    """
    found: dict[str, str] = {}
    parts = list(_parts(patterns))
    for part in parts:
        files = [os.fspath(part)] if not isinstance(part, str) and _exists(os.fspath(part)) else _expand_part(part)
        if not files and missing == "error":
            raise ConfigError(f"no file matches {os.fspath(part)!r}; check the path")
        for file in files:
            found.setdefault(_identity(file), file)
    if not found:
        names = ", ".join(repr(os.fspath(part)) for part in parts[:5]) or "an empty pattern"
        raise ConfigError(f"no file matches {names}{' and more' if len(parts) > 5 else ''}; check the paths")
    return list(found.values())


def take_shard(files: Sequence[str], shard: tuple[int, int]) -> list[str]:
    """Return every ``count``-th file, from ``index`` on, of ``shard = (index, count)``.

    >>> take_shard(["a", "b", "c", "d", "e"], (1, 2))
    ['b', 'd']

    Raises:
        ConfigError: The shard is invalid, or it has no file.
    """
    index, count = shard
    if not 0 <= index < count:
        raise ConfigError(f"shard is ({index}, {count}), expected (index, count) with 0 <= index < count")
    if index >= len(files):
        raise ConfigError(f"shard {index} of {count} gets none of {len(files)} files; use fewer shards, or more files")
    return list(files[index::count])


def date_patterns(
    path: str,
    start: str | int | datetime.date,
    end: str | int | datetime.date,
    hourly: bool = False,
    wildcard: str = "*",
) -> list[str]:
    """Return one pattern per day, or hour, from ``start`` until before ``end``.

    Days are ``<path>/YYYYMMDD/<wildcard>``, hours ``<path>/YYYYMMDD/HH<wildcard>``. Times are dates, or digits
    ``YYYYMMDD`` or (hourly) ``YYYYMMDDHH``.

    >>> date_patterns("logs", "20220901", "20220903")
    ['logs/20220901/*', 'logs/20220902/*']
    >>> date_patterns("logs", 2022090123, 20220902, hourly=True, wildcard="/*.pb")
    ['logs/20220901/23/*.pb']

    Raises:
        ConfigError: A time is invalid, or ``start`` is not before ``end``.
    """
    first, last = _moment(start, hourly), _moment(end, hourly)
    if first >= last:
        raise ConfigError(f"start is {start} and end is {end}, expected start before end; end is excluded")
    base = path.rstrip("/")
    moments = _moments(first, last, _HOUR if hourly else _DAY)
    form = "%Y%m%d/%H" if hourly else "%Y%m%d/"
    return [f"{base}/{moment:{form}}{wildcard}" for moment in moments]


def expand_template(pattern: str) -> list[str]:
    """Return ``pattern`` with every ``{DATE(first,last)}`` and ``{INT(first,last)}`` filled in, the last one fastest.

    Both ends are included. Dates of 10 digits go by hours. Numbers keep the width of a first one with leading zeros.

    >>> expand_template("{DATE(20220228,20220301)}/part-{INT(08,10)}")[:4]
    ['20220228/part-08', '20220228/part-09', '20220228/part-10', '20220301/part-08']

    Raises:
        ConfigError: A date is invalid, the first is after the last, or there are more than 100,000 names.
    """
    fixed = _TEMPLATE.split(pattern)[::4]
    ranges = [_template_range(match) for match in _TEMPLATE.finditer(pattern)]
    total = 1
    for each in ranges:
        total *= len(each)
        if total > _MOST_NAMES:
            raise ConfigError(f"{pattern!r} stands for more than {_MOST_NAMES} names; narrow its ranges")
    return ["".join(_zip_longest(fixed, chosen)) for chosen in itertools.product(*ranges)]


def _zip_longest(fixed: Sequence[str], chosen: Sequence[str]) -> Iterator[str]:
    for text, value in itertools.zip_longest(fixed, chosen, fillvalue=""):
        yield text
        yield value


def _template_range(match: re.Match[str]) -> list[str]:
    kind, first, last = match.groups()
    if kind == "DATE":
        is_hourly = len(first) == 10
        if len(first) != len(last):
            raise ConfigError(f"{match[0]} mixes days and hours; give both dates 8 or both 10 digits")
        begin, end = _moment(first, is_hourly), _moment(last, is_hourly)
        step, form = (_HOUR, "%Y%m%d%H") if is_hourly else (_DAY, "%Y%m%d")
        names = [moment.strftime(form) for moment in _moments(begin, end + step, step)]
    else:
        if int(last) - int(first) >= _MOST_NAMES:
            raise ConfigError(f"{match[0]} stands for more than {_MOST_NAMES} names; narrow it")
        width = len(first) if first.startswith("0") else 0
        names = [f"{value:0{width}d}" for value in range(int(first), int(last) + 1)]
    if not names:
        raise ConfigError(f"{match[0]} is empty, expected the first value before the last")
    return names


def _moments(first: datetime.datetime, last: datetime.datetime, step: datetime.timedelta) -> list[datetime.datetime]:
    count = max(0, -((first - last) // step))
    if count > _MOST_NAMES:
        raise ConfigError(f"there are {count} steps from {first} to {last}, expected at most {_MOST_NAMES}")
    return [first + index * step for index in range(count)]


def _moment(value: str | int | datetime.date, is_hourly: bool) -> datetime.datetime:
    if isinstance(value, datetime.datetime):
        moment = value.replace(tzinfo=None)
        if moment != moment.replace(minute=0, second=0, microsecond=0, hour=moment.hour if is_hourly else 0):
            raise ConfigError(f"the time is {value}, expected a whole {'hour' if is_hourly else 'day'}")
        return moment
    if isinstance(value, datetime.date):
        return datetime.datetime(value.year, value.month, value.day)
    digits = str(value)
    form = {8: "%Y%m%d", 10: "%Y%m%d%H"}.get(len(digits))
    if form is None or not digits.isdecimal() or (len(digits) == 10 and not is_hourly):
        raise ConfigError(f"the {'time' if is_hourly else 'day'} is {value!r}, expected {_forms(is_hourly)}")
    try:
        return datetime.datetime.strptime(digits, form)
    except ValueError:
        raise ConfigError(f"the date is {value!r}, expected a day of the calendar as {_forms(is_hourly)}") from None


def _forms(is_hourly: bool) -> str:
    return "YYYYMMDD or YYYYMMDDHH" if is_hourly else "YYYYMMDD"


def _parts(
    patterns: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> Iterator[str | os.PathLike[str]]:
    if isinstance(patterns, str):
        # A comma inside braces belongs to a template.
        yield from filter(None, (part.strip() for part in re.split(r",(?![^{}]*\})", patterns)))
    elif isinstance(patterns, os.PathLike):
        yield patterns
    else:
        yield from patterns


def _expand_part(part: str | os.PathLike[str]) -> list[str]:
    if not isinstance(part, str):
        return []
    if part.startswith("@"):
        return _read_list(part[1:])
    return [file for name in expand_template(part) for file in _match(name)]


def _match(name: str) -> list[str]:
    if _exists(name):  # even if the name contains brackets
        return [name]
    if storage.has_wildcard(name):
        return storage.find_files(name)
    if not storage.is_url(name) and os.path.isdir(name):
        raise ConfigError(f"{name!r} is a folder; write {os.path.join(name, '*')!r} for the files in it")
    return []


def _read_list(path: str) -> list[str]:
    try:
        with storage.open_file(path) as file:
            lines = file.read().decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file list {path!r} cannot be read: {error}") from error
    files: list[str] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if text.startswith("@"):
            raise ConfigError(f"{path}, line {number}: {text!r} is another file list; name it on the command line")
        found = _expand_part(text)
        if not found:
            raise ConfigError(f"{path}, line {number}: no file matches {text!r}; check the path")
        files += found
    return files


def _exists(name: str) -> bool:
    return storage.is_file(name)


def _identity(file: str) -> str:
    return file if storage.is_url(file) else os.path.abspath(file)

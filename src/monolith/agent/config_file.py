"""Read the lines of an agent configuration file.

Main types: ``read_entries``, ``Entry``. A line is blank, a comment, ``include <path>``, or ``<key> <value>`` with
blanks or ``=`` between. A ``#`` ends the line everywhere. An included file is read in place; its path is relative to
the file that includes it.

Invariants: an error names the file and the line. Which keys exist and which values they take, ``agent.config`` decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from monolith.core.errors import ConfigError

__all__ = ["ConfigEntry", "parse_line", "read_entries"]

_INCLUDE = re.compile(r"include[ \t]+([^=\s].*)")
_ENTRY = re.compile(r"([^\s=]+)[\s=]+([^\s=].*)")
_MAX_FILE_BYTES = 1_000_000
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key with its value, and where it stands."""

    key: str
    value: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """``file:line``, for errors."""
        return f"{self.file}:{self.line}"


def parse_line(text: str, place: str = "line") -> tuple[str, str] | None:
    """Return key and value of a line; None for a blank line or a comment.

    >>> parse_line("num_ps = 4  # parameter servers"), parse_line("k 60 * 1000"), parse_line("# nothing")
    (('num_ps', '4'), ('k', '60 * 1000'), None)

    Raises:
        ConfigError: The line has no value, or a template text that was not filled.
    """
    line = text.partition("#")[0].strip()
    if not line:
        return None
    match = _ENTRY.fullmatch(line)
    if match is None:
        raise ConfigError(f"{place}: line is {line!r}, expected a key and a value; write <key> <value>")
    key, value = match[1], match[2].strip()
    if "{{" in value:
        raise ConfigError(f"{place}: {key} is {value!r}, expected a value without '{{{{'; fill in the template")
    return key, value


def read_entries(path: str | Path) -> list[ConfigEntry]:
    """Return the entries of a file and of the files that it includes, in the order of reading.

    Raises:
        ConfigError: A file is missing or not readable, a line is invalid, or files include each other in a loop.
    """
    return _read(Path(path), included_by="", chain=())


def _read(path: Path, *, included_by: str, chain: Sequence[Path]) -> list[ConfigEntry]:
    prefix = f"{included_by}: " if included_by else ""
    if "\0" in str(path):
        raise ConfigError(f"{prefix}include is {str(path)!r}, expected a path without NUL; correct it")
    resolved = Path(os.path.realpath(path))
    if resolved in chain:
        loop = " includes ".join(map(str, (*chain[chain.index(resolved) :], resolved)))
        raise ConfigError(f"{prefix}include is {str(path)!r}, which is being read: {loop}; remove the include")
    if len(chain) >= _MAX_DEPTH:
        raise ConfigError(f"{prefix}include is {str(path)!r}, the {_MAX_DEPTH}th level; include fewer levels")
    entries: list[ConfigEntry] = []
    for number, text in enumerate(_lines(path, prefix), 1):
        place = f"{path}:{number}"
        include = _INCLUDE.fullmatch(text.partition("#")[0].strip())
        if include is not None:
            included = path.parent / include[1].strip()
            entries += _read(included, included_by=place, chain=(*chain, resolved))
            continue
        pair = parse_line(text, place)
        if pair is not None:
            entries.append(ConfigEntry(key=pair[0], value=pair[1], file=str(path), line=number))
    return entries


def _lines(path: Path, prefix: str) -> list[str]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{prefix}configuration file {str(path)!r} cannot be read ({error.strerror}); give the path of a file"
        ) from error
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{prefix}configuration file {str(path)!r} is above {_MAX_FILE_BYTES} bytes; shorten it")
    try:
        return content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{prefix}configuration file {str(path)!r} is not UTF-8 ({error}); save it as UTF-8 text"
        ) from error

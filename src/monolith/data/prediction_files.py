"""``PredictionFiles``: writes predictions as lines of text, in folders by model and day, for later analysis.

One message is one prediction: a mapping with ``model_name``, ``req_time``, ids, ``predict`` and ``label``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError, DataError

__all__ = ["PredictionFiles", "line_of", "folder_of"]

Message: TypeAlias = Mapping[str, Any]

_NAMES = {
    "req_time": ("__REQ_TIME__", "req_time"),
    "gid": ("__FEED_ID__", "feedid", "gid"),
    "uid": ("__UID__", "userid", "uid"),
}
_PART = re.compile(r"part_(\d{6,})\.")


def _value(message: Message, field: str) -> Any:
    """Return the value of the first of a field's names that the message has; else the field's name."""
    return next((message[name] for name in _NAMES[field] if name in message), field)


def line_of(message: Message) -> str:
    """Return one message as a line: ``req_time;gid;uid;predict;label``, the last two as JSON.

    >>> line_of({"req_time": 20220927, "userid": 1854, "predict": {"ctr": 0.5}, "label": {"ctr": 1}})
    '20220927;gid;1854;{"ctr": 0.5};{"ctr": 1}'
    """
    fields = [str(_value(message, name)) for name in ("req_time", "gid", "uid")]
    return ";".join([*fields, *(json.dumps(message.get(name, {})) for name in ("predict", "label"))])


def folder_of(message: Message, worker: int, base: Path) -> Path:
    """Return the folder of a message: ``<base>/<model_name>/<req_time>/worker_<n>``.

    Raises:
        DataError: The message has no model name, or a name that would lead out of ``base``.
    """
    names = [str(message.get("model_name", "")), str(_value(message, "req_time"))]
    for name in names:
        if not name or name in (".", "..") or "/" in name:
            raise DataError(
                f"a prediction cannot be filed under model_name and req_time {names}; they must be plain names"
            )
    return base.joinpath(*names, f"worker_{worker}")


class PredictionFiles:
    """Writes messages into text files: ``part_000000.txt`` and so on in the folder of each. Used by one thread.

    In a folder with files, the writer continues with the next number and overwrites no file.

    Args:
        base: Where all folders are.
        worker: This worker's number.
        extension: Suffix of the file names.
        buffer_lines: Most lines in memory, per folder.
        lines_per_file: Lines after which a new file begins.
        idle_close_s: A file that got no line for so long is closed.
        folder: Which folder a message goes to.
        line: Returns the line of a message.
        clock: Where the time comes from.
    """

    def __init__(
        self,
        base: str | os.PathLike[str],
        *,
        worker: int = 0,
        extension: str = "txt",
        buffer_lines: int = 1024,
        lines_per_file: int = 1_000_000,
        idle_close_s: float = 86_400,
        folder: Callable[[Message, int, Path], Path] = folder_of,
        line: Callable[[Message], str] = line_of,
        clock: Clock | None = None,
    ) -> None:
        if buffer_lines < 1 or lines_per_file < 1:
            raise ConfigError(
                f"buffer_lines and lines_per_file must be at least 1, got {buffer_lines}, {lines_per_file}"
            )
        self._base = Path(base)
        self._worker = worker
        self._extension = extension
        self._buffer_lines = buffer_lines
        self._lines_per_file = lines_per_file
        self._idle_close_s = idle_close_s
        self._folder = folder
        self._line = line
        self._clock = clock or SystemClock()
        self._open: dict[Path, _Part] = {}

    def write(self, message: Message) -> None:
        """Add one message.

        Raises:
            DataError: It cannot be filed.
            OSError: It cannot be written.
        """
        text = self._line(message)
        if "\n" in text:
            raise DataError("a prediction spelled over several lines cannot be a line")
        now_s = self._clock.monotonic_s()
        folder = self._folder(message, self._worker, self._base)
        part = self._open.get(folder)
        if part is None:
            part = self._open[folder] = _Part(folder, self._extension)
        part.add(text, now_s, self._buffer_lines)
        if part.lines >= self._lines_per_file:
            self._open.pop(folder).close()
        for idle in [each for each, held in self._open.items() if now_s - held.used_s >= self._idle_close_s]:
            self._open.pop(idle).close()

    def flush(self) -> None:
        """Write out every line that waits."""
        for part in self._open.values():
            part.flush()

    def close(self) -> None:
        """Write out and close every file. May be called twice."""
        while self._open:
            self._open.popitem()[1].close()


class _Part:
    """One file that is being written."""

    def __init__(self, folder: Path, extension: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        numbers = [int(found[1]) for name in os.listdir(folder) if (found := _PART.match(name))]
        path = folder / f"part_{max(numbers, default=-1) + 1:06d}.{extension}"
        self._file: TextIO = path.open("x", encoding="utf-8")
        self._waiting: list[str] = []
        self.lines = 0
        self.used_s = 0.0

    def add(self, line: str, now_s: float, buffer_lines: int) -> None:
        self._waiting.append(line)
        self.lines += 1
        self.used_s = now_s
        if len(self._waiting) >= buffer_lines:
            self.flush()

    def flush(self) -> None:
        self._file.write("".join(f"{line}\n" for line in self._waiting))
        self._file.flush()
        self._waiting.clear()

    def close(self) -> None:
        self.flush()
        self._file.close()

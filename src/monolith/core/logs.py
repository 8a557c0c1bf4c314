"""``setup_logging``: sets up one handler for the process, with one line per event and ``key=value`` at its end.

The command line calls it once. Library code only uses ``logging.getLogger(__name__)``; it adds no handler and logs
nothing at import.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from monolith.core.errors import ConfigError

__all__ = ["LEVELS", "LineFormatter", "setup_logging"]

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
"""The log levels, most verbose first."""


class LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.250Z INFO monolith.ps.server shard joined index=3 role=ps``.

    Times are UTC. The tail contains properties of the process, such as its role.
    """

    def __init__(self, context: Mapping[str, object] | None = None) -> None:
        """Append ``context`` to each line as ``key=value``."""
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self._tail = "".join(f" {key}={_plain(value)}" for key, value in (context or {}).items())

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without its traceback."""
        return super().formatMessage(record) + self._tail


def setup_logging(
    level: str = "INFO", *, context: Mapping[str, object] | None = None, stream: TextIO | None = None
) -> None:
    """Send Monolith's log to ``stream``, and only warnings of other libraries.

    A second call replaces the first. Handlers that the program itself added stay.

    Args:
        level: One of ``LEVELS``, for the loggers under ``monolith``.
        context: Properties of this process, for the end of each line.
        stream: Where to; standard error when not given, so that standard output stays for results.

    Raises:
        ConfigError: ``level`` is not known.
    """
    if level.upper() not in LEVELS:
        raise ConfigError(f"log level must be one of {', '.join(LEVELS)}, got {level!r}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(context))
    handler.set_name(__name__)
    root = logging.getLogger()
    for old in [each for each in root.handlers if each.get_name() == __name__]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("monolith").setLevel(level.upper())


def _plain(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(char.isspace() for char in text) else text

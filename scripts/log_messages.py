"""Prints the index of log messages: level, message and module of every ``logger`` call below ``src``.

``make docs`` puts the table into ``docs/reference/logs.md``. Debug messages are left out.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEVELS = ("error", "warning", "info")


@dataclass(frozen=True, order=True, kw_only=True)
class LogMessage:
    """A message as it is written in the source; ``%s`` and the like stand for values."""

    level: int
    """Index in ``LEVELS``: the most severe first."""
    text: str
    module: str


def read_messages(source: str, module: str) -> Iterator[LogMessage]:
    """Yield the messages of one module.

    Args:
        source: The text of the module.
        module: Its dotted name.
    """
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        owner, level, message = node.func.value, node.func.attr, node.args[0]
        level = "error" if level == "exception" else level
        is_logger = isinstance(owner, ast.Name) and owner.id in ("logger", "log")
        if is_logger and level in LEVELS and isinstance(message, ast.Constant) and isinstance(message.value, str):
            yield LogMessage(level=LEVELS.index(level), text=message.value, module=module)


def collect(root: Path) -> list[LogMessage]:
    """Return the messages of all modules below ``root``, most severe first."""
    found: set[LogMessage] = set()
    for path in sorted(root.rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        found.update(read_messages(path.read_text(), module))
    return sorted(found)


def table(messages: list[LogMessage]) -> str:
    """Return the messages as a Markdown table."""
    lines = ["| level | message | module |", "|---|---|---|"]
    for message in messages:
        text = message.text.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {LEVELS[message.level]} | `{text}` | `{message.module}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(collect(ROOT / "src")))

"""Reports of a loaded configuration: every field with its value, its source and the values that it overrode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monolith.core.config import FieldReport, Setting

__all__ = ["print_config", "report_json"]


def report_json(report: Sequence[FieldReport]) -> dict[str, dict[str, Any]]:
    """Return a report as JSON: field to value, section, source, place and overridden values."""
    return {
        line.field: {
            "value": _plain(line.value),
            "section": line.section,
            "from": line.layer,
            "place": line.place,
            "default": _plain(line.default),
            "overrode": [
                {"value": _plain(lost.value), "from": lost.layer, "place": lost.place} for lost in line.overrode
            ],
        }
        for line in report
    }


def print_config(report: Sequence[FieldReport], console: Console | None = None) -> None:
    """Print a report as a table, with defaults dimmed.

    Args:
        report: ``Loaded.report``.
        console: The output; None = standard output.
    """
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("field", "value", "from", "overrode"):
        table.add_column(heading, overflow="fold")
    section = None
    for line in sorted(report, key=lambda line: line.section):  # stable: the order within a section stays
        if line.section != section:
            section = line.section
            table.add_row(Text(section, style="bold"))
        table.add_row(
            Text(f"  {line.field}"),
            Text(_shown(line.value)),
            Text(line.place),
            Text(", ".join(_lost(setting) for setting in line.overrode)),
            style="dim" if line.layer == "default" else None,
        )
    (console or Console()).print(table)


def _lost(setting: Setting) -> str:
    return f"{_shown(setting.value)} from {setting.place}"


def _shown(value: object) -> str:
    return value if isinstance(value, str) and value else repr(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)

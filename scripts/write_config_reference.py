"""Writes docs/reference/configuration.md from the dataclasses; ``--check`` only says whether it is current.

A field's meaning is the docstring below it, so the page and ``--help`` cannot disagree.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from monolith.core.config_fields import ConfigField, config_fields
from monolith.training.cluster.job_config import ClusterJobConfig

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "configuration.md"

_HEAD = """\
# Configuration

Every field, its default and its meaning. Written by `scripts/write_config_reference.py`; change the docstrings, not
this page. How values are given, and which of them wins, is in the [guide](../guide/configuration.md).

A field `save_checkpoints_steps` is the flag `--save-checkpoints-steps`, the variable
`MONOLITH_SAVE_CHECKPOINTS_STEPS`, and in a file `save_checkpoints_steps:` at the top or below `checkpoint:`. The
sections up to `push` are those of `RunConfig`; `monolith train`, `evaluate` and `predict` take `task` and `data`
too, and `train` also `cluster` and `serving`.

`num_extra_ps` and `num_redundant_ps` may only be 0; [why](../guide/distributed.md). A setting of the original that has
no effect here is refused, and the error states the remedy.
"""
_SECTIONS = (
    "run",
    "checkpoint",
    "pipeline",
    "gradient",
    "metrics",
    "runtime",
    "publish",
    "push",
    "task",
    "data",
    "cluster",
    "serving",
)


def page() -> str:
    """Return the page as it should be."""
    fields = config_fields(ClusterJobConfig)
    ordered = sorted(fields.values(), key=lambda field: _SECTIONS.index(field.section))
    sections = groupby(ordered, key=lambda field: field.section)
    return "\n".join([_HEAD, *(line for name, found in sections for line in _section(name, found))])


def _section(name: str, fields: Iterator[ConfigField]) -> Iterator[str]:
    yield f"## {name}\n"
    yield "| field | default | takes | meaning |"
    yield "|---|---|---|---|"
    for field in fields:
        meaning = field.help.replace("|", "\\|")
        yield f"| `{field.name}` | {_default(field)} | {field.wanted} | {meaning} |"
    yield ""


def _default(field: ConfigField) -> str:
    if field.default in (None, "", (), {}):
        return "none"
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    return f"`{field.default}`"


def main(arguments: list[str]) -> int:
    """Write the page, or check it, and return the exit status."""
    wanted = page()
    if arguments == ["--check"]:
        if PAGE.is_file() and PAGE.read_text() == wanted:
            return 0
        sys.stderr.write(f"{PAGE} is not current; run python scripts/write_config_reference.py\n")
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

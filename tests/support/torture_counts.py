"""``add_counts``: tests report their work to ``make torture``, as lines of JSON in the file of TORTURE_COUNTS."""

from __future__ import annotations

import json
import os
from pathlib import Path

__all__ = ["VARIABLE", "add_counts", "read_counts"]

VARIABLE = "TORTURE_COUNTS"


def add_counts(*, cycles: int = 0, operations: int = 0, executions: int = 0, faults: int = 0) -> None:
    """Add to the counts of the torture under way; do nothing without one."""
    if path := os.environ.get(VARIABLE):
        line = {"cycles": cycles, "operations": operations, "executions": executions, "faults": faults}
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")


def read_counts(path: Path) -> dict[str, int]:
    """Return the sums of the counts in a file."""
    total = dict.fromkeys(("cycles", "operations", "executions", "faults"), 0)
    for line in path.read_text().splitlines() if path.exists() else ():
        for name, number in json.loads(line).items():
            total[name] += number
    return total

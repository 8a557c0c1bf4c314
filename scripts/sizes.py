"""Prints the ten largest modules and the ten largest functions; watch it like coverage.

Lines are counted as they stand, comments and blank lines included. Functions are those of Python; C++ counts by file.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("src/**/*.py", "cpp/**/*.cc", "cpp/**/*.h", "benchmarks/**/*.py", "scripts/*.py")
TOP = 10


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (lines, place) for each function of a Python file, nested ones included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield lines, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def show(title: str, rows: list[tuple[int, str]]) -> None:
    """Print the largest of ``rows``."""
    sys.stdout.write(f"{title}\n")
    for lines, place in sorted(rows, key=lambda row: (-row[0], row[1]))[:TOP]:
        sys.stdout.write(f"{lines:6d}  {place}\n")


def main() -> None:
    """Measure the tree."""
    files = sorted({path for pattern in SOURCES for path in ROOT.glob(pattern)})
    show("modules", [(len(path.read_text().splitlines()), str(path.relative_to(ROOT))) for path in files])
    show("functions", [row for path in files if path.suffix == ".py" for row in functions(path)])


if __name__ == "__main__":
    main()

"""Turns the JSON lines of ``monolith bench`` into the Markdown tables of docs/guide/benchmarks.md.

Example: python benchmarks/report.py engine.jsonl --into docs/guide/benchmarks.md
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="files of JSON lines")
    parser.add_argument("--into", type=Path, help="replace the tables of this page instead of printing them")
    arguments = parser.parse_args()
    lines = [json.loads(text) for path in arguments.results for text in path.read_text().splitlines() if text.strip()]
    tables = make_tables(lines)
    if arguments.into is None:
        print("\n\n".join(tables.values()))
        return 0
    page = arguments.into.read_text()
    for name, table in tables.items():
        page = replace_table(page, find_place(page, name, lines[0]["env"].get("machine")), table)
    arguments.into.write_text(page)
    return 0


def make_tables(lines: Sequence[Line]) -> dict[str, str]:
    """Return the tables that the lines give, by the name of their place in the page.

    >>> list(make_tables([{"bench": "engine", "case": "matrix_dim8_sgd", "env": {}}]))
    ['engine-matrix']
    """
    tables = {}
    for bench in dict.fromkeys(line["bench"] for line in lines):
        own = [line for line in lines if line["bench"] == bench]
        cases = [line for line in own if not line["case"].startswith("matrix_")]
        shapes = [line for line in own if line["case"].startswith("matrix_")]
        if cases:
            tables[bench] = f"{environment_text(cases[0])}\n\n{case_table(cases)}"
        if shapes:
            tables[f"{bench}-matrix"] = f"{environment_text(shapes[0])}\n\n{matrix_table(shapes)}"
    return tables


def case_table(lines: Sequence[Line]) -> str:
    """Return one row per case."""
    rows = []
    for line in lines:
        if "skipped" in line:
            rows.append([f"`{line['case']}`", "", "", "", "", "", f"skipped: {line['skipped']}"])
            continue
        spread = f" ({show(line.get('ratio_low'))} to {show(line.get('ratio_high'))})" if "ratio_low" in line else ""
        bars = [show(line["must"]), show(line["aim"]), verdict(line)]
        measured = [f"{show(line['ours'])} {line['unit']}", show(line["peer"]), show(line["ratio"]) + spread]
        rows.append([f"`{line['case']}`", *measured, *bars])
    return markdown(["case", "ours", "peer", "ours / peer (lowest to highest round)", "must", "aim", ""], rows)


def matrix_table(lines: Sequence[Line]) -> str:
    """Return one row per shape of table."""
    columns = ["dim", "slices", "optimizer", "lookup_zipf", "lookup_uniform", "step_zipf", "step_uniform"]
    rows = []
    for line in lines:
        memory = [show(line.get("payload_bytes")), show(line.get("bytes_per_row"))]
        rows.append([*(show(line.get(column)) for column in columns), *memory])
    names = ["dim", "slices", "optimizer", "lookup Zipf", "lookup uniform", "step Zipf", "step uniform"]
    return markdown([*names, "payload bytes/row", "all bytes/row"], rows)


def environment_text(line: Line) -> str:
    """Say in one line where the figures are from."""
    env = line["env"]
    parts = [f"{env.get('cpu')} ({env.get('machine')}), {env.get('threads')} threads"]
    packages = ("torch", "fbgemm", "protobuf", "pyarrow", "zstandard", "redis", "hiredis")
    parts += [f"{name} {env[name]}" for name in packages if env.get(name)]
    parts += [f"commit {env.get('commit')}", f"load {env.get('load')} at the time"]
    if env.get("quick"):
        parts.append("**quick run, smaller sizes**")
    return "Measured on " + "; ".join(parts) + "."


def verdict(line: Line) -> str:
    """Say whether a case reaches its bars."""
    if line["must"] is None:
        return ""
    ratio, aim = line["ratio"], line["aim"]
    if ratio <= aim if line["better"] == "lower" else ratio >= aim:
        return "aim reached"
    return "ok" if line["ok"] else "**missed**"


def show(value: Any) -> str:
    """Return a cell: numbers with the three digits that matter."""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def find_place(page: str, name: str, machine: str | None) -> str:
    """Return the place of a table: that of the machine's processor family where the page has one.

    >>> find_place("<!-- results engine x86_64 -->", "engine", "x86_64")
    'engine x86_64'
    """
    own = f"{name} {machine}"
    return own if f"<!-- results {own} -->" in page else name


def replace_table(page: str, name: str, table: str) -> str:
    """Put a table between the marks ``<!-- results NAME -->`` and ``<!-- end -->`` of a page."""
    pattern = re.compile(rf"(<!-- results {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    page, count = pattern.subn(lambda found: f"{found[1]}{table}\n{found[2]}", page)
    if count != 1:
        raise SystemExit(f"the page has {count} places `<!-- results {name} -->` ... `<!-- end -->`; it needs one")
    return page


if __name__ == "__main__":
    sys.exit(main())

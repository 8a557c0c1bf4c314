"""The tables of the benchmark page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPORT = Path(__file__).parents[3] / "benchmarks" / "report.py"
PAGE = "<!-- results data -->\nold\n<!-- end -->\n\n<!-- results data x86_64 -->\nold\n<!-- end -->\n"


@pytest.mark.parametrize(("machine", "place"), [("x86_64", "data x86_64"), ("aarch64", "data")])
def test_a_table_replaces_that_of_its_processor_family(tmp_path: Path, machine: str, place: str) -> None:
    line = {
        "bench": "data",
        "case": "shuffle",
        "ours": 2.0,
        "peer": 4.0,
        "ratio": 0.5,
        "unit": "k rows/s",
        "better": "higher",
        "must": 0.6,
        "aim": 0.9,
        "ok": False,
        "env": {"machine": machine},
    }
    (tmp_path / "results.jsonl").write_text(json.dumps(line))
    (tmp_path / "page.md").write_text(PAGE)
    command = [sys.executable, str(REPORT), "results.jsonl", "--into", "page.md"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    page = (tmp_path / "page.md").read_text()
    assert page.count("old") == 1
    after = page.partition(f"<!-- results {place} -->")[2].partition("<!-- end -->")[0]
    assert "| `shuffle` | 2 k rows/s | 4 | 0.5 | 0.6 | 0.9 | **missed** |" in after

"""What the documentation claims about the code is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from monolith.core import errors

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
LAST = {"E": 6, "D": 8, "M": 7, "T": 8, "P": 8, "S": 4, "A": 11, "R": 3}
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+?) \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str, str, str]]:
    return ROW.findall((REFERENCE / "parity.md").read_text())


def test_every_row_of_the_mission_is_in_the_parity_table_once() -> None:
    expected = {f"{group}{number}" for group, last in LAST.items() for number in range(1, last + 1)}
    assert sorted(row[0] for row in rows()) == sorted(expected)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_names_modules_and_tests_that_exist(row: tuple[str, str, str, str, str]) -> None:
    _, _, module, test, _ = row
    for path in re.findall(r"`((?:tests|cpp)/[^`]+)`", test):
        assert (ROOT / path.partition("::")[0]).exists(), path
    for name in re.findall(r"`(monolith[\w.]*)`", module):
        path = ROOT / "src" / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), name


def test_every_error_is_in_the_reference() -> None:
    text = (REFERENCE / "errors.md").read_text()
    assert [name for name in errors.__all__ if f"{name}`" not in text] == []


def test_links_lead_somewhere() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check_docs.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

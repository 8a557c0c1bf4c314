"""The table of the problems of new users names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_ROWS = re.findall(
    r"^\| (\d+) \| .+? \| (.+) \|$", (_ROOT / "docs/reference/first_hour.md").read_text(), flags=re.MULTILINE
)


def test_the_table_has_each_of_the_25_problems_once() -> None:
    assert [int(number) for number, _ in _ROWS] == list(range(1, 26))


@pytest.mark.parametrize(("number", "answer"), _ROWS, ids=[number for number, _ in _ROWS])
def test_a_problem_has_a_test_that_exists_or_a_decision(number: str, answer: str) -> None:
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", answer)
    assert tests or "Decision: " in answer, number
    for path, name in tests:
        assert f"def {name}(" in (_ROOT / path).read_text(), f"{path}::{name}"

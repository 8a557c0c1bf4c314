from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).resolve().parents[3] / "benchmarks")


@pytest.fixture(autouse=True, scope="session")
def benchmarks_on_path() -> Iterator[None]:
    """The programs find their packages beside them; so do these tests."""
    sys.path.insert(0, BENCHMARKS)
    yield
    sys.path.remove(BENCHMARKS)

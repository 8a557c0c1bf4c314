from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs find their packages beside them; so do these tests."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

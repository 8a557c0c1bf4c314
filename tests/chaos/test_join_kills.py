"""A thousand processes of a join die, and every row is in the output once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

LONGEST_S = 3600
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.timeout(LONGEST_S + 60)
def test_a_thousand_kills_lose_and_double_no_row() -> None:
    seed = os.environ.get("JOIN_SEED", str(time.time_ns() % 1_000_000))
    print(f"JOIN_SEED={seed}")
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "join_process.py"), "1000", seed, "1500"],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        check=False,
        timeout=LONGEST_S,
    )
    assert done.returncode == 0, "the process that joins and counts names the row that is lost or doubled"

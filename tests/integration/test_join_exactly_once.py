"""Processes of a join die at any moment, and every row is in the output once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"


def test_killed_processes_lose_and_double_no_row() -> None:
    """``JOIN_KILLS`` and ``JOIN_SEED`` choose a longer or an earlier run."""
    kills = os.environ.get("JOIN_KILLS", "25")
    seed = os.environ.get("JOIN_SEED", str(time.time_ns() % 1_000_000))
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "join_process.py"), kills, seed, "1200"],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=120 + 6 * int(kills),
    )
    print(done.stdout)
    assert done.returncode == 0, f"JOIN_SEED={seed}\n{done.stdout}\n{done.stderr[-4000:]}"
    assert f"kills={kills}" in done.stdout

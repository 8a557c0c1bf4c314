"""Minutes in which a producer, a joiner and a consumer of numbered events die at random: every event has one row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
SUPPORT = Path(__file__).parents[1] / "support"


def test_killed_producers_joiners_and_consumers_lose_and_double_no_event(seed: int) -> None:
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "event_loop.py"), str(SECONDS), str(seed)],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=SECONDS + 600,
    )
    print(done.stdout)
    assert done.returncode == 0, f"TEST_SEED={seed}\n{done.stdout}\n{done.stderr[-4000:]}"

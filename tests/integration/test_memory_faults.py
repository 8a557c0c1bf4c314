"""Allocations of the native engine fail: a clear MemoryError, nothing is half done, and a repetition succeeds."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from fault_layer import build_fault_layer, why_no_fault_layer

CHILD = Path(__file__).parents[1] / "support" / "memory_fault_child.py"
LEAST_BYTES = 4096
"""Smaller allocations come from memory that the process has; some conversions of arguments cannot report them."""

pytestmark = pytest.mark.skipif(bool(why_no_fault_layer()), reason=why_no_fault_layer())


@pytest.mark.parametrize("operation", ["push", "save", "restore", "log", "images", "append"])
def test_a_failed_allocation_leaves_nothing_half_done(operation: str, tmp_path: Path, seed: int) -> None:
    numbers = sorted({0, 1, 2, *random.Random(seed).sample(range(3, 40), 3)})
    done = subprocess.run(
        [sys.executable, str(CHILD), str(tmp_path), operation, str(LEAST_BYTES), *map(str, numbers)],
        env={**os.environ, "LD_PRELOAD": str(build_fault_layer()), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    faults, problems = json.loads(done.stdout.splitlines()[-1])
    assert problems == [], f"seed {seed}, allocations {numbers}\n{done.stderr[-4000:]}"
    assert faults > 0

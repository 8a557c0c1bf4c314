from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_at_least_a_hundred_mutants_fit_the_code_and_name_existing_tests() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "mutants.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "mutants, " in result.stdout

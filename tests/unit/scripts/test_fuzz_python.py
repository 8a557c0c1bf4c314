from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_damaged_payloads_and_messages_are_refused_or_read() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "fuzz_python.py"), "--count", "1500", "--seed", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert "agent_payload    1500 executions" in result.stdout
    assert "stream_message   1500 executions" in result.stdout

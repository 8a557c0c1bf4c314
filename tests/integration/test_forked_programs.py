"""Programs that tests start are forked from an interpreter that has imported everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from preloaded_popen import why_not_preloaded

pytestmark = pytest.mark.skipif(bool(why_not_preloaded()), reason=why_not_preloaded() or "-")


@pytest.mark.parametrize(
    ("variable", "is_forked"), [("TORCHINDUCTOR_CACHE_DIR", True), ("TORCH_LOGS", False), ("OTHER", True)]
)
def test_a_program_is_forked_unless_its_environment_changes_its_start(
    variable: str, is_forked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(variable, str(tmp_path))  # torch names its cache folder at the first export of a process
    command = [sys.executable, "-m", "monolith", "ps", "--port", "0"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        started = Path(f"/proc/{process.pid}/cmdline").read_text()
        process.kill()
    assert ("preloaded_server.py" in started) is is_forked

"""README: every block from the model to the served answer can be pasted in order."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from monolith.core.free_ports import free_port

_README = Path(__file__).parents[2] / "README.md"
_PRELUDE = "import numpy as np\nimport monolith as mt\n"


def _blocks(after: str) -> list[tuple[str, str]]:
    """Return language and text of the blocks after a heading."""
    text = _README.read_text().split(f"\n## {after}\n", 1)[1]
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_blocks_of_the_readme_train_export_and_serve_when_pasted_in_order(tmp_path: Path) -> None:
    blocks = _blocks("Train a model")
    python = _PRELUDE + "".join(text for language, text in blocks if language == "python")
    shell = "".join(text for language, text in blocks if language == "" and "monolith " in text)
    port = str(free_port())
    shell = shell.replace("8501", port).replace(f"--rest-port {port} &", f"--port -1 --rest-port {port} &")
    script = f"set -e\ntrap 'kill $(jobs -p)' EXIT\n{shell}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    for command in ([sys.executable, "-c", python], ["bash", "-c", script]):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    answer = re.search(r'\{\s*"predictions".*\}', done.stdout, re.DOTALL)
    assert answer is not None, done.stdout
    assert len(json.loads(answer[0])["predictions"]) == 1
    assert "auc" in done.stdout

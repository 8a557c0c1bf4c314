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

from readme import python_of_readme, shell_of_readme


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_blocks_of_the_readme_train_export_and_serve_when_pasted_in_order(tmp_path: Path) -> None:
    python, shell = python_of_readme("Train a model"), shell_of_readme("Train a model")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    for command in ([sys.executable, "-c", python], ["bash", "-c", shell]):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    answer = re.search(r'\{\s*"predictions".*\}', done.stdout, re.DOTALL)
    assert answer is not None, done.stdout
    assert len(json.loads(answer[0])["predictions"]) == 1
    assert "auc" in done.stdout

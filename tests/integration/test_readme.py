"""README: every block from the first table to the served answer can be pasted in order."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from monolith.core.free_ports import free_port

_README = Path(__file__).parents[2] / "README.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TIMEOUT_S = 300.0


def _is_command(block: str) -> bool:
    return block.startswith("monolith train") or block.startswith("monolith export")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_blocks_of_the_readme_train_export_and_serve_when_pasted_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = _README.read_text()
    names: dict[str, object] = {"__name__": "readme"}
    lines: list[str] = []
    for block in _BLOCK.finditer(text):
        language, code = block.groups()
        if language == "python":
            exec(compile("\n" * text.count("\n", 0, block.start(2)) + code, str(_README), "exec"), names)
        elif not language and _is_command(code):
            lines += code.splitlines()
    assert len(names) > 10, "the blocks of Python have run"
    printed = _paste(lines, tmp_path)
    answer = re.search(r'\{\s*"predictions".*\}', printed, re.DOTALL)
    assert answer is not None, printed
    assert len(json.loads(answer[0])["predictions"]) == 1
    assert "auc" in printed


def _paste(lines: list[str], folder: Path) -> str:
    """Run commands one after another, those with ``&`` beside the later ones; return the output."""
    port = str(free_port())
    printed, servers = "", []
    try:
        for line in lines:
            words = shlex.split(line.replace("8501", port).removesuffix("&"))
            if words[0] == "monolith":
                words[:1] = [sys.executable, "-m", "monolith"]
            if line.endswith("&"):
                servers.append(subprocess.Popen([*words, "--port", "-1"], cwd=folder))
                continue
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S)
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
            printed += done.stdout
    finally:
        for server in servers:
            server.terminate()
            server.wait(_TIMEOUT_S)
    return printed

"""Blocks of the README, as scripts that run in order."""

from __future__ import annotations

import re
from pathlib import Path

from monolith.core.free_ports import free_port

__all__ = ["python_of_readme", "shell_of_readme"]

_README = Path(__file__).parents[2] / "README.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def python_of_readme(after: str) -> str:
    """Return the Python blocks after a heading, as one script."""
    blocks = "".join(text for language, text in _blocks(after) if language == "python")
    return f"import numpy as np\nimport monolith as mt\n{blocks}"


def shell_of_readme(after: str) -> str:
    """Return the commands after a heading, as one script. Its server uses a free port, and stops with the script."""
    shell = "".join(text for language, text in _blocks(after) if language == "" and "monolith " in text)
    port = str(free_port())
    shell = shell.replace("8501", port).replace(f"--rest-port {port} &", f"--port -1 --rest-port {port} &")
    return f"set -e\ntrap 'kill $(jobs -p)' EXIT\n{shell}"


def _blocks(after: str) -> list[tuple[str, str]]:
    return _BLOCK.findall(_README.read_text().split(f"\n## {after}\n", 1)[1])

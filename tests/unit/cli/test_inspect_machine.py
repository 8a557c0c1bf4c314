from __future__ import annotations

import json
import os
import subprocess
import sys

from typer.testing import CliRunner

from monolith.cli import main as program
from monolith.embedding.kernels import kernel_levels


def run(*arguments: str) -> str:
    result = CliRunner().invoke(program.app, ["inspect", "machine", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def inspect_with(level: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "monolith", "inspect", "machine", "--json"]
    environment = {**os.environ, "MONOLITH_KERNELS": level}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_plain_form_shows_the_kernels_and_the_processor() -> None:
    out = run()
    assert f"{len(os.sched_getaffinity(0))} cores" in out
    assert f"(this processor runs {', '.join(kernel_levels())})" in out


def test_the_json_form_names_a_level_that_the_processor_runs() -> None:
    report = json.loads(run("--json"))
    assert report["kernels"] in report["kernel_levels"]
    assert report["kernel_levels"][0] == "baseline"
    assert report["memory_bytes"] > 1 << 28


def test_the_environment_forces_a_level() -> None:
    done = inspect_with("baseline")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kernels"] == "baseline"


def test_a_level_that_the_processor_lacks_is_refused() -> None:
    done = inspect_with("sse9")
    assert done.returncode != 0
    assert "MONOLITH_KERNELS is 'sse9', expected a level of this processor (baseline" in done.stderr

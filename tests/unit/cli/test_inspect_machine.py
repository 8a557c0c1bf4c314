from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monolith.cli import inspect_machine
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor\t: 0\nmodel name\t: Xeon @ 2.50GHz\nmodel\t: 85\n\nprocessor\t: 1\n", "Xeon @ 2.50GHz"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "implementer 0x41, part 0xd0c"),
        ("processor\t: 0\n", None),
    ],
)
def test_the_processor_has_its_name_or_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str | None
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(inspect_machine, "_PROCESSOR", tmp_path / "cpuinfo")
    assert json.loads(run("--json"))["processor"] == expected


def test_the_environment_forces_a_level() -> None:
    done = inspect_with("baseline")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kernels"] == "baseline"


def test_a_level_that_the_processor_lacks_is_refused() -> None:
    done = inspect_with("sse9")
    assert done.returncode != 0
    assert "MONOLITH_KERNELS is 'sse9', expected a level of this processor (baseline" in done.stderr

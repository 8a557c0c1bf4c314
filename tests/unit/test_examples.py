"""The examples run, are short, and do what they say; so does the code in the README and in pages."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monolith.cli import main as program

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
PAGES = [
    "README.md",
    "docs/guide/tables.md",
    "docs/guide/data.md",
    "docs/guide/training.md",
    "docs/guide/models.md",
    "docs/guide/metrics.md",
    "docs/guide/checkpoints.md",
    "docs/guide/configuration.md",
    "docs/reference/hooks.md",
    "docs/reference/optimizers.md",
    "docs/reference/transforms.md",
]


def run(program: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one line of a page, ``VARIABLE=value monolith ...``, in this process: torch is slow to import."""
    words = shlex.split(command, comments=True)
    if not words:
        return
    begin = words.index("monolith")
    with monkeypatch.context() as context:
        for variable in words[:begin]:
            context.setenv(*variable.split("=", 1))
        done = CliRunner().invoke(program.app, words[begin + 1 :])
    assert done.exit_code == 0, f"{command}: {done.exception or done.output}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_is_short_and_ends_with_what_to_try_next(example: Path, tmp_path: Path) -> None:
    assert len(example.read_text().splitlines()) < 80
    assert "Next: " in run(example, tmp_path).splitlines()[-1]


def test_the_first_example_learns_and_shows_the_life_of_a_row(tmp_path: Path) -> None:
    out = run(ROOT / "examples" / "01_local_table.py", tmp_path)
    losses = [float(loss) for loss in re.findall(r"-> (\d\.\d+)", out)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 < 0.693
    for phrase in ("is present", "below threshold", "expired after 30 days", "the same rows"):
        assert phrase in out


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_in_order_and_shows_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "setup_logging", lambda level: None)
    text = (ROOT / page).read_text()
    blocks = list(re.finditer(r"^```(python|pycon|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert blocks
    names: dict[str, object] = {"__name__": "page"}
    runner = doctest.DocTestRunner()
    for block in blocks:
        kind, code = block.groups()
        line = text.count("\n", 0, block.start(2))
        if kind == "python":
            exec(compile("\n" * line + code, str(ROOT / page), "exec"), names)
        elif kind == "sh":
            for command in code.replace("\\\n", " ").splitlines():
                run_command(command, monkeypatch)
        else:
            examples = doctest.DocTestParser().get_doctest(code, names, page, page, line)
            failed, _ = runner.run(examples, clear_globs=False)
            names = examples.globs  # a copy, with what the block has defined
            assert failed == 0, f"{page}, from line {line + 1}: the report is in the captured output"

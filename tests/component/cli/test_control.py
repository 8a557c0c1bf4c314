from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fake_run import FakeRun
from monolith.cli import main as program
from monolith.core.errors import ClusterError, NoSuchService
from monolith.training.control import read_address
from monolith.training.hooks import ControllerHook


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    """A run under way, with a controller."""
    run = FakeRun(tmp_path, [ControllerHook(grace_s=0.0)])
    thread = threading.Thread(target=run.train, args=(10**9,))
    thread.start()
    run.wait(lambda: run.step > 0)
    yield run
    run.stop("the test is over")
    run.resume()
    thread.join()


def control(*arguments: object) -> str:
    result = CliRunner().invoke(program.app, ["control", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_training_is_paused_saved_and_resumed(run: FakeRun) -> None:
    assert control("status", run.model_dir).startswith("training runs; step ")
    assert "pauses after" in control("stop", run.model_dir)
    run.wait(lambda: run.is_paused)
    assert control("blocked", run.model_dir) == "blocked: worker 0; not blocked: no worker\n"
    assert control("save", run.model_dir) == f"checkpoint saved; step {run.step:,}\n"
    assert run.saved == [(run.step, "controller")]
    assert "resumed" in control("resume", run.model_dir)
    run.wait(lambda: not run.is_paused)


def test_json_is_one_object(run: FakeRun) -> None:
    address = read_address(run.model_dir)
    assert json.loads(control("blocked", address, "--json")) == {
        "action": "blocked",
        "address": address,
        "blocked": [],
        "unblocked": [0],
    }
    assert json.loads(control("status", run.model_dir, "--json"))["step"] > 0


def test_an_impossible_action_is_one_error(run: FakeRun, tmp_path: Path) -> None:
    control("stop", run.model_dir)
    with pytest.raises(ClusterError, match="is paused"):
        control("stop", run.model_dir)
    with pytest.raises(NoSuchService, match="no training with a controller"):
        control("status", tmp_path / "elsewhere")


def test_the_help_has_an_example() -> None:
    assert "monolith control status" in control("--help")

"""A training process is steered, asked to end, and meets a full disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import training_child as child
from commands import Command, Shell, wait_until
from monolith.artifacts import CheckpointFolder
from monolith.artifacts.checkpoint_manifest import verify_files


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return child.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def train(tmp_path: Path, pattern: str) -> Callable[..., Command]:
    """Starts ``monolith train`` of the two-headed model on endless data."""
    shell = Shell(tmp_path)
    task = f"{child.__file__}:Ranker"
    fixed = ["train", "--task", task, "--data", pattern, "--epochs", 0, "--batch-size", 40, "--model-dir", "run"]

    def start(*arguments: object, largest_file: int | None = None) -> Command:
        return shell.start(*fixed, *arguments, largest_file=largest_file)

    return start


def saved(tmp_path: Path) -> list[int]:
    found = CheckpointFolder(tmp_path / "run" / "checkpoints").saved()
    for one in found:
        verify_files(one.path, one.manifest)
    return [one.step for one in found]


def test_a_training_is_stopped_saved_and_resumed_by_commands(tmp_path: Path, train: Callable[..., Command]) -> None:
    shell = Shell(tmp_path)
    training = train("--controller-port", 0)
    address = tmp_path / "run" / "controller_server_addr.txt"
    wait_until(address.is_file, training)
    assert shell.json("control", "status", "run")["action"] == "status"
    shell.run("control", "stop", "run")
    wait_until(lambda: shell.json("control", "blocked", "run")["blocked"] == [0], training)
    still = shell.json("control", "status", "run")["step"]
    assert shell.json("control", "save", "run")["step"] == still
    assert saved(tmp_path) == [still]
    shell.run("control", "resume", "run")
    wait_until(lambda: shell.json("control", "status", "run")["step"] > still, training)
    os.kill(training.process.pid or 0, signal.SIGTERM)
    assert training.end() == 0, training.err.read_text()
    assert not address.exists()
    assert saved(tmp_path)[-1] > still


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_a_training_with_a_checkpoint_and_status_0(
    number: signal.Signals, tmp_path: Path, train: Callable[..., Command]
) -> None:
    training = train("--save-checkpoints-steps", 3, "--embedding-prefetch-capacity", 1, "--enable-embedding-postpush")
    wait_until(lambda: (tmp_path / "run" / "checkpoints" / "step-000000003").is_dir(), training)
    os.kill(training.process.pid or 0, number)
    assert training.end() == 0, training.err.read_text()
    log = training.err.read_text()
    assert f"the process was sent {number.name}" in log
    last = saved(tmp_path)[-1]
    assert f"stopping step={last} " in log


def test_a_full_disk_ends_a_training_with_one_line_and_leaves_the_checkpoints_before(
    tmp_path: Path, train: Callable[..., Command]
) -> None:
    before = train("--max-steps", 4)
    assert before.end() == 0, before.err.read_text()
    assert saved(tmp_path) == [4]
    full = train("--max-steps", 8, largest_file=20_000)
    assert full.end() == 1
    line = full.err.read_text().splitlines()[-1]
    folder = tmp_path / "run" / "checkpoints"
    assert line.startswith("error: the checkpoint of step 8 was not saved: "), line
    assert "the last good one is 'run/checkpoints/step-000000004'. Free some space" in line
    assert "Traceback" not in full.err.read_text()
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith("step")) == ["step-000000004"]
    after = train("--max-steps", 8)
    assert after.end() == 0, after.err.read_text()
    assert saved(tmp_path) == [4, 8]

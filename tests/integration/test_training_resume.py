"""A training is killed at random moments and started again: what comes out has the same bytes as one that was not.

``MONOLITH_KILL_SEED`` repeats a run.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

import training_child as child
from fork_server import fork_context
from monolith.artifacts import CheckpointFolder

SEED = int(os.environ.get("MONOLITH_KILL_SEED", str(random.SystemRandom().randrange(2**32))))
STEPS = 60
KILLS = 3
SEQUENTIAL = {"save_checkpoints_steps": 7}
PIPELINED = {
    "save_checkpoints_steps": 7,
    "embedding_prefetch_capacity": 2,
    "enable_embedding_postpush": True,
    "enable_variable_postpush": True,
}


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return child.write_data(tmp_path_factory.mktemp("data"))


def run_to_the_end(pattern: str, model_dir: Path, options: dict[str, Any], *, kill_at: int | None = None) -> Any:
    """Train in a process of its own; return its fingerprint, or its exit status when it was to be killed first."""
    context = fork_context()
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=child.train, args=(pattern, model_dir, sending, STEPS, options))
    process.start()
    sending.close()
    try:
        while True:
            said = receiving.recv()
            if not isinstance(said, int):
                return said
            if kill_at is not None and said >= kill_at:
                process.kill()
                process.join()
                return process.exitcode
    finally:
        process.join()
        receiving.close()


@pytest.mark.parametrize("options", [SEQUENTIAL, PIPELINED], ids=["sequential", "pipelined"])
def test_a_training_that_is_killed_again_and_again_ends_with_the_same_bytes(
    options: dict[str, Any], pattern: str, tmp_path: Path
) -> None:
    luck = random.Random(SEED)
    whole = run_to_the_end(pattern, tmp_path / "whole", options)
    assert whole["step"] == STEPS
    # The first death is after the first checkpoint was begun: it may be half written.
    kills = sorted([7, *(luck.randrange(1, STEPS) for _ in range(KILLS - 1))])
    ends = [run_to_the_end(pattern, tmp_path / "killed", options, kill_at=kill_at) for kill_at in kills]
    assert -signal.SIGKILL in ends, "a test of nothing: every process ended before it was killed"
    resumed = run_to_the_end(pattern, tmp_path / "killed", options)
    assert resumed == whole, f"MONOLITH_KILL_SEED={SEED}"


def test_saving_in_the_foreground_gives_the_same_bytes_as_in_the_background(pattern: str, tmp_path: Path) -> None:
    made = child.estimator(tmp_path / "foreground", save_checkpoints_steps=7, background_save=False)
    made.train(child.dataset(pattern), max_steps=30)
    other = child.estimator(tmp_path / "background", save_checkpoints_steps=7)
    other.train(child.dataset(pattern), max_steps=30)
    assert child.fingerprint(made) == child.fingerprint(other)


def test_many_calls_and_new_estimators_are_as_good_as_one_call(pattern: str, tmp_path: Path) -> None:
    whole = child.estimator(tmp_path / "whole")
    whole.train(child.dataset(pattern), max_steps=30)
    parts = child.estimator(tmp_path / "parts")
    parts.train(child.dataset(pattern), steps=8)
    parts.train(child.dataset(pattern), steps=4)
    assert parts.step == 12
    parts = child.estimator(tmp_path / "parts")
    parts.train(child.dataset(pattern), max_steps=20)
    parts.train(child.dataset(pattern), steps=10)
    expected, found = child.fingerprint(whole), child.fingerprint(parts)
    for one in (expected, found):
        del one["metrics"]  # each call counts anew
    assert found == expected


def test_where_the_data_stopped_is_in_the_checkpoint_of_each_step(pattern: str, tmp_path: Path) -> None:
    made = child.estimator(tmp_path, save_checkpoints_steps=5)
    made.train(child.dataset(pattern), max_steps=15)
    steps = [saved.step for saved in CheckpointFolder(tmp_path / "checkpoints").saved()]
    assert steps == [5, 10, 15]
    again = child.estimator(tmp_path / "again", restore_dir=str(tmp_path), restore_ckpt="10")
    assert again.step == 10
    again.train(child.dataset(pattern), max_steps=15)
    assert child.fingerprint(again) == child.fingerprint(made)

"""The workshop of test_checkpoint_crash.py: imports torch once, then forks a worker for each line of standard input.

A line is a JSON object: ``do`` names a function below, the rest are its arguments. The answers are two lines: the
worker's process id at once, and how it ended with what it returned.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import resource
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # the optimizers' first step would, in every worker

from checkpoint_runs import content_of, make_checkpointer, make_state, train
from monolith import _native
from monolith.core.clock import SystemClock
from monolith.core.config_sections import build_section
from monolith.core.errors import ArtifactError
from monolith.training.checkpoints import Checkpointer, PendingSave, TrainingState
from monolith.training.config import CheckpointConfig

SAFE = struct.Struct("<q")
"""The last step that was said to be safe; -1 = none."""
MOST_STEPS = 300


def digest(state: TrainingState) -> str:
    return hashlib.sha256(repr(content_of(state)).encode()).hexdigest()


def new_run(seed: int) -> TrainingState:
    np.random.seed(seed)
    return make_state(seed)


def train_until_killed(model_dir: str, safe_path: str, seed: int, failpoint: str, arm_after: int) -> None:
    """Resume, train and save again and again; every fourth step is saved twice, every fifth also dense-only."""
    with Path(safe_path).open("r+b") as file, mmap.mmap(file.fileno(), SAFE.size) as safe:
        checkpointer = Checkpointer(
            model_dir, build_section(CheckpointConfig, checkpoints_max_to_keep=2), clock=SystemClock()
        )
        pending: list[PendingSave] = []
        state = new_run(seed)
        checkpointer.restore(state)
        for saves in range(MOST_STEPS):
            if saves == arm_after:
                _native.set_failpoint(failpoint)
            train(state, 1)
            while pending and pending[0].is_done:
                done = pending.pop(0)
                done.wait()
                safe[:] = SAFE.pack(done.step)
            pending.append(checkpointer.save(state, reason="crash"))
            if state.step % 4 == 0:
                pending.append(checkpointer.save(state, reason="again"))
            if state.step % 5 == 0:
                checkpointer.save_dense(state, reason="dense")


def restored_digest(model_dir: str, seed: int) -> dict[str, Any]:
    state = new_run(seed)
    restored = make_checkpointer(Path(model_dir)).restore(state)
    return {"step": restored.step if restored else -1, "digest": digest(state) if restored else ""}


def digests_of_an_unbroken_run(seed: int, steps: list[int]) -> dict[int, str]:
    state, found = new_run(seed), {}
    for step in steps:
        train(state, step - state.step)
        found[step] = digest(state)
    return found


def fill_the_disk(model_dir: str, most_bytes: int, background: bool) -> dict[str, Any]:
    """Save, save with no file allowed to grow beyond ``most_bytes``, save again without the limit."""
    state = new_run(0)
    many = np.arange(1000, 4000)
    state.store.push({"user": many}, {"user": np.ones((3000, 2), np.float32)})
    train(state, 20)
    checkpointer = make_checkpointer(Path(model_dir), background_save=background)
    checkpointer.save(state, reason="before").wait()
    train(state, 20)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    pending = checkpointer.save(state, reason="full")
    pending.settle()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    error = None
    try:
        pending.wait()
    except ArtifactError as caught:
        error = caught  # kept, frames and all: the next save must not wait for what they hold
    left = sorted(path.name for path in Path(model_dir, "checkpoints").iterdir())
    between = restored_digest(model_dir, 0)["step"]
    train(state, 20)
    checkpointer.save(state, reason="after").wait()
    checkpointer.close()
    return {"error": str(error), "left": left, "between": between, "after": restored_digest(model_dir, 0)["step"]}


DO = {each.__name__: each for each in (train_until_killed, restored_digest, digests_of_an_unbroken_run, fill_the_disk)}


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        arguments = json.loads(line)
        job = DO[arguments.pop("do")]
        with tempfile.TemporaryFile() as answer:
            pid = os.fork()
            if pid == 0:
                answer.write(json.dumps(job(**arguments)).encode())
                answer.flush()
                os._exit(0)
            print(pid, flush=True)
            _, status = os.waitpid(pid, 0)
            answer.seek(0)
            result = json.loads(answer.read() or b"null")
        print(json.dumps({"status": os.waitstatus_to_exitcode(status), "result": result}), flush=True)


if __name__ == "__main__":
    main()

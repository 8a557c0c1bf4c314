"""The default number of passes: small shuffled files whose ids have many rows are read twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith.training.config.job import JobConfig
from monolith.training.hooks import Hook
from monolith.training.job_data import wants_second_pass
from monolith.training.run import Run, StepResult
from monolith.training.runner import Job

ROWS, BATCH = 50_000, 2_000
PASS = ROWS // BATCH


def write(path: Path, ids: int) -> str:
    random = np.random.default_rng(3)
    columns = {
        "user": random.permutation(np.arange(ROWS) % ids),
        "click": random.integers(0, 2, ROWS),
        "at": np.arange(ROWS) + 1_700_000_000,
    }
    pq.write_table(pa.table(columns), path)
    return str(path)


def job(folder: Path, data: str, hooks: tuple[Hook, ...] = (), **options: Any) -> Job:
    fixed: dict[str, Any] = {"threads": 1, "log_step_count_steps": 0, "save_summary_steps": 0, "batch_size": BATCH}
    options = {"task": "deepfm", "task_options": {"dim": 2, "hidden": [4]}, "exclude": ("at",), **options}
    return Job(JobConfig(model_dir=str(folder), data=data, label_features=("click",), **fixed, **options), hooks=hooks)


@pytest.mark.parametrize(
    ("ids", "options", "passes"),
    [
        (ROWS // 40, {}, 2),
        (ROWS // 39, {}, 1),
        (ROWS // 40, {"epochs": 1}, 1),
        (ROWS // 40, {"shuffle_buffer": 0}, 1),
        (ROWS // 40, {"time_column": "at", "exclude": ()}, 1),
        (ROWS // 40, {"max_steps": PASS}, 1),
    ],
    ids=["many rows per id", "few rows per id", "epochs", "in order", "event times", "steps"],
)
def test_shuffled_rows_of_frequent_ids_are_read_twice(
    tmp_path: Path, ids: int, options: dict[str, Any], passes: int
) -> None:
    trained = job(tmp_path / "run", write(tmp_path / "train.parquet", ids), **options)
    trained.train()
    assert trained.estimator.step == passes * PASS


def test_large_data_and_data_of_a_trial_are_read_once() -> None:
    assert [wants_second_pass(rows, 1) for rows in (49_999, 50_000, 10_000_000, 10_000_001)] == [
        False,
        True,
        True,
        False,
    ]


class Stop(Hook):
    """Fails in the given step, as a killed process would."""

    def __init__(self, step: int) -> None:
        self._step = step

    def after_step(self, run: Run, result: StepResult) -> None:
        if run.step == self._step:
            raise InterruptedError


@pytest.mark.parametrize("step", [PASS - 5, PASS + 1, PASS + 15])
def test_a_restart_reads_the_rest_of_two_passes(tmp_path: Path, step: int) -> None:
    folder, data = tmp_path / "run", write(tmp_path / "train.parquet", 100)
    options = {"save_checkpoints_steps": 10}
    with pytest.raises(InterruptedError):
        job(folder, data, (Stop(step),), **options).train()
    again = job(folder, data, **options)
    again.train()
    assert again.estimator.step == 2 * PASS
    body = json.loads((folder / "job.json").read_bytes())
    assert body["finished"]
    assert not body["is_second_pass"]
    finished = job(folder, data, **options)
    assert finished.train() == {}
    more = job(folder, data, more=True, **options)
    more.train()
    assert more.estimator.step == 4 * PASS

"""The ranker trained by a real job: servers and workers that are processes, and files that the workers share out."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from measure.results import PeerMissing
from monolith import data
from monolith.training.cluster.launch.local import LocalJob
from monolith.training.config import RunConfig
from monolith.training.estimator import Estimator
from quality.models import steps_of
from quality.movielens import ONE_VALUED, Ratings
from quality.ranker import BATCH, DENSE_RATE, TEST_BATCH, Ranker

__all__ = ["SERVERS", "WORKERS", "train_job", "write_parquet"]

SERVERS = 2
WORKERS = 2
FILES = 4 * WORKERS

PROGRAMS = Path(__file__).resolve().parents[1]
TASK = PROGRAMS / "quality" / "ranker.py"
SCRATCH = PROGRAMS.parent / "build" / "bench"
LIMIT_S = 1800.0


def train_job(train: Ratings, test: Ratings, *, seed: int, epochs: int, threads: int) -> float:
    """Train a fresh model on servers and workers; return the AUC of its last checkpoint on ``test``.

    Raises:
        PeerMissing: The files cannot be written here.
        RuntimeError: A process of the job has died; the text is the last that it said.
    """
    steps = steps_of(train, epochs)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name:
        folder = Path(name)
        order = np.random.default_rng(seed).permutation(len(train))
        for number, rows in enumerate(np.array_split(order, FILES)):
            write_parquet(train.take(rows), folder / f"train-{number}.parquet")
        write_parquet(test, folder / "test.parquet")
        _run(_command(folder, len(train), steps=steps, seed=seed, epochs=epochs))
        config = RunConfig(model_dir=folder / "run", seed=seed, threads=threads, progress=False)
        estimator = Estimator(lambda: Ranker(steps), config)
        return estimator.evaluate(data.parquet(folder / "test.parquet").batch(TEST_BATCH))["ctr/auc"]


def write_parquet(ratings: Ratings, path: Path) -> None:
    """Write ratings as rows, a column per feature.

    Raises:
        PeerMissing: There is no pyarrow.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise PeerMissing(f"the job reads Parquet, and pyarrow is missing ({error}); pip install pyarrow") from error
    columns: dict[str, Any] = {name: getattr(ratings, name) for name in ONE_VALUED}
    columns["genres"] = [ratings.genre_lists[movie] for movie in ratings.movie]
    columns |= {"__LABEL__": ratings.label, "__REQ_TIME__": ratings.time_s}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def _command(folder: Path, examples: int, *, steps: int, seed: int, epochs: int) -> list[str]:
    """Return what every process is told; all that is not about the model and its data stays at its default."""
    settings = {
        "task": f"{TASK}:{Ranker.__name__}",
        "task-options": json.dumps({"steps": steps}),
        "data": folder / "train-*.parquet",
        "model-dir": folder / "run",
        "batch-size": BATCH,
        "epochs": epochs,
        "shuffle-buffer": examples,  # more than a worker's share, so that each epoch has an order of its own
        "seed": seed,
        "dense-learning-rate": DENSE_RATE,
        "clip-type": "none",
    }
    return ["train", *(part for name, value in settings.items() for part in (f"--{name}", str(value)))]


def _run(command: list[str]) -> None:
    paths = [str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])]  # the task imports this package
    with LocalJob(
        command,
        num_ps=SERVERS,
        num_workers=WORKERS,
        say=lambda name, line, is_out: None,
        environment={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    ) as job:
        ended = job.wait(LIMIT_S)
    if ended is not None:
        raise RuntimeError("\n".join([ended.reason, *ended.last_lines]))

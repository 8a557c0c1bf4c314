"""What the processes of the training tests run: a small two-headed model on generated clicks, and the command line.

The tests start them through a fork server that has imported this module, so that each costs milliseconds; they are
processes of their own all the same, and can be killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # what torch's optimizers import when the first is made, for seconds
from torch import nn

import monolith as mt
import monolith.cli.train  # this and the next two are imported here so that no process has to
import monolith.training.cluster.roles.rank
from monolith.cli import main as program
from monolith.demo.world import World
from monolith.demo.world.files import write_records
from monolith.embedding import Adam, Ftrl
from monolith.training.checkpoints import optimizer_states, random_states
from monolith.training.hooks import Hook

ROWS = 900
FILES = 3


class Ranker(mt.Model):
    """Everything that a checkpoint must bring back: sequences, admission, dropout, running statistics, two heads."""

    def __init__(self) -> None:
        super().__init__(labels=2)
        self.embedding_feature("user_id", slot=1, occurrence_threshold=1)
        self.embedding_feature("item_id", slot=2)
        self.embedding_feature("history", slot=2, shared_with="item_id", max_sequence_length=3)
        self.embedding_feature("category", slot=4, combiner="mean")
        self.dense_feature("price")
        names = ["user_id", "item_id", "category"]
        self.bias = self.embedding_slice(names, "bias", 1, optimizer=Ftrl(0.1), out="add_n")
        self.vectors = self.embedding_slice(names, "vector", 4, optimizer=Adam(0.01), out="concat")
        self.history = self.embedding_slice("history", "vector", 4, optimizer=Adam(0.01))
        self.tower = nn.Sequential(nn.BatchNorm1d(17), nn.Linear(17, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))

    def forward(self, batch: Any) -> list[mt.Output]:
        inputs = torch.cat([self.vectors(batch), self.history(batch).sum(1), batch.dense["price"].log1p()], dim=1)
        click, like = (self.tower(inputs) + self.bias(batch)).unbind(1)
        return [
            mt.Output(head="click", logits=click, label=batch.label[:, 0]),
            mt.Output(head="like", logits=like, label=batch.label[:, 1], extra={"inputs": inputs}),
        ]


def write_data(folder: Path, rows: int = ROWS) -> str:
    """Write clicks as a few files of records; return their pattern."""
    clicks = World(users=60, items=40, seed=5).clicks(rows)
    for number in range(FILES):
        part = clicks.rows(number * rows // FILES, (number + 1) * rows // FILES)
        with mt.data.RecordWriter(folder / f"part-{number}.pb") as writer:
            write_records(part, writer, batch_rows=50)
    return str(folder / "part-*.pb")


def dataset(pattern: str) -> mt.data.Dataset:
    """The files with negatives out of a pool, in random order, three times."""
    return (
        mt.data.files(pattern, record="example_batch", seed=3)
        .negative_gen(neg_num=1, item_features=["item_id", "category"], start_num=10, negative_label=0.0)
        .shuffle(100)
        .repeat(3)
        .batch(40)
    )


def estimator(model_dir: Path, **options: Any) -> mt.Estimator:
    """An estimator of the model that gives the same bytes each time."""
    quiet = {"log_step_count_steps": 0, "save_summary_steps": 0, "threads": 1}
    return mt.Estimator(Ranker, mt.RunConfig(model_dir=str(model_dir), deterministic=True, **{**quiet, **options}))


class SayStep(Hook):
    """Writes the number of each step to a pipe, for the one who waits to kill."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def after_step(self, run: Any, result: Any) -> None:
        self._pipe.send(result.step)


def train(pattern: str, model_dir: Path, pipe: Any, max_steps: int, options: Mapping[str, Any]) -> None:
    """Train up to a step, from wherever the folder is, and send what is there then."""
    made = estimator(model_dir, **options)
    made.train(dataset(pattern), max_steps=max_steps, hooks=[SayStep(pipe)])
    pipe.send(fingerprint(made))


def fingerprint(made: mt.Estimator) -> dict[str, Any]:
    """All that an estimator would go on from, each part as the digest of its bytes."""
    tensors: dict[str, torch.Tensor] = {}
    trees = {
        name: optimizer_states.encode(name, optimizer, made.model, tensors)
        for name, optimizer in made._stepper.optimizers.items()
    }
    return {
        "step": made.step,
        "weights": {name: _digest(value.numpy().tobytes()) for name, value in made.model.state_dict().items()},
        "optimizer": {name: _digest(value.numpy().tobytes()) for name, value in tensors.items()},
        "optimizer settings": _digest(json.dumps(trees, sort_keys=True).encode()),
        "tables": {name: table_digest(made.store[name]) for name in made.store},
        "data": _digest(json.dumps(made._place, sort_keys=True).encode()),
        "metrics": made._metrics.results(),
        "random": _digest(json.dumps(random_states.encode(), sort_keys=True).encode()),
    }


def table_digest(table: Any) -> str:
    """The digest of every row with all that belongs to it, in the order of ids."""
    parts = []
    for fid in sorted(fid for ids, _ in table.items() for fid in ids.tolist()):
        entry = table.entry(fid)
        states = [np.asarray(value).tobytes() for state in entry.state for value in state.values()]
        parts += [np.int64(fid).tobytes(), np.int64(entry.time_s).tobytes(), entry.values.tobytes(), *states]
    return f"{len(table)} rows {_digest(b''.join(parts))}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def command(
    arguments: list[str],
    folder: Path,
    environment: Mapping[str, str],
    out: Path,
    err: Path,
    largest_file: int | None = None,
) -> None:
    """Be the program ``monolith``, with its output in files; ``largest_file`` makes the disk seem full."""
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    os.environ.update(environment)
    os.chdir(folder)
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["monolith", *arguments]
    program.main()

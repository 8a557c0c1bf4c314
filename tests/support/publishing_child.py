"""What the trainer of the freshness test runs: a small model that publishes, and notes its own scores at every cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import monolith as mt
from monolith.demo.world import World
from monolith.demo.world.files import write_records
from monolith.embedding import Adagrad, Fp32
from monolith.training.hooks import StopSignalHook, publish

CLICKS = World(users=50, items=30, seed=2).clicks(640)


class Clicker(mt.Model):
    """Biases of users and items, vectors of items, a price; full precision."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user_id", slot=1)
        self.embedding_feature("item_id", slot=2)
        self.dense_feature("price")
        rule: dict[str, Any] = {"optimizer": Adagrad(0.1), "compressor": Fp32()}
        self.bias = self.embedding_slice(["user_id", "item_id"], "bias", 1, out="add_n", **rule)
        self.vector = self.embedding_slice("item_id", "vector", 2, **rule)
        self.tower = torch.nn.Linear(3, 1)

    def forward(self, batch: Any) -> mt.Output:
        inputs = torch.cat([self.vector(batch), batch.dense["price"].log1p()], dim=1)
        logits = (self.bias(batch) + self.tower(inputs)).squeeze(1)
        return mt.Output(logits=logits, label=batch.label[:, 0])


def write_probe(path: Path) -> None:
    """Write the examples that trainer and server score."""
    with mt.data.RecordWriter(path) as writer:
        write_records(CLICKS.rows(0, 64), writer, batch_rows=64)


def train(folder: Path, port: int | None) -> None:
    """Train until SIGTERM; what the model says of the probe when a cut is taken is in ``scores/`` before the cut is.

    With a port, what is published is streamed there too.
    """
    torch.set_num_threads(1)
    quiet = {"log_step_count_steps": 0, "save_summary_steps": 0, "threads": 1}
    config = mt.RunConfig(
        model_dir=str(folder / "run"),
        publish_dir=folder / "published",
        publish_interval_s=0.05,
        publish_port=port,
        save_checkpoints_steps=200,
        checkpoints_max_to_keep=2,
        **quiet,
    )
    made = mt.Estimator(Clicker, config)
    batch = next(iter(made._prepare_data(mt.data.files(str(folder / "probe.pb"), record="example_batch").batch(64))))
    scores = folder / "scores"
    scores.mkdir(exist_ok=True)
    copied_weights = publish.copied_weights

    def noted_weights(model: torch.nn.Module) -> Any:
        stepper = made._stepper
        heads = stepper.predict(stepper.embedder.pull(batch))
        # Numbers are not a count of files: a kill can leave the temporary one behind, and no number may be used twice.
        number = max((int(path.stem) for path in scores.glob("[0-9]*.npy")), default=-1) + 1
        np.save(scores / "temporary", next(iter(heads.results().values())).predictions)
        (scores / "temporary.npy").rename(scores / f"{number}.npy")
        return copied_weights(model)

    publish.copied_weights = noted_weights  # type: ignore[assignment]
    made.train(CLICKS.dataset().repeat().batch(32), hooks=[StopSignalHook()])

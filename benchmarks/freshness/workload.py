"""The model, its rows, and its examples; and the marker, a row that tells how far the trainer was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import monolith as mt
from monolith.core import fid
from monolith.data import Batch, Ragged
from monolith.embedding import Adagrad, Fp32, MultiTable, Sgd, Zeros
from monolith.export import export_model
from monolith.serving.servable.features import records_of_features

__all__ = [
    "DIM",
    "FULL",
    "MARKER",
    "QUICK",
    "QUIET",
    "Examples",
    "Ranker",
    "RankerOfJob",
    "Sizes",
    "export",
    "fids",
    "fill",
    "make_estimator",
    "marker_record",
]

DIM = 16
SLOTS = {"user": 1, "item": 2, "marker": 3}
MARKER = fid.make_v2(SLOTS["marker"], 7)
_OTHER = fid.make_v2(SLOTS["marker"], 1)
_SEED = 20240607
QUIET = {"log_step_count_steps": 0, "save_summary_steps": 0, "threads": 1, "seed": 7}
"""Settings of every run: one thread, and nothing written but what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a run is."""

    rows: int
    """Rows of users and of items, together."""
    seconds: float
    """How long updates are watched."""
    batch: int = 256
    quick: bool = False


FULL = Sizes(rows=1_000_000, seconds=30.0)
QUICK = Sizes(rows=50_000, seconds=8.0, quick=True)


class Ranker(mt.Model):
    """Vectors of users and items through a small tower. It also gives the marker's row, untouched by training."""

    def __init__(self) -> None:
        super().__init__()
        for name, slot in SLOTS.items():
            self.embedding_feature(name, slot=slot)
        self.vectors = self.embedding_slice(["user", "item"], "vector", DIM, optimizer=Adagrad(0.05), out="concat")
        counting: dict[str, Any] = {"optimizer": Sgd(1.0), "initializer": Zeros(), "compressor": Fp32()}
        self.marker = self.embedding_slice("marker", "count", 1, **counting)
        self.tower = nn.Sequential(nn.Linear(2 * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch: Any) -> mt.Output:  # noqa: D102
        logits = self.tower(self.vectors(batch)).squeeze(1)
        return mt.Output(logits=logits, label=batch.label[:, 0], extra={"marker": self.marker(batch).squeeze(1)})


class RankerOfJob(Ranker):
    """The same model as the task of a job, which brings its examples along."""

    def __init__(self, rows: int, batch: int) -> None:
        super().__init__()
        self._sizes = Sizes(rows=rows, seconds=0.0, batch=batch)

    def input_fn(self, mode: str) -> Any:  # noqa: D102
        return Examples(self._sizes)


class Examples:
    """Batches without end; users and items by Zipf's law."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def __iter__(self) -> Iterator[Batch]:
        rng = np.random.default_rng(_SEED)
        count, half = self._sizes.batch, self._sizes.rows // 2
        while True:
            ids = {name: (rng.zipf(1.2, count) - 1) % half for name in ("user", "item")}
            yield Batch.from_arrays(
                ids={
                    "user": _one_each(fids(1, ids["user"])),
                    "item": _one_each(fids(2, ids["item"])),
                    "marker": _one_each(np.full(count, _OTHER)),
                },
                label=((ids["user"] + ids["item"]) % 3 == 0).astype(np.float32),
                event_time_s=np.full(count, 1_700_000_000),
            )


def _one_each(ids: Any) -> Ragged:
    return Ragged(values=ids, offsets=np.arange(len(ids) + 1))


def fids(slot: int, values: Any) -> Any:
    """Return the ids of values of a slot."""
    return fid.make_v2(slot, 0) + np.asarray(values, np.int64)


def make_estimator(**options: Any) -> mt.Estimator:
    """Return an estimator of the model on one thread."""
    torch.set_num_threads(1)
    return mt.Estimator(Ranker, mt.RunConfig(**{**QUIET, **options}))


def fill(tables: MultiTable, sizes: Sizes) -> None:
    """Give every user and item a row."""
    rng = np.random.default_rng(_SEED)
    half = sizes.rows // 2
    for name, slot in (("user", 1), ("item", 2)):
        for begin in range(0, half, 65_536):
            ids = fids(slot, np.arange(begin, min(half, begin + 65_536)))
            tables[name].assign(ids, rng.normal(0, 0.1, (len(ids), DIM)).astype(np.float32))
    tables["marker"].assign([MARKER], [[0.0]])


def export(made: mt.Estimator, folder: Path) -> Path:
    """Export the model as it is, as version 1 of ``ranker``."""
    return export_model(made.model, made.store, folder, name="ranker", step=made.step, version=1)


def marker_record() -> bytes:
    """Return a request that is answered with the marker."""
    features = {"user": {"fids": [int(fids(1, 3))]}, "item": {"fids": [int(fids(2, 3))]}, "marker": {"fids": [MARKER]}}
    return records_of_features(Ranker().declaration, [features])[0]

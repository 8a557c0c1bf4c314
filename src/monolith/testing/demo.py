"""The demonstration: clicks of a known world, a model trained on them, and how near it comes to the best possible."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from monolith.artifacts import read_manifest
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError
from monolith.data import files
from monolith.data.records.writer import RecordWriter
from monolith.embedding import MultiTable
from monolith.models import from_schema
from monolith.testing.world import World
from monolith.testing.world_clicks import Clicks
from monolith.testing.world_files import write_records
from monolith.training import Estimator, RunConfig

__all__ = ["Demo", "DemoResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What came out."""

    clicks: int
    """Impressions trained on."""
    seconds: float
    """Of training."""
    ids: int
    """Rows in all tables."""
    table_bytes: int
    auc: float
    best_auc: float
    """That of the true probabilities of the same test rows: no model can have more, but for luck."""
    calibration: float
    """Predicted over true clicks: 1 is right."""
    checkpoint: Path
    checkpoint_bytes: int

    @property
    def samples_per_s(self) -> float:
        """Impressions trained on per second."""
        return self.clicks / self.seconds


class Demo:
    """A world, its clicks on disk, and a DeepFM that is trained on them from nothing.

    Args:
        folder: Where everything goes; what an earlier demonstration left there is replaced.
        clicks: Impressions to train on; a tenth as many, later in time, are the test.
    """

    def __init__(self, folder: Path, clicks: int = 600_000) -> None:
        if clicks < 1000:
            raise ConfigError(f"clicks is {clicks}; give at least 1,000")
        self.train_file = folder / "train.pb"
        self.test_file = folder / "test.pb"
        self.model_dir = folder / "model"
        shown = World().clicks(clicks + clicks // 10)
        self._train, self._test = shown.rows(0, clicks), shown.rows(clicks)

    def generate(self) -> None:
        """Write the clicks as record files, which is how a trainer meets them."""
        self.train_file.parent.mkdir(parents=True, exist_ok=True)
        for path, rows in ((self.train_file, self._train), (self.test_file, self._test)):
            with RecordWriter(path) as writer:
                write_records(rows, writer)

    def run(self, clock: Clock | None = None) -> DemoResult:
        """Train, evaluate, and compare with what is possible."""
        clock = clock or SystemClock()
        shutil.rmtree(self.model_dir, ignore_errors=True)
        config = RunConfig(model_dir=self.model_dir, save_checkpoints_secs=10, embedding_prefetch_capacity=1)
        estimator = Estimator(lambda: from_schema("deepfm", Clicks.schema()), config, clock=clock)
        begin_s = clock.monotonic_s()
        estimator.train(files(self.train_file, record="example_batch").batch(2048))
        seconds = clock.monotonic_s() - begin_s
        found = estimator.evaluate(files(self.test_file, record="example_batch").batch(4096))
        checkpoint, store = estimator.latest_checkpoint(), estimator.store
        assert checkpoint is not None
        assert isinstance(store, MultiTable)
        return DemoResult(
            clicks=len(self._train),
            seconds=seconds,
            ids=sum(len(store[name]) for name in store),
            table_bytes=store.memory_bytes,
            auc=found["ctr/auc"],
            best_auc=self._test.best_auc,
            calibration=found["ctr/calibration"],
            checkpoint=checkpoint,
            checkpoint_bytes=read_manifest(checkpoint).bytes,
        )

"""``Demo``: generates the clicks of a known world, trains a model on them, and compares it with the best possible AUC.

The second half, with a server and live events, is in ``monolith.demo.live``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from monolith.artifacts import read_manifest
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError
from monolith.data import files
from monolith.data.records.writer import RecordWriter
from monolith.demo.live import LiveDemo, curl
from monolith.demo.world import World
from monolith.demo.world.files import write_records
from monolith.embedding import MultiTable
from monolith.training.config.job import JobConfig
from monolith.training.runner import Job

__all__ = ["Demo", "DemoResult"]

_BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Measurements of a demonstration."""

    clicks: int
    """Impressions trained on."""
    seconds: float
    """Seconds of training."""
    ids: int
    """Rows in all tables."""
    table_bytes: int
    auc: float
    best_auc: float
    """AUC of the true probabilities on the same test rows: an upper bound, except for luck."""
    calibration: float
    """Predicted clicks over true clicks; 1 is ideal."""
    checkpoint: Path
    checkpoint_bytes: int

    @property
    def samples_per_s(self) -> float:
        """Impressions trained on per second."""
        return self.clicks / self.seconds


class Demo:
    """A world, its clicks on disk, and a DeepFM that is trained on them from scratch.

    Args:
        folder: Folder of all files; those of an earlier demonstration are replaced.
        clicks: Impressions to train on. A tenth as many, later in time, are the test set.
    """

    def __init__(self, folder: Path, clicks: int = 400_000) -> None:
        if clicks < 1000:
            raise ConfigError(f"clicks is {clicks}; give at least 1,000")
        self._folder = folder
        self.train_file = folder / "train.pb"
        self.test_file = folder / "test.pb"
        self.model_dir = folder / "model"
        self.exported = folder / "exported"
        self.published = folder / "published"
        shown = World().clicks(clicks + clicks // 10)
        self._train, self._test = shown.rows(0, clicks), shown.rows(clicks)

    def generate(self) -> None:
        """Write the clicks as record files."""
        self.train_file.parent.mkdir(parents=True, exist_ok=True)
        for path, rows in ((self.train_file, self._train), (self.test_file, self._test)):
            with RecordWriter(path) as writer:
                write_records(rows, writer)

    def run(self, clock: Clock | None = None) -> DemoResult:
        """Train, evaluate, compare with the best possible AUC, and export."""
        clock = clock or SystemClock()
        for folder in (self.model_dir, self.exported):
            shutil.rmtree(folder, ignore_errors=True)
        config = JobConfig(
            task="deepfm",
            data=str(self.train_file),
            record="example_batch",
            batch_size=_BATCH_ROWS,
            model_dir=str(self.model_dir),
            save_checkpoints_secs=10,
            embedding_prefetch_capacity=1,
        )
        job = Job(config)
        begin_s = clock.monotonic_s()
        job.train()
        seconds = clock.monotonic_s() - begin_s
        estimator = job.estimator
        found = estimator.evaluate(files(self.test_file, record="example_batch").batch(4096))
        checkpoint, store = estimator.latest_checkpoint(), estimator.store
        assert checkpoint is not None
        assert isinstance(store, MultiTable)
        estimator.export(self.exported)
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

    def live(self, clock: Clock | None = None, check_end: Callable[[], None] = lambda: None) -> LiveDemo:
        """Return the second half, which continues from the end of ``run``. Enter it to start its processes.

        Args:
            clock: Clock of measurements and waits.
            check_end: Called between two requests; raises to end the demonstration.
        """
        return LiveDemo(
            self._folder,
            published=self.published,
            model_dir=self.model_dir,
            exported=self.exported,
            shown=self._test,
            clock=clock,
            check_end=check_end,
        )

    @property
    def curl(self) -> str:
        """A ``curl`` command that requests one score from ``monolith serve`` at its default port."""
        return curl("127.0.0.1:8501", self._test)

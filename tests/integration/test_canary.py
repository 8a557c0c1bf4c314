"""Servers with a canary that follow a trainer: what is poisoned is never shown, and what is repaired is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
import publishing_child as child
from commands import Shell
from monolith.core.clock import SystemClock
from monolith.data.records.reader import read_records
from monolith.export import export_model
from monolith.sync import LocalRowLog, Publisher
from monolith.training.hooks.publish import copied_weights
from served_model import ServedModel

LIMIT = 1e-6


class Trainer:
    """A model in this process that publishes when it is told to, and can be taken back."""

    def __init__(self, folder: Path) -> None:
        self.made = mt.Estimator(child.Clicker)
        export_model(self.made.model, self.made.store, folder / "exports", name="clicks", step=0, version=1)
        child.write_probe(folder / "probe.pb")
        self.probe = list(read_records(folder / "probe.pb"))
        data = mt.data.files(str(folder / "probe.pb"), record="example_batch").batch(64)
        self._batch = next(iter(self.made._prepare_data(data)))
        self._saved = folder / "saved"
        self._weights: dict[str, Any] = {}
        tables: Any = self.made.store
        self._tables = tables
        self.publisher = Publisher(
            folder / "published",
            LocalRowLog(folder / "published", tables, clock=SystemClock()),
            lambda: copied_weights(self.made.model),
            clock=SystemClock(),
        )

    def learn(self, steps: int, *, is_inverted: bool = False) -> None:
        data = child.CLICKS.dataset().repeat().batch(32)
        if is_inverted:
            data = data.map(lambda batch: batch.changed(_inverted))
        self.made.train(data, steps=steps, resume_data=False)

    def publish(self) -> int:
        self.publisher.publish()
        assert self.publisher.newest is not None
        return self.publisher.newest.number

    def scores(self) -> np.ndarray[Any, Any]:
        stepper = self.made._stepper
        with torch.no_grad():
            heads = stepper.predict(stepper.embedder.pull(self._batch))
        return next(iter(heads.results().values())).predictions

    def keep(self) -> None:
        self._tables.save(self._saved)
        self._weights = {name: value.clone() for name, value in self.made.model.state_dict().items()}

    def take_back(self) -> None:
        self._tables.restore(self._saved)
        self.made.model.load_state_dict(self._weights)


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)


@pytest.fixture
def servers(trainer: Trainer, tmp_path: Path) -> Iterator[list[ServedModel]]:
    shell = Shell(tmp_path)
    common = (shell, tmp_path / "exports", "--sync-from", tmp_path / "published")
    shifts = ("--canary-max-score-shift", 9, "--canary-max-mean-shift", 9, "--canary-max-calibration-error", 0.5)
    with (
        ServedModel(*common, "--canary", "--canary-max-score-shift", 0.1, "--canary-max-mean-shift", 0.1) as asked,
        ServedModel(*common, "--canary-records", tmp_path / "probe.pb", *shifts) as told,
    ):
        yield [asked, told]


def test_servers_show_good_cuts_only(trainer: Trainer, servers: list[ServedModel]) -> None:
    for served in servers:
        served.scores(trainer.probe)  # what they are to be judged by
    trainer.learn(20)
    shown = trainer.publish()
    for served in servers:
        served.wait(lambda served=served: served.metric("monolith_sync_cut{") == shown)  # type: ignore[misc]
        np.testing.assert_allclose(served.scores(trainer.probe), trainer.scores(), atol=LIMIT, rtol=0)
    trainer.keep()
    good = [served.scores(trainer.probe) for served in servers]

    for number, poison in enumerate((_break_weights, lambda trainer: trainer.learn(100, is_inverted=True)), 1):
        poison(trainer)
        bad = trainer.publish()
        for served, scores in zip(servers, good, strict=True):
            refused = 'monolith_canary_trials_total{model="clicks",outcome="refused"}'
            while served.metric(refused) < number:
                np.testing.assert_array_equal(served.scores(trainer.probe), scores)
            assert served.metric("monolith_canary_held{") == 1
            assert served.metric("monolith_sync_cut{") == shown < bad
            np.testing.assert_array_equal(served.scores(trainer.probe), scores)
        trainer.take_back()

    trainer.learn(5)
    shown = trainer.publish()
    for served in servers:
        served.wait(lambda served=served: served.metric("monolith_sync_cut{") == shown)  # type: ignore[misc]
        assert served.metric("monolith_canary_held{") == 0
        np.testing.assert_allclose(served.scores(trainer.probe), trainer.scores(), atol=LIMIT, rtol=0)
    asked, told = (served.said() for served in servers)
    assert "nan_rate" in asked
    assert "score_shift" in asked
    assert "calibration_error" in told


def _break_weights(trainer: Trainer) -> None:
    with torch.no_grad():
        for value in trainer.made.model.parameters():
            value.fill_(float("nan"))


def _inverted(batch: mt.data.Batch) -> mt.data.Batch:
    return replace(batch, label=1 - batch.label)

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolith as mt
from monolith.artifacts import read_manifest, verify_files
from monolith.core.errors import ConfigError
from monolith.training.hooks import EarlyStoppingHook


class Bias(mt.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1)
        self.bias = self.embedding_slice("user", "bias", 1)

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(logits=self.bias(batch).squeeze(1), label=batch.label[:, 0])


def batches(count: int, *, flip_after: int) -> list[mt.Batch]:
    """The labels turn around after some batches, so that the loss rises."""
    labels = [[0, 1] if number < flip_after else [1, 0] for number in range(count)]
    return [mt.Batch.from_arrays(ids={"user": [[1], [2]]}, label=label) for label in labels]


@pytest.mark.parametrize("metric", ["loss", "ctr/log_loss", "ctr/auc"])
def test_a_run_ends_when_its_metric_does_not_improve(metric: str) -> None:
    hook = EarlyStoppingHook(metric, every_steps=5, patience=2)
    estimator = mt.Estimator(Bias)
    estimator.train(batches(100, flip_after=20), hooks=[hook])
    assert hook.best_step <= 20
    assert estimator.step == hook.best_step + 10


def test_settings_ask_for_the_hook(tmp_path: Path) -> None:
    config = mt.RunConfig(
        model_dir=str(tmp_path), early_stopping_metric="loss", early_stopping_steps=5, early_stopping_patience=2,
        keep_best_checkpoint=True,
    )  # fmt: skip
    estimator = mt.Estimator(Bias, config)
    estimator.train(batches(100, flip_after=20))
    assert 10 < estimator.step <= 30
    assert (tmp_path / "best" / "manifest.json").is_file()
    with pytest.raises(ConfigError, match="keep_best_checkpoint is True without early_stopping_metric"):
        mt.RunConfig(keep_best_checkpoint=True)


@pytest.mark.parametrize("steps_per_eval", [5, 7, 10])
@pytest.mark.parametrize("is_setting", [True, False])
def test_windows_continue_behind_an_evaluation(is_setting: bool, steps_per_eval: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"early_stopping_metric": "loss", "early_stopping_steps": 5}
    settings |= {"early_stopping_patience": 3, "keep_best_checkpoint": True}
    hook = EarlyStoppingHook("loss", every_steps=5, patience=3, keep_best=True)
    config = mt.RunConfig(model_dir=str(tmp_path), **(settings if is_setting else {}))
    estimator = mt.Estimator(Bias, config, hooks=[] if is_setting else [hook])
    found = estimator.train_and_evaluate(
        batches(100, flip_after=20), batches(2, flip_after=2), steps_per_eval=steps_per_eval
    )
    assert estimator.step == 35
    assert found[-1]["global_step"] == 35
    assert read_manifest(tmp_path / "best").step <= 21


def test_a_hook_that_has_ended_a_run_gives_the_next_one_its_full_patience() -> None:
    hook = EarlyStoppingHook("loss", every_steps=5, patience=2)
    estimator = mt.Estimator(Bias)
    for expected in (30, 40):
        estimator.train(batches(100, flip_after=20)[estimator.step :], hooks=[hook])
        assert estimator.step == expected


def test_a_change_below_the_least_delta_does_not_count() -> None:
    hook = EarlyStoppingHook("loss", every_steps=5, patience=2, min_delta=100.0)
    estimator = mt.Estimator(Bias)
    estimator.train(batches(100, flip_after=100), hooks=[hook])
    assert (hook.best_step, estimator.step) == (5, 15)


def test_the_best_checkpoint_outlives_retention(tmp_path: Path) -> None:
    config = mt.RunConfig(
        model_dir=str(tmp_path), save_checkpoints_steps=1, checkpoints_max_to_keep=1, keep_checkpoint_every_n_hours=None
    )
    hook = EarlyStoppingHook("loss", every_steps=10, patience=3, keep_best=True)
    mt.Estimator(Bias, config).train(batches(200, flip_after=30), hooks=[hook])
    again = mt.Estimator(Bias, mt.RunConfig(model_dir=str(tmp_path / "next"), restore_dir=str(tmp_path / "best")))
    assert 0 < again.step < 60
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 1
    scores = next(again.predict(batches(1, flip_after=1)))["ctr"]
    assert np.all(scores[:1] < scores[1:])


def test_a_checkpoint_that_retention_removes_meanwhile_is_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, sources = shutil.copytree, list[Path]()

    def copy_late(source: Path, *arguments: Any, **options: Any) -> Any:
        sources.append(source)
        if len(sources) == 1:
            shutil.rmtree(source)
        return copy(source, *arguments, **options)

    monkeypatch.setattr(shutil, "copytree", copy_late)
    hook = EarlyStoppingHook("loss", every_steps=10, patience=3, keep_best=True)
    mt.Estimator(Bias, mt.RunConfig(model_dir=str(tmp_path))).train(batches(60, flip_after=15), hooks=[hook])
    assert len(sources) > 1
    assert (tmp_path / "best" / "manifest.json").is_file()


def test_a_full_disk_costs_the_best_checkpoint_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "link", refuse)
    hook = EarlyStoppingHook("loss", every_steps=10, patience=3, keep_best=True)
    estimator = mt.Estimator(Bias, mt.RunConfig(model_dir=str(tmp_path)))
    estimator.train(batches(30, flip_after=30), hooks=[hook])
    assert estimator.step == 30
    assert re.search(r"best checkpoint not kept source=\S+ error=.Errno 28. no space$", caplog.text, re.MULTILINE)
    assert not list(tmp_path.glob("*best*"))


def test_a_kill_or_an_upload_finds_the_best_checkpoint_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, seen = shutil.rmtree, list[set[str]]()

    def look_and_remove(path: Path, *arguments: Any, **options: Any) -> None:
        remove(path, *arguments, **options)
        if (tmp_path / "best").exists() or seen:
            verify_files(tmp_path / "best", read_manifest(tmp_path / "best"))
            seen.append({name for name in os.listdir(tmp_path) if "best" in name and not name.startswith(".")})

    monkeypatch.setattr(shutil, "rmtree", look_and_remove)
    hook = EarlyStoppingHook("loss", every_steps=5, patience=3, keep_best=True)
    mt.Estimator(Bias, mt.RunConfig(model_dir=str(tmp_path))).train(batches(20, flip_after=20), hooks=[hook])
    assert len(seen) > 1
    assert all(names == {"best"} for names in seen)
    assert [name for name in os.listdir(tmp_path) if "best" in name] == ["best"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"patience": 0}, "patience is 0"),
        ({"every_steps": 1.5}, "every_steps is 1.5"),
        ({"min_delta": -1}, "min_delta"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        EarlyStoppingHook(**options)


def test_an_unknown_metric_is_refused_with_those_of_the_run() -> None:
    with pytest.raises(ConfigError, match="metric is 'ctr/acu', expected one of the run: loss, ctr/auc"):
        mt.Estimator(Bias).train(batches(5, flip_after=5), hooks=[EarlyStoppingHook("ctr/acu", every_steps=1)])

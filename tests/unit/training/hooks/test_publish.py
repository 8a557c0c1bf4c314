"""Runs that publish, and a served export of the same model that follows them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
from monolith.artifacts.delta_log import DeltaReader, read_cut
from monolith.core.errors import ConfigError
from monolith.demo.world import World
from monolith.embedding import Adagrad, Fp32
from monolith.export import export_model
from monolith.serving import Servable
from monolith.sync import Follower, read_base
from monolith.testing.fakes.clock import FakeClock
from monolith.training.hooks import Hook, PublishHook
from monolith.training.hooks.publish import copied_weights

CLICKS = World(users=50, items=30, seed=2).clicks(640)


class Clicker(mt.Model):
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


def batches(first: int = 0, last: int = 640) -> mt.data.Dataset:
    return CLICKS.rows(first, last).dataset().batch(32)


def estimator(folder: Path, **options: Any) -> mt.Estimator:
    quiet = {"log_step_count_steps": 0, "save_summary_steps": 0, "deterministic": True, "threads": 1}
    chosen = {"model_dir": str(folder / "run"), "publish_dir": folder / "published", "publish_interval_s": 3600.0}
    return mt.Estimator(Clicker, mt.RunConfig(**{**quiet, **chosen, **options}))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = mt.Estimator(Clicker)
    return export_model(made.model, made.store, tmp_path_factory.mktemp("export"), name="clicks", step=0)


@pytest.fixture
def servable(exported: Path) -> Iterator[Servable]:
    loaded = Servable.load(exported)
    yield loaded
    loaded.close()


def probe(made: mt.Estimator) -> Any:
    dataset = CLICKS.rows(0, 100).dataset().batch(100)
    return next(iter(made._prepare_data(dataset)))


def trained_scores(made: mt.Estimator) -> np.ndarray[Any, Any]:
    stepper = made._stepper
    with torch.no_grad():
        heads = stepper.predict(stepper.embedder.pull(probe(made)))
    return next(iter(heads.results().values())).predictions


def served_scores(servable: Servable, made: mt.Estimator) -> np.ndarray[Any, Any]:
    return next(iter(servable.predict_batch(probe(made)).values()))


def follow(folder: Path, servable: Servable) -> Follower:
    return Follower(folder / "published", servable, clock=FakeClock())


def test_a_server_that_follows_scores_as_the_trainer_does(tmp_path: Path, servable: Servable) -> None:
    made = estimator(tmp_path)
    before = served_scores(servable, made)
    made.train(batches(), steps=10)
    follower = follow(tmp_path, servable)
    assert follower.step()
    after = served_scores(servable, made)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, trained_scores(made), atol=1e-6, rtol=0)
    made.train(batches(), steps=3)
    assert follower.step()
    np.testing.assert_allclose(served_scores(servable, made), trained_scores(made), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "late",
    [{}, {"embedding_prefetch_capacity": 2, "enable_embedding_postpush": True, "enable_variable_postpush": True}],
    ids=["sequential", "late updates"],
)
def test_every_publish_is_of_one_moment_between_two_steps(
    tmp_path: Path, servable: Servable, late: dict[str, Any]
) -> None:
    made = estimator(tmp_path, model_dir="", publish_interval_s=0.001, **late)
    follower = follow(tmp_path, servable)
    taken: list[np.ndarray[Any, Any]] = []
    applied: list[np.ndarray[Any, Any]] = []

    class Check(Hook):
        """Follows whenever something new is there, and notes what training would say at every step boundary."""

        def after_step(self, run: Any, result: Any) -> None:
            with run.between_steps():
                taken.append(trained_scores(made))
            if follower.step():
                applied.append(served_scores(servable, made))

    start = trained_scores(made)
    made.train(batches(), hooks=[Check()])
    follower.step()
    np.testing.assert_allclose(served_scores(servable, made), trained_scores(made), atol=1e-6, rtol=0)
    cuts = read_cut(tmp_path / "published")
    assert cuts is not None
    assert cuts.number > 2
    for scores in applied:
        distances = [np.abs(scores - one).max() for one in (start, *taken)]
        assert min(distances) <= 1e-6


def test_a_run_that_waits_for_data_publishes_what_it_has_learnt(tmp_path: Path, servable: Servable) -> None:
    made = estimator(tmp_path, model_dir="", publish_interval_s=0.01)
    first, *_, last = list(made._prepare_data(batches()))
    may_go_on = threading.Event()
    learnt: list[np.ndarray[Any, Any]] = []

    class Stream:
        """A batch, then silence, then another."""

        def __iter__(self) -> Iterator[Any]:
            yield first
            learnt.append(trained_scores(made))
            assert may_go_on.wait(60)
            yield last

    trainer = threading.Thread(target=lambda: made.train(Stream()))  # type: ignore[arg-type]
    trainer.start()
    follower = follow(tmp_path, servable)
    try:
        while not learnt or np.abs(served_scores(servable, made) - learnt[0]).max() > 1e-6:
            assert trainer.is_alive()
            follower.step()
    finally:
        may_go_on.set()
        trainer.join()


def test_checkpoints_shorten_the_log_and_are_begun_with(tmp_path: Path, servable: Servable) -> None:
    made = estimator(tmp_path, save_checkpoints_steps=4)
    made.train(batches(), steps=10)
    root = tmp_path / "published"
    base = read_base(root)
    assert base is not None
    newest = made.latest_checkpoint()
    assert newest is not None
    assert base.tables == newest / "tables"
    folder = root / "shard-00000-of-00001"
    assert DeltaReader(folder).segments()[0].sequence == base.positions[0].sequence
    assert not DeltaReader(folder).segments()[0].is_complete
    follow(tmp_path, servable).step()
    np.testing.assert_allclose(served_scores(servable, made), trained_scores(made), atol=1e-6, rtol=0)


def test_a_run_that_failed_publishes_no_more_and_the_next_one_can(tmp_path: Path, servable: Servable) -> None:
    made = estimator(tmp_path)

    class Fail(Hook):
        def after_step(self, run: Any, result: Any) -> None:
            raise RuntimeError("as planned")

    with pytest.raises(RuntimeError, match="as planned"):
        made.train(batches(), hooks=[Fail()])
    cut = read_cut(tmp_path / "published")
    assert cut is not None
    assert cut.number == 1
    again = estimator(tmp_path)
    again.train(batches(), steps=2)
    follow(tmp_path, servable).step()
    np.testing.assert_allclose(served_scores(servable, again), trained_scores(again), atol=1e-6, rtol=0)


def test_a_full_disk_is_made_up_for(
    tmp_path: Path, servable: Servable, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = estimator(tmp_path, save_checkpoints_steps=2)
    failing = iter([OSError(28, "No space left on device")])
    from monolith.sync import dense_versions

    real = dense_versions.write_tensors

    def write(path: Path, arrays: Any) -> Any:
        if path.name.startswith(f"dense-{2:020d}") and (error := next(failing, None)) is not None:
            raise error
        return real(path, arrays)

    monkeypatch.setattr(dense_versions, "write_tensors", write)
    made.train(batches(), steps=5)
    assert "publish failed, retrying" in caplog.text
    follow(tmp_path, servable).step()
    np.testing.assert_allclose(served_scores(servable, made), trained_scores(made), atol=1e-6, rtol=0)


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="publish_interval_s is 0; give a number above 0"):
        mt.RunConfig(publish_interval_s=0)
    with pytest.raises(ConfigError, match="publish_flavour is 'servin'; did you mean 'serving'"):
        mt.RunConfig(publish_flavour="servin")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="publish_port is 8600 without publish_dir"):
        mt.RunConfig(publish_port=8600)
    with pytest.raises(ConfigError, match="publish_port is 70000; give 0"):
        mt.RunConfig(publish_dir=tmp_path, publish_port=70_000)
    with pytest.raises(ConfigError, match="every_s is 0"):
        PublishHook(tmp_path, every_s=0)
    with pytest.raises(ConfigError, match=r"weight 'weight' is torch\.bfloat16, which cannot be published"):
        copied_weights(torch.nn.Linear(1, 1, dtype=torch.bfloat16))


def test_the_age_of_the_newest_cut_is_exported_once_a_second_and_grows_while_publishing_fails(tmp_path: Path) -> None:
    clock = FakeClock(now_s=1000.0)
    exported: list[tuple[str, float, tuple[str, ...]]] = []
    hook = PublishHook(tmp_path)
    hook.export = lambda metric, value, labels: exported.append((metric.name, value, labels))
    run: Any = SimpleNamespace(clock=clock)
    result: Any = SimpleNamespace(batch=mt.data.Batch.from_arrays(label=[0.0]))
    hook.after_step(run, result)
    assert exported == [], "without a publisher there is no age"
    publisher: Any = SimpleNamespace(newest=SimpleNamespace(published_at_s=998.0))
    hook._publisher = publisher
    for _ in range(3):
        hook.after_step(run, result)
    clock.sleep_s(60.0)
    hook.after_step(run, result)
    ages = [value for name, value, _ in exported if name == "monolith_publish_age_seconds"]
    assert ages == [2.0, 62.0]
    assert ("monolith_background_thread_up", 0.0, ("publish",)) in exported, "the thread is not running"

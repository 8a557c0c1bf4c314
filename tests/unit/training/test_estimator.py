from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
from monolith.artifacts import CheckpointFolder
from monolith.artifacts.checkpoint_manifest import read_manifest
from monolith.core.errors import (
    ArtifactError,
    CheckpointMissing,
    ConfigError,
    DataError,
    MonolithError,
    SchemaMismatch,
    TrainingDiverged,
)
from monolith.demo.world import World
from monolith.embedding import Adagrad, Sgd
from monolith.testing.eventually import eventually
from monolith.testing.fakes.clock import FakeClock
from monolith.training.hooks import Hook


class Clicker(mt.Model):
    """Biases of users and items, a vector of items, a price; one head."""

    def __init__(self, *, features: Sequence[str] = ("user_id", "item_id"), bias_first: bool = True) -> None:
        super().__init__()
        for name, slot in zip(("user_id", "item_id", "gender", "category"), (1, 2, 3, 4), strict=True):
            if name in features:
                self.embedding_feature(name, slot=slot)
        self.dense_feature("price")
        makers: list[Callable[[], None]] = [self._add_bias, self._add_vector]
        self.features = list(features)
        for make in makers if bias_first else reversed(makers):
            make()
        self.tower = torch.nn.Linear(2, 1)

    def _add_bias(self) -> None:
        self.bias = self.embedding_slice(self.features, "bias", 1, optimizer=Adagrad(0.1), out="add_n")

    def _add_vector(self) -> None:
        self.vector = self.embedding_slice("item_id", "vector", 1, optimizer=Adagrad(0.1))

    def forward(self, batch: Any) -> mt.Output | list[mt.Output]:
        inputs = torch.cat([self.vector(batch), batch.dense["price"].log1p()], dim=1)
        logits = (self.bias(batch) + self.tower(inputs)).squeeze(1)
        return mt.Output(logits=logits, label=batch.label[:, 0])


class TwoHeads(Clicker):
    """A probability and a number, with an output of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.declaration.labels = 2

    def forward(self, batch: Any) -> list[mt.Output]:
        said = super().forward(batch)
        assert isinstance(said, mt.Output)
        value = self.bias(batch).squeeze(1)
        return [
            said,
            mt.Output(
                head="like",
                predictions=value,
                label=batch.label[:, 1],
                loss=(value - batch.label[:, 1]) ** 2,
                is_classification=False,
                extra={"vector": self.vector(batch)},
            ),
        ]


CLICKS = World(users=50, items=30, seed=2).clicks(640)


def rows(first: int = 0, last: int = 640, labels: Any = 1) -> mt.data.Dataset:
    return CLICKS.rows(first, last).dataset(labels=labels)


def config(model_dir: Path | str = "", **options: Any) -> mt.RunConfig:
    quiet = {"log_step_count_steps": 0, "save_summary_steps": 0, "deterministic": True, "threads": 1}
    return mt.RunConfig(model_dir=str(model_dir), **{**quiet, **options})


def table_rows(estimator: mt.Estimator) -> dict[str, dict[int, list[float]]]:
    """All rows, with their optimizer state."""
    found = {}
    for name in estimator.store:
        table = estimator.store[name]
        ids = sorted(fid for ids, _ in table.items() for fid in ids.tolist())
        entries = [table.entry(fid) for fid in ids]
        found[name] = {
            one.id: [one.time_s, *one.values.tolist(), *(x for state in one.state for v in state.values() for x in v)]
            for one in entries
        }
    return found


def weights(estimator: mt.Estimator) -> dict[str, list[float]]:
    return {name: estimator.get_variable_value(name).reshape(-1).tolist() for name in estimator.get_variable_names()}


def saved_steps(folder: Path) -> list[int]:
    return [saved.step for saved in CheckpointFolder(folder / "checkpoints").saved()]


# --- steps -----------------------------------------------------------------------------------------------------------


def test_steps_are_of_the_call_and_max_steps_of_the_folder(tmp_path: Path) -> None:
    estimator = mt.Estimator(Clicker, config(tmp_path))
    data = rows().batch(32)
    estimator.train(data, steps=3)
    assert estimator.step == 3
    estimator.train(data, max_steps=5)
    estimator.train(data, steps=2)
    assert estimator.step == 7
    again = mt.Estimator(Clicker, config(tmp_path))
    assert again.train(data, max_steps=7) == {}, "reached already"
    again.train(data, max_steps=8)
    assert again.step == 8
    again.train(data, steps=2, max_steps=9)
    assert again.step == 9, "the nearer limit counts"
    again.train(data, steps=1, max_steps=20)
    assert again.step == 10
    with pytest.raises(ConfigError, match=r"steps is 0, expected a whole number from 1 up"):
        again.train(data, steps=0)


def test_the_end_of_the_data_ends_the_call_and_the_next_one_begins_anew(tmp_path: Path) -> None:
    estimator = mt.Estimator(Clicker, config(tmp_path))
    estimator.train(rows().batch(64))
    assert estimator.step == 10
    again = mt.Estimator(Clicker, config(tmp_path))
    again.train(rows().batch(64), steps=4)
    assert again.step == 14


def test_a_list_of_batches_goes_on_where_it_stopped(tmp_path: Path) -> None:
    schema = Clicker().declaration.schema()
    batches = list(rows().with_schema(schema).batch(64))
    whole = mt.Estimator(Clicker, config(tmp_path / "whole"))
    whole.train(batches, max_steps=6)
    mt.Estimator(Clicker, config(tmp_path / "parts")).train(batches, max_steps=4)
    parts = mt.Estimator(Clicker, config(tmp_path / "parts"))
    parts.train(batches, max_steps=6)
    assert weights(parts) == weights(whole)
    assert table_rows(parts) == table_rows(whole)
    with pytest.raises(DataError, match=r"position is .*a list of 2 batches.* resume_data=False"):
        mt.Estimator(Clicker, config(tmp_path / "parts")).train(batches[:2], steps=1)


def test_data_that_ended_exactly_with_the_last_run_is_finished_without_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mt.Estimator(Clicker, config(tmp_path)).train(rows().batch(64), max_steps=10)
    estimator = mt.Estimator(Clicker, config(tmp_path))
    estimator.train(rows().batch(64))
    assert estimator.step == 10
    assert "the data ends where the last run stopped, nothing was trained step=10" in caplog.text
    estimator.train(rows().batch(64), steps=1)
    assert estimator.step == 11


def test_training_without_a_folder_saves_nothing_and_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    estimator = mt.Estimator(Clicker, config())
    estimator.train(rows().batch(64), steps=2)
    estimator.train(rows().batch(64), steps=2)
    assert estimator.evaluate(rows().batch(64))["global_step"] == 4
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointMissing, match=r"no model_dir; give RunConfig\(model_dir=...\)"):
        estimator.evaluate(rows().batch(64), checkpoint=tmp_path)


def test_the_model_made_by_the_estimator_depends_on_the_seed_alone() -> None:
    one, same, other = (mt.Estimator(Clicker, config(seed=seed)) for seed in (1, 1, 2))
    assert weights(one) == weights(same) != weights(other)


# --- bad input -------------------------------------------------------------------------------------------------------


def diverging_batches() -> list[mt.Batch]:
    """The logarithm of the fourth one's price is NaN."""
    good = mt.Batch.from_arrays(ids={"user_id": [[1]], "item_id": [[2]]}, dense={"price": [[1.0]]}, label=[1])
    bad = mt.Batch.from_arrays(ids={"user_id": [[1]], "item_id": [[2]]}, dense={"price": [[-2.0]]}, label=[1])
    return [good, good, good, bad, good]


LATE = {"embedding_prefetch_capacity": 1, "enable_embedding_postpush": True, "enable_variable_postpush": True}


@pytest.mark.parametrize("options", [{}, LATE], ids=["sequential", "pipelined"])
def test_a_loss_that_is_not_finite_names_step_head_and_last_checkpoint_and_changes_nothing(
    options: dict[str, Any], tmp_path: Path
) -> None:
    good = mt.Estimator(Clicker, config(tmp_path / "good", save_checkpoints_steps=2, **options))
    good.train(diverging_batches()[:3])
    estimator = mt.Estimator(Clicker, config(tmp_path / "bad", save_checkpoints_steps=2, **options))
    with pytest.raises(TrainingDiverged) as raised:
        estimator.train(diverging_batches())
    assert str(raised.value) == (
        f"step 4: the loss is not finite (ctr = nan); nothing of it was applied. The last good checkpoint is "
        f"{tmp_path / 'bad' / 'checkpoints' / 'step-000000002'}: "
        "lower the learning rates or check the data, then resume."
    )
    assert estimator.step == 3
    assert weights(estimator) == weights(good)
    assert table_rows(estimator) == table_rows(good)


def test_a_gradient_that_is_not_finite_stops_like_a_loss() -> None:
    class Cliff(Clicker):
        def forward(self, batch: Any) -> mt.Output:
            value = self.bias(batch).squeeze(1)
            return mt.Output(predictions=value, loss=(value * 0).abs().sqrt())  # 0, with a slope of 0 / 0

    estimator = mt.Estimator(Cliff, config())
    with pytest.raises(
        TrainingDiverged, match=r"step 1: the gradient of rows of 'item_id' and of rows of 'user_id' is"
    ):
        estimator.train(diverging_batches())
    assert table_rows(estimator) == {"item_id": {}, "user_id": {}}


def without(name: str) -> mt.Batch:
    ids = {"user_id": [[1]], "item_id": [[2]]}
    dense = {"price": [[1.0]]}
    return mt.Batch.from_arrays(
        ids={key: value for key, value in ids.items() if key != name},
        dense={key: value for key, value in dense.items() if key != name},
        label=[1],
    )


def test_a_missing_feature_is_named_with_those_that_are_there() -> None:
    estimator = mt.Estimator(Clicker, config())
    with pytest.raises(SchemaMismatch, match=r"no feature 'item_id', which the model declares; it has user_id\. Read"):
        estimator.train([without("item_id")])
    with pytest.raises(SchemaMismatch, match=r"no dense feature 'price', which the model declares; it has none\. Read"):
        estimator.train([without("price")])
    wide = mt.Batch.from_arrays(ids={"user_id": [[1]], "item_id": [[2]]}, dense={"price": [[1.0, 2.0]]}, label=[1])
    with pytest.raises(
        SchemaMismatch, match=r"'price' has shape \(1, 2\), the model declares width 1 for a batch of 1"
    ):
        estimator.train([wide])


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SchemaMismatch, match=r"the batch has 1 labels per row, expected the 2"):
        mt.Estimator(TwoHeads, config()).train(diverging_batches())

    class Columns(Clicker):
        def forward(self, batch: Any) -> mt.Output:
            return mt.Output(logits=self.bias(batch).squeeze(1), label=batch.label)

    with pytest.raises(SchemaMismatch, match=r"head 'ctr' has a label of shape \(1, 1\); take one column"):
        mt.Estimator(Columns, config()).train(diverging_batches())

    class OwnLabel(Clicker):
        def forward(self, batch: Any) -> mt.Output:
            value = self.bias(batch).squeeze(1)
            return mt.Output(predictions=value, label=batch.label * 2, loss=value)

    with pytest.raises(ConfigError, match=r"label of head 'ctr' has shape \(1, 1\) for a batch of 1"):
        mt.Estimator(OwnLabel, config()).train(diverging_batches())


def test_a_model_without_a_loss_is_told_so() -> None:
    class Mute(Clicker):
        def forward(self, batch: Any) -> mt.Output:
            return mt.Output(predictions=self.bias(batch).squeeze(1))

    with pytest.raises(ConfigError, match=r"no head \(ctr\) has a loss; give Output a label"):
        mt.Estimator(Mute, config()).train(diverging_batches())


@pytest.mark.parametrize("data", ["clicks.pb", Path("clicks.pb"), 7], ids=repr)
def test_what_is_no_data_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match=r"the data is .*, expected a dataset, e\.g\. mt\.data\.files"):
        mt.Estimator(Clicker, config()).train(data)


def test_a_list_of_other_things_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the data holds a dict, expected a Batch"):
        mt.Estimator(Clicker, config()).train([{"user_id": 1}])  # type: ignore[list-item]


def test_empty_data_is_an_error_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    estimator = mt.Estimator(Clicker, config(tmp_path))
    nothing = rows().filter_by_label(thresholds=[2.0]).batch(8)
    with pytest.raises(DataError, match=r"the data gave no batch to train on; check the patterns and filters"):
        estimator.train(nothing)
    assert saved_steps(tmp_path) == []
    with pytest.raises(CheckpointMissing, match="train first"):
        mt.Estimator(Clicker, config(tmp_path)).evaluate(nothing)
    estimator.train(rows().batch(64), steps=1)
    with pytest.raises(DataError, match="the data gave no batch to evaluate"):
        estimator.evaluate(nothing)


def test_single_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the dataset gives single rows; add \.batch\(n\) to it"):
        mt.Estimator(Clicker, config()).train(rows())


def test_other_steps_of_the_data_on_resume_are_refused_with_the_way_out(tmp_path: Path) -> None:
    mt.Estimator(Clicker, config(tmp_path)).train(rows().batch(64), steps=2)
    estimator = mt.Estimator(Clicker, config(tmp_path))
    with pytest.raises(DataError, match=r"restore it into the same steps.* resume_data=False"):
        estimator.train(rows().shuffle(100).batch(64), steps=2)
    estimator.train(rows().shuffle(100).batch(64), steps=2, resume_data=False)
    assert estimator.step == 4


def test_how_far_is_read_ahead_may_change_between_runs(tmp_path: Path) -> None:
    for capacity in (2, 0, 3):
        mt.Estimator(Clicker, config(tmp_path, batch_prefetch_capacity=capacity)).train(rows().batch(64), steps=1)
    assert saved_steps(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("options", [{}, LATE], ids=["sequential", "pipelined"])
@pytest.mark.parametrize("wrong", ["no feature", "no batch"])
def test_what_is_wrong_with_a_batch_is_told_when_its_turn_comes(
    wrong: str, options: dict[str, Any], tmp_path: Path
) -> None:
    good = diverging_batches()[0]
    bad: Any = without("item_id") if wrong == "no feature" else "nothing"
    estimator = mt.Estimator(Clicker, config(tmp_path, save_checkpoints_steps=1, **options))
    with pytest.raises((SchemaMismatch, ConfigError)):
        estimator.train([good, good, bad])
    estimator.close()
    assert saved_steps(tmp_path) == [1, 2]
    other = mt.Estimator(Clicker, config(tmp_path / "other", **options))
    other.train([good, good, bad], max_steps=2)
    assert saved_steps(tmp_path / "other") == [2]


# --- restoring into a changed model ----------------------------------------------------------------------------------


def test_a_changed_feature_set_keeps_what_is_common(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = mt.Estimator(Clicker, config(tmp_path))
    before.train(rows().batch(64), steps=3)
    old = table_rows(before)
    after = mt.Estimator(lambda: Clicker(features=["item_id", "gender"]), config(tmp_path))
    assert after.step == 3
    assert table_rows(after) == {"item_id": old["item_id"], "gender": {}}
    assert "not in the model, skipped tables=user_id" in caplog.text
    assert "starting empty tables=gender" in caplog.text
    after.train(rows().batch(64), steps=1)
    assert len(table_rows(after)["gender"]) == 3


def test_slices_that_changed_places_are_refused_each_time(tmp_path: Path) -> None:
    mt.Estimator(Clicker, config(tmp_path)).train(rows().batch(64), steps=1)
    estimator = mt.Estimator(lambda: Clicker(bias_first=False), config(tmp_path))
    for _ in range(2):
        with pytest.raises(SchemaMismatch, match=r"rows of 'item_id' in .* have the slices bias, vector, those of the"):
            estimator.train(rows().batch(64), steps=1)
    with pytest.raises(SchemaMismatch, match="declare them in the order of the checkpoint"):
        estimator.evaluate(rows().batch(64))
    assert saved_steps(tmp_path) == [1]


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    estimator = mt.Estimator(Clicker, config(tmp_path))
    estimator.train(rows().batch(64), steps=1)
    with pytest.raises(ArtifactError, match="nowhere"):
        estimator.evaluate(rows().batch(64), checkpoint=tmp_path / "nowhere")
    with pytest.raises(CheckpointMissing, match=r"checkpoint is '9'.*step-000000001"):
        mt.Estimator(Clicker, config(tmp_path, restore_ckpt="9")).train(rows().batch(64), steps=1)


# --- evaluating and predicting ---------------------------------------------------------------------------------------


def test_evaluating_and_predicting_change_nothing(tmp_path: Path) -> None:
    estimator = mt.Estimator(Clicker, config(tmp_path))
    estimator.train(rows(0, 320).batch(64))
    before = weights(estimator), table_rows(estimator), torch.get_rng_state().tolist(), estimator.model.training
    estimator.evaluate(rows().batch(64))  # with ids that were never trained
    list(estimator.predict(rows().batch(64)))
    after = weights(estimator), table_rows(estimator), torch.get_rng_state().tolist(), estimator.model.training
    assert after == before
    assert saved_steps(tmp_path) == [5]


def test_an_older_checkpoint_can_be_evaluated_and_training_goes_on_from_the_newest(tmp_path: Path) -> None:
    estimator = mt.Estimator(Clicker, config(tmp_path, save_checkpoints_steps=2))
    estimator.train(rows().batch(64), steps=2)
    early = estimator.evaluate(rows().batch(64))
    estimator.train(rows().batch(64), steps=2)
    late, trained = estimator.evaluate(rows().batch(64)), (weights(estimator), table_rows(estimator))
    oldest = CheckpointFolder(tmp_path / "checkpoints").saved()[0]
    assert estimator.evaluate(rows().batch(64), checkpoint=oldest.path) == early != late
    estimator.train(rows().batch(64), max_steps=4)
    assert estimator.step == 4
    assert (weights(estimator), table_rows(estimator)) == trained
    reader = mt.Estimator(Clicker, config(tmp_path))
    assert reader.evaluate(rows().batch(64)) == late


def test_heads_have_their_own_metrics_and_extra_outputs(tmp_path: Path) -> None:
    estimator = mt.Estimator(TwoHeads, config(tmp_path))
    trained = estimator.train(rows(labels=2).batch(64))
    found = estimator.evaluate(rows(labels=2).batch(64))
    assert set(found) == {
        "loss", "ctr/auc", "ctr/log_loss", "ctr/calibration", "like/mse", "like/calibration", "samples", "global_step",
    }  # fmt: skip
    assert set(trained) == set(found) - {"samples", "global_step"}
    assert found["samples"] == 640
    said = list(estimator.predict(rows(labels=2).batch(64)))
    assert [set(one) for one in said] == [{"ctr", "like", "vector"}] * 10
    assert {name: value.shape for name, value in said[0].items()} == {"ctr": (64,), "like": (64,), "vector": (64, 1)}
    predictions = np.concatenate([one["ctr"] for one in said])
    assert found["ctr/auc"] == pytest.approx(CLICKS.auc(predictions), abs=1e-9)


def test_two_outputs_of_one_name_are_refused() -> None:
    class Twice(Clicker):
        def forward(self, batch: Any) -> mt.Output:
            value = self.bias(batch).squeeze(1)
            return mt.Output(logits=value, label=batch.label[:, 0], extra={"ctr": value})

    with pytest.raises(ConfigError, match=r"two outputs are called 'ctr'"):
        list(mt.Estimator(Twice, config()).predict(diverging_batches()))


def test_metrics_of_training_score_each_batch_before_it_is_learnt_from(tmp_path: Path) -> None:
    estimator = mt.Estimator(Clicker, config(tmp_path / "a"))
    found = estimator.train(rows().batch(64))
    stepwise = mt.Estimator(Clicker, config(tmp_path / "b"))
    batches = list(rows().batch(64))
    predictions = []
    for batch in batches:
        predictions += [one["ctr"] for one in stepwise.predict([batch])] if predictions else [first(stepwise, batch)]
        stepwise.train([batch], resume_data=False)
    assert found["ctr/auc"] == CLICKS.auc(np.concatenate(predictions))
    scores = np.concatenate(predictions).astype(np.float64)
    log_loss = -np.where(CLICKS.click > 0, np.log(scores), np.log1p(-scores)).mean()
    assert found["ctr/log_loss"] == pytest.approx(log_loss, rel=1e-6)
    assert found["loss"] == pytest.approx(log_loss, rel=1e-5)
    assert found["ctr/calibration"] == pytest.approx(scores.sum() / CLICKS.click.sum(), rel=1e-6)


def first(estimator: mt.Estimator, batch: mt.Batch) -> np.ndarray[Any, Any]:
    """What the untrained model says; there is no checkpoint to load yet."""
    with torch.no_grad():
        said = torch.sigmoid(estimator.model(batch).logits).numpy()
    return said  # type: ignore[no-any-return]


@pytest.mark.parametrize(("steps_per_eval", "evaluations"), [(4, [4, 8, 10]), (5, [5, 10]), (100, [10])])
@pytest.mark.parametrize("kind", ["dataset", "list"])
def test_train_and_evaluate_ends_with_the_data(
    steps_per_eval: int, evaluations: list[int], kind: str, tmp_path: Path
) -> None:
    estimator = mt.Estimator(Clicker, config(tmp_path))
    data: Any = rows().batch(64)
    if kind == "list":
        data = list(data)
    found = estimator.train_and_evaluate(data, rows(0, 64).batch(64), steps_per_eval=steps_per_eval)
    assert [one["global_step"] for one in found] == evaluations


@pytest.mark.timeout(60)
@pytest.mark.parametrize("steps_per_eval", [0, -3, None])
def test_train_and_evaluate_refuses_periods_without_a_step(steps_per_eval: Any) -> None:
    batches = list(rows(0, 64).batch(32).with_schema(Clicker().declaration.schema()))
    with pytest.raises(ConfigError, match=f"steps_per_eval is {steps_per_eval}, expected a whole number from 1 up"):
        mt.Estimator(Clicker, config()).train_and_evaluate(batches, batches, steps_per_eval=steps_per_eval)


@pytest.mark.parametrize("steps", [0, -1])
def test_an_evaluation_without_a_step_is_refused(steps: int) -> None:
    estimator = mt.Estimator(Clicker, config())
    with pytest.raises(ConfigError, match=f"^steps is {steps}, expected a whole number from 1 up"):
        estimator.evaluate(rows(0, 64).batch(32), steps)
    with pytest.raises(ConfigError, match=f"^eval_steps is {steps}, expected a whole number from 1 up"):
        estimator.train_and_evaluate(rows(0, 64).batch(32), rows(0, 64).batch(32), eval_steps=steps)


def test_train_and_evaluate_stops_at_max_steps_and_gives_the_same_model_as_training(tmp_path: Path) -> None:
    estimator = mt.Estimator(Clicker, config(tmp_path / "a"))
    found = estimator.train_and_evaluate(rows().batch(64), rows().batch(64), max_steps=7, steps_per_eval=3)
    assert [one["global_step"] for one in found] == [3, 6, 7]
    again = estimator.train_and_evaluate(rows().batch(64), rows().batch(64), max_steps=7, steps_per_eval=3)
    assert again == []
    alone = mt.Estimator(Clicker, config(tmp_path / "b"))
    alone.train(rows().batch(64), max_steps=7)
    assert weights(estimator) == weights(alone)
    assert table_rows(estimator) == table_rows(alone)


@pytest.mark.parametrize("steps", [3, 4])
def test_a_stop_ends_train_and_evaluate_also_in_the_step_before_an_evaluation(steps: int) -> None:
    class Stops(Hook):
        def after_step(self, run: Any, result: Any) -> None:
            if result.step == steps:
                run.stop("enough")

    estimator = mt.Estimator(Clicker, config(), hooks=[Stops()])
    found = estimator.train_and_evaluate(rows().batch(64), rows(0, 64).batch(64), max_steps=9, steps_per_eval=3)
    assert estimator.step == steps
    assert found[-1]["global_step"] == steps


# --- hooks and other threads -----------------------------------------------------------------------------------------


class Diary(Hook):
    """Writes down what it is called for."""

    def __init__(self, name: str, entries: list[str]) -> None:
        self._name = name
        self._entries = entries

    def _write(self, what: str) -> None:
        self._entries.append(f"{self._name} {what}")

    def on_start(self, run: Any) -> None:
        self._write("start")

    def before_step(self, run: Any) -> None:
        self._write(f"before {run.step}")

    def after_step(self, run: Any, result: Any) -> None:
        self._write(f"after {result.step}")

    def before_save(self, run: Any) -> None:
        self._write("saving")

    def after_save(self, run: Any, path: Path) -> None:
        self._write(f"saved {path.name}")

    def on_end(self, run: Any, error: BaseException | None) -> None:
        self._write(f"end {error}")


def test_hooks_are_called_in_order_and_ended_in_reverse(tmp_path: Path) -> None:
    said: list[str] = []
    estimator = mt.Estimator(Clicker, config(tmp_path), hooks=[Diary("a", said)])
    estimator.train(rows().batch(64), steps=1, hooks=[Diary("b", said)])
    assert said == [
        "a start", "b start", "a before 0", "b before 0", "a after 1", "b after 1", "a saving", "b saving",
        "a saved step-000000001", "b saved step-000000001", "b end None", "a end None",
    ]  # fmt: skip


class Failing(Hook):
    def __init__(self, where: str) -> None:
        self._where = where

    def _fail(self, where: str) -> None:
        if where == self._where:
            raise RuntimeError(f"failed at {where}")

    def on_start(self, run: Any) -> None:
        self._fail("start")

    def after_step(self, run: Any, result: Any) -> None:
        self._fail("step")

    def on_end(self, run: Any, error: BaseException | None) -> None:
        self._fail("end")


@pytest.mark.parametrize(
    ("where", "ended"), [("start", ["a"]), ("step", ["b", "a"]), ("end", ["b", "a"])], ids=["start", "step", "end"]
)
def test_a_hook_that_fails_ends_the_run_and_every_hook_that_began(
    where: str, ended: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    estimator = mt.Estimator(Clicker, config(tmp_path))
    with pytest.raises(RuntimeError, match=f"failed at {where}"):
        estimator.train(rows().batch(64), steps=2, hooks=[Diary("a", said), Failing(where), Diary("b", said)])
    ends = [each for each in said if " end " in each]
    failure = "None" if where == "end" else f"failed at {where}"
    assert ends == [f"{name} end {failure}" for name in ended]
    assert saved_steps(tmp_path) == ([2] if where == "end" else [])
    assert ("hook failed at the end of the run hook=Failing" in caplog.text) == (where == "end")


class Steered(Hook):
    """Lets the test do something in another thread while the loop stands in a step."""

    def __init__(self, at_step: int, act: Callable[[Any], None]) -> None:
        self._at_step = at_step
        self._act = act
        self._thread: threading.Thread | None = None

    def after_step(self, run: Any, result: Any) -> None:
        if result.step == self._at_step:
            self._thread = threading.Thread(target=self._act, args=(run,))
            self._thread.start()

    def on_end(self, run: Any, error: BaseException | None) -> None:
        if self._thread is not None:
            self._thread.join(60)


def wait_until(said: Callable[[], bool]) -> None:
    eventually(said)


def test_a_run_can_be_paused_saved_and_resumed_from_another_thread(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def act(run: Any) -> None:
        seen["first"], seen["second"] = run.pause(), run.pause()
        wait_until(lambda: run.is_paused)
        seen["step"] = run.step
        seen["saved"] = run.save("asked for")
        seen["still"] = run.is_paused, run.step
        run.resume()
        run.stop("seen enough")

    estimator = mt.Estimator(Clicker, config(tmp_path))
    estimator.train(rows().repeat().batch(64), hooks=[Steered(3, act)])
    assert (seen["first"], seen["second"]) == (True, False)
    assert seen["still"] == (True, seen["step"])
    assert seen["saved"] == tmp_path / "checkpoints" / f"step-{seen['step']:09d}"
    assert read_manifest(seen["saved"]).reason == "asked for"
    assert estimator.step >= seen["step"]
    assert saved_steps(tmp_path)[-1] == estimator.step, "the stop saves"


def test_a_run_that_is_held_at_its_end_does_not_stand_still_for_ever(tmp_path: Path) -> None:
    class PauseAtEnd(Hook):
        def after_step(self, run: Any, result: Any) -> None:
            if result.step == 2:
                run.pause()

    estimator = mt.Estimator(Clicker, config(tmp_path))
    estimator.train(rows().batch(64), steps=2, hooks=[PauseAtEnd()])
    assert saved_steps(tmp_path) == [2]


@pytest.mark.parametrize("is_in_the_way", [False, True])
def test_the_source_commits_positions_of_durable_checkpoints_only(
    is_in_the_way: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: list[Any] = []
    monkeypatch.setattr(mt.data.Dataset, "committed", lambda self, position: committed.append(position))
    estimator = mt.Estimator(Clicker, config(tmp_path, save_checkpoints_steps=2))
    if is_in_the_way:
        (tmp_path / "checkpoints").write_text("a file in the place of the folder")
        with pytest.raises(ArtifactError, match="was not saved"):
            estimator.train(rows().batch(64), steps=4)
        assert committed == []
    else:
        estimator.train(rows().batch(64), steps=4)
        assert len(committed) >= 2


def test_a_save_that_another_thread_asked_for_and_that_fails_is_told_there_and_the_run_goes_on(tmp_path: Path) -> None:
    told: list[Exception] = []

    def act(run: Any) -> None:
        (tmp_path / "checkpoints").rmdir()
        (tmp_path / "checkpoints").write_text("in the way")
        try:
            run.save("asked for")
        except MonolithError as error:
            told.append(error)
        (tmp_path / "checkpoints").unlink()
        run.stop("seen enough")

    estimator = mt.Estimator(Clicker, config(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    estimator.train(rows().repeat().batch(64), hooks=[Steered(2, act)])
    assert "was not saved" in str(told[0])
    assert saved_steps(tmp_path) == [estimator.step]


def test_a_hook_that_fails_while_another_thread_waits_for_a_save_leaves_nobody_waiting(tmp_path: Path) -> None:
    class Full(Hook):
        def before_save(self, run: Any) -> None:
            raise RuntimeError("cannot")

    told: list[Exception] = []

    def act(run: Any) -> None:
        try:
            run.save("asked for")
        except Exception as error:
            told.append(error)

    estimator = mt.Estimator(Clicker, config(tmp_path))
    with pytest.raises(RuntimeError, match="cannot"):
        estimator.train(rows().repeat().batch(64), hooks=[Steered(2, act), Full()])
    assert [str(error) for error in told] == ["cannot"]


def test_a_save_after_the_end_is_refused(tmp_path: Path) -> None:
    kept: list[Any] = []

    class Keep(Hook):
        def on_start(self, run: Any) -> None:
            kept.append(run)

    mt.Estimator(Clicker, config(tmp_path)).train(rows().batch(64), steps=1, hooks=[Keep()])
    with pytest.raises(MonolithError, match="the run is over"):
        kept[0].save("too late")


# --- what settings ask for -------------------------------------------------------------------------------------------


def test_summaries_profile_stop_file_and_predictions_come_from_the_settings(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (tmp_path / "stop_12").touch()
    estimator = mt.Estimator(
        Clicker,
        config(
            tmp_path,
            save_summary_steps=5,
            log_step_count_steps=5,
            profile_some_steps_from=1,
            prediction_path=str(tmp_path / "said"),
            deep_insight_sample_ratio=1.0,
        ),
    )
    estimator.train(rows().repeat().batch(64))
    assert estimator.step == 12
    assert [path.name for path in (tmp_path / "profile").iterdir()] == ["steps-000000002-000000011.json"]
    assert json.loads((tmp_path / "profile" / "steps-000000002-000000011.json").read_text())["traceEvents"]
    assert any((tmp_path / "said").iterdir())
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [5, 10, 12]
    assert [event.step for event in events.Scalars("ctr/auc")] == [5, 10, 12]


def test_saves_follow_seconds_and_the_tide(tmp_path: Path) -> None:
    clock = FakeClock(now_s=1_700_000_000.0)  # 22:13 UTC

    class Tick(Hook):
        def after_step(self, run: Any, result: Any) -> None:
            clock.advance_s(10.0)

    estimator = mt.Estimator(
        Clicker,
        config(tmp_path, save_checkpoints_secs=1000.0, tide_start_hour=1, tide_end_hour=2, tide_save_secs=30.0),
        clock=clock,
    )
    estimator.train(rows().batch(64), hooks=[Tick()])
    assert saved_steps(tmp_path) == [3, 6, 9, 10]


def test_dense_only_saves_are_beside_the_full_ones(tmp_path: Path) -> None:
    estimator = mt.Estimator(Clicker, config(tmp_path, save_checkpoints_steps=6, dense_only_save_checkpoints_steps=4))
    estimator.train(rows().batch(64))
    assert saved_steps(tmp_path) == [6, 10]
    assert [saved.step for saved in CheckpointFolder(tmp_path / "dense_only").saved()] == [4, 8]


def test_progressive_validation_can_be_left_out(tmp_path: Path) -> None:
    estimator = mt.Estimator(Clicker, config(tmp_path, progressive_validation=False))
    assert estimator.train(rows().batch(64), steps=2) == {}


def test_weights_are_shown_by_name() -> None:
    estimator = mt.Estimator(Clicker, config())
    assert estimator.get_variable_names() == ["tower.weight", "tower.bias"]
    with pytest.raises(ConfigError, match=r"no weight 'towel'; it has tower.weight, tower.bias"):
        estimator.get_variable_value("towel")


def test_what_makes_no_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the model is a Linear, expected a monolith.Model"):
        mt.Estimator(lambda: torch.nn.Linear(1, 1), config())  # type: ignore[arg-type,return-value]


def test_late_dense_updates_touch_only_the_weights_of_their_own_step() -> None:
    class Alternating(mt.Model):
        """Uses one of two weights, by the label; the gradient of each is 1."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding_feature("f", slot=1)
            self.row = self.embedding_slice("f", "row", 1, optimizer=Sgd(0.0))
            self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(())) for _ in range(2)])

        def forward(self, batch: Any) -> mt.Output:
            value = self.row(batch).squeeze(1) + self.weights[int(batch.label[0, 0])]
            return mt.Output(predictions=value, loss=value)

    batches = [mt.Batch.from_arrays(ids={"f": [[1]]}, label=[label]) for label in (0, 1, 0, 1, 0)]
    estimator = mt.Estimator(
        Alternating, config(enable_variable_postpush=True, dense_optimizer="sgd", dense_learning_rate=1.0)
    )
    estimator.train(batches)
    assert weights(estimator) == {"weights.0": [-3.0], "weights.1": [-2.0]}


def test_a_list_that_was_read_to_its_end_is_read_again(tmp_path: Path) -> None:
    batches = list(rows(0, 96).batch(32))
    estimator = mt.Estimator(Clicker, config(tmp_path))
    for _ in range(3):
        estimator.train(batches, steps=3)
    assert estimator.step == 9


def test_another_list_is_read_from_its_beginning(tmp_path: Path) -> None:
    estimator = mt.Estimator(Clicker, config(tmp_path))
    estimator.train(list(rows(0, 128).batch(32)), steps=2)
    estimator.train(list(rows(128, 224).batch(32)))
    assert estimator.step == 5

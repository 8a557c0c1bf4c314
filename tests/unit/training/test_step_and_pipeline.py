import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import monolith as mt
from monolith.core.errors import ClusterError, ConfigError, MonolithError, SchemaMismatch, TrainingDiverged
from monolith.embedding import MultiTable, Ones, Sgd, Zeros
from monolith.layers.clipping import ClippingConfig, GradClipType
from monolith.training.heads import compute_losses
from monolith.training.pipeline import Pipeline
from monolith.training.step import Stepper


class Adder(mt.Model):
    """loss = sum of an embedding of 3 columns + one weight: every gradient is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("f", slot=1)
        self.used = self.embedding_slice("f", "used", 3, optimizer=Sgd(1.0), initializer=Ones())
        self.unused = self.embedding_slice("f", "unused", 1, optimizer=Sgd(1.0), initializer=Ones())
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, batch: Any) -> mt.Output:
        total = self.used(batch).sum(1) + self.weight
        return mt.Output(predictions=total, loss=total)


def batch_of(ids: list[list[int]], **options: Any) -> mt.Batch:
    return mt.Batch.from_arrays(ids={"f": ids}, **options)


def stepper_of(model: mt.Model, clip: ClippingConfig | None = None, **options: Any) -> Stepper:
    store = MultiTable(model.declaration.table_specs())
    weights = list(model.parameters())
    optimizers = {"dense": torch.optim.SGD(weights, lr=1.0)} if weights else {}
    return Stepper(model, model.attach(store), optimizers, clip or ClippingConfig(clip_norm=None), **options)


def marked(batches: Any) -> Iterator[tuple[mt.Batch, Any]]:
    return ((batch, lambda: None) for batch in batches)


def rows_of(stepper: Stepper, ids: list[int]) -> list[list[float]]:
    store = stepper.embedder.store
    assert isinstance(store, MultiTable)
    found: list[list[float]] = store["f"].lookup(ids).tolist()
    return found


def take_steps(stepper: Stepper, steps: int, **options: Any) -> Pipeline:
    pipeline = Pipeline(stepper, marked(itertools.repeat(batch_of([[7]]))), **options)
    for step in range(steps):
        assert pipeline.run_step(step) is not None
    return pipeline


def test_one_norm_over_dense_and_sparse_gradients_is_clipped() -> None:
    stepper = stepper_of(Adder(), ClippingConfig(clip_norm=1.0))
    stepper.embedder.store.push({"f": np.array([7])}, {"f": np.zeros((1, 4), np.float32)})
    assert rows_of(stepper, [7]) == [[1, 1, 1, 1]]
    take_steps(stepper, 1)
    assert stepper.model.weight.item() == 0.5
    assert rows_of(stepper, [7]) == [[0.5, 0.5, 0.5, 1]]


@pytest.mark.parametrize(
    ("rule", "weight", "row"),
    [
        (ClippingConfig(clip_norm=2.0), 0.0, 0.0),
        (ClippingConfig(clip_norm=0.5, clip_type=GradClipType.ClipByValue), 0.5, 0.5),
        (ClippingConfig(clip_norm=0.5, clip_type=GradClipType.NoClip), 0.0, 0.0),
        (ClippingConfig(clip_norm=0.25, clip_type=GradClipType.ClipByDenseAndSparse), 0.75, 0.0),
        (ClippingConfig(clip_norm=4.0, sparse_clip_norm=1.0), 0.0, 0.5),
        (ClippingConfig(clip_norm=4.0, sparse_norm_warmup_steps=8), 0.0, 1.0),
    ],
)
def test_every_clipping_rule(rule: ClippingConfig, weight: float, row: float) -> None:
    stepper = stepper_of(Adder(), rule)
    stepper.embedder.store.push({"f": np.array([7])}, {"f": np.zeros((1, 4), np.float32)})
    take_steps(stepper, 1)
    assert stepper.model.weight.item() == pytest.approx(weight)
    assert rows_of(stepper, [7])[0][0] == pytest.approx(row)


@pytest.mark.parametrize("gradient", [1e20, 1e38])
def test_gradients_whose_squares_overflow_32_bits_are_clipped(gradient: float) -> None:
    stepper = stepper_of(Adder(), ClippingConfig(clip_norm=1.0))
    stepper.model.weight.register_hook(lambda grad: torch.full_like(grad, gradient))
    take_steps(stepper, 1)
    assert stepper.model.weight.item() == 0.0


def test_weight_decay_comes_after_clipping() -> None:
    stepper = stepper_of(Adder(), ClippingConfig(clip_norm=1.0), weight_decay=0.25)
    take_steps(stepper, 1)
    assert stepper.model.weight.item() == 1 - 0.5 - 0.25


def test_late_dense_updates_are_one_step_behind_and_rows_are_not() -> None:
    stepper = stepper_of(Adder())
    pipeline = take_steps(stepper, 3, late_dense=True)
    assert stepper.model.weight.item() == -1, "two of three updates are in"
    assert rows_of(stepper, [7])[0][0] == -2, "the row began at 1 and took three"
    pipeline.drain()
    assert stepper.model.weight.item() == -2


def test_a_late_push_is_one_step_behind_until_drained() -> None:
    stepper = stepper_of(Adder())
    pipeline = take_steps(stepper, 3, late_push=True)
    pipeline._pushes[0].result()
    assert rows_of(stepper, [7])[0][0] == -1
    pipeline.drain()
    assert rows_of(stepper, [7])[0][0] == -2
    pipeline.close()


class Echo(mt.Model):
    """Remembers the value of its one row at every step; the gradient is -1, so the value counts the updates seen."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("f", slot=1)
        self.value = self.embedding_slice("f", "value", 1, optimizer=Sgd(1.0), initializer=Zeros())
        self.seen: list[float] = []

    def forward(self, batch: Any) -> mt.Output:
        value = self.value(batch).squeeze(1)
        self.seen.append(value[0].item())
        return mt.Output(predictions=value, loss=-value)


@pytest.mark.parametrize(
    ("prefetch", "late_push", "seen"),
    [
        (0, False, [0, 1, 2, 3, 4, 5]),
        (1, False, [0, 0, 1, 2, 3, 4]),
        (3, False, [0, 0, 0, 0, 1, 2]),
        (0, True, [0, 0, 1, 2, 3, 4]),
        (2, True, [0, 0, 0, 0, 1, 2]),
    ],
)
def test_staleness_is_exactly_what_is_promised(prefetch: int, late_push: bool, seen: list[float]) -> None:
    model = Echo()
    pipeline = Pipeline(
        stepper_of(model), marked(itertools.repeat(batch_of([[7]]))), prefetch=prefetch, late_push=late_push
    )
    for step in range(6):
        pipeline.run_step(step)
    pipeline.close()
    assert model.seen == seen


def test_after_a_drain_nothing_is_stale() -> None:
    model = Echo()
    pipeline = Pipeline(stepper_of(model), marked(itertools.repeat(batch_of([[7]]))), prefetch=2, late_push=True)
    for step in range(4):
        pipeline.run_step(step)
    pipeline.drain()
    pipeline.run_step(4)
    pipeline.close()
    assert model.seen[-1] == 4


@pytest.mark.parametrize("late_push", [False, True])
def test_nobody_sees_the_state_of_a_step_that_failed_halfway(monkeypatch: pytest.MonkeyPatch, late_push: bool) -> None:
    stepper = stepper_of(Adder())
    pipeline = take_steps(stepper, 2, late_push=late_push)
    with pipeline.settled():
        assert rows_of(stepper, [7])[0][0] == -1.0

    def fail(*given: Any, **options: Any) -> None:
        raise ClusterError("server 1 is away")

    monkeypatch.setattr(stepper.embedder, "push", fail)
    if late_push:
        pipeline.run_step(2)  # its push is under way when somebody looks
    else:
        with pytest.raises(ClusterError):
            pipeline.run_step(2)
    with pytest.raises(MonolithError, match="failed halfway"), pipeline.settled():
        pass
    pipeline.close()


def test_every_batch_comes_once_whatever_is_read_ahead() -> None:
    model = Echo()
    pipeline = Pipeline(stepper_of(model), marked([batch_of([[n]]) for n in range(5)]), prefetch=3)
    sizes = [pipeline.run_step(step) for step in range(6)]
    pipeline.close()
    assert [each is not None for each in sizes] == [True] * 5 + [False]


def test_a_pull_that_fails_is_raised_by_its_step() -> None:
    pipeline = Pipeline(stepper_of(Echo()), marked([batch_of([[1]]), mt.Batch.from_arrays(label=[1])]), prefetch=1)
    pipeline.run_step(0)
    with pytest.raises(SchemaMismatch, match="no feature 'f'"):
        pipeline.run_step(1)
    pipeline.close()


class Head(mt.Model):
    """Says what it is told to say."""

    def __init__(self, say: Any, labels: int = 1) -> None:
        super().__init__(labels=labels)
        self.embedding_feature("f", slot=1)
        self.bias = self.embedding_slice("f", "bias", 1, optimizer=Sgd(1.0))
        self.say = say

    def forward(self, batch: Any) -> Any:
        return self.say(self.bias(batch).squeeze(1), batch)


def losses_of(say: Any, **options: Any) -> Any:
    batch = batch_of([[1], [2]], **options)
    model = Head(say)
    pulled = model.embedder.pull(batch)
    from monolith.features.autograd import embed

    embedded = embed(model.embedder, pulled).batch
    return compute_losses(model, model(embedded), embedded)


def test_a_column_of_the_labels_brings_its_mask() -> None:
    options = {"label": [[1, 0], [1, 1]], "label_mask": [[True, True], [True, False]]}
    for column, rows in ((0, 2), (1, 1)):
        heads = losses_of(lambda z, batch, c=column: mt.Output(logits=z, label=batch.label[:, c]), **options)
        assert heads.loss.item() == pytest.approx(rows * np.log(2))


@pytest.mark.parametrize(("method", "losses"), [("fnw", (0.415888, 2.079442)), ("fnc", (0.182322, 1.791759))])
def test_a_head_corrects_delayed_feedback_with_rate_weight_and_mask_of_the_batch(
    method: Any, losses: tuple[float, float]
) -> None:
    options = {"label": [1, 0], "label_mask": [[True], [True]], "weight": [3, 1], "sample_rate": [0.1, 0.1]}
    heads = losses_of(lambda z, batch: mt.Output(logits=z, label=batch.label[:, 0], delayed_feedback=method), **options)
    assert heads.loss.item() == pytest.approx(3 * losses[0] + losses[1], rel=1e-5)
    assert heads.predictions["ctr"].tolist() == [0.5, 0.5]
    options["label_mask"] = [[True], [False]]
    heads = losses_of(lambda z, batch: mt.Output(logits=z, label=batch.label[:, 0], delayed_feedback=method), **options)
    assert heads.loss.item() == pytest.approx(3 * losses[0], rel=1e-5)


def test_delayed_feedback_needs_a_known_method_and_logits() -> None:
    z: Any = torch.zeros(2)
    with pytest.raises(ConfigError, match="delayed_feedback of head 'ctr' is 'fnx'"):
        mt.Output(logits=z, delayed_feedback="fnx")  # type: ignore[arg-type]
    for options in ({"predictions": z}, {"logits": z, "loss": z}):
        with pytest.raises(ConfigError, match="delayed_feedback without logits or beside a loss"):
            mt.Output(delayed_feedback="fnw", **options)


def test_weights_and_sample_rates_of_the_batch_count() -> None:
    heads = losses_of(lambda z, batch: mt.Output(logits=z, label=batch.label[:, 0]), label=[1, 0], weight=[3, 1])
    assert heads.loss.item() == pytest.approx(4 * np.log(2))
    heads = losses_of(
        lambda z, batch: mt.Output(logits=z, label=batch.label[:, 0]), label=[1, 1], sample_rate=[0.5, 0.5]
    )
    assert heads.loss.item() == pytest.approx(2 * np.log1p(np.exp(-np.log(2)))), "logit - ln(rate)"
    assert heads.predictions["ctr"].tolist() == [0.5, 0.5], "predictions are not corrected"


def test_several_heads_are_added_up() -> None:
    def say(z: Any, batch: Any) -> Any:
        return [mt.Output(head=name, logits=z, label=batch.label[:, 0]) for name in ("click", "like")]

    heads = losses_of(say, label=[1, 0])
    assert heads.loss.item() == pytest.approx(4 * np.log(2))
    assert set(heads.results()) == {"click", "like"}


@pytest.mark.parametrize(
    ("say", "text"),
    [
        (lambda z, batch: z, "forward returned Tensor"),
        (lambda z, batch: [mt.Output(logits=z), mt.Output(logits=z)], "two heads are called 'ctr'"),
        (lambda z, batch: mt.Output(logits=z[:, None]), r"shape \(2, 1\) for a batch of 2"),
        (lambda z, batch: mt.Output(logits=z, loss=torch.zeros(3)), r"loss of shape \(3,\)"),
        (lambda z, batch: mt.Output(logits=z, label=batch.label), "take one column|make them the same"),
        (lambda z, batch: mt.Output(), "neither logits nor predictions"),
    ],
)
def test_a_wrong_output_is_refused_with_the_remedy(say: Any, text: str) -> None:
    with pytest.raises((ConfigError, SchemaMismatch), match=text):
        losses_of(say, label=[1, 0])


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    class Broken(Head):
        def __init__(self) -> None:
            super().__init__(lambda z, batch: mt.Output(logits=z / 0 * 0, label=batch.label[:, 0], head="ctr"))
            self.weight = torch.nn.Parameter(torch.ones(()))

    stepper = stepper_of(Broken())
    pipeline = Pipeline(stepper, marked([batch_of([[1]], label=[1])]))
    with pytest.raises(TrainingDiverged, match=r"step 5: the loss is not finite \(ctr = nan\)"):
        pipeline.run_step(4)
    assert isinstance(stepper.embedder.store, MultiTable)
    assert len(stepper.embedder.store["f"]) == 0
    assert stepper.model.weight.item() == 1


def test_a_step_costs_the_store_one_pull_and_one_push() -> None:
    class Counting(MultiTable):
        calls: ClassVar[list[str]] = []

        def pull(self, ids: Any) -> Any:
            self.calls.append("pull")
            return super().pull(ids)

        def push(self, ids: Any, grads: Any, **options: Any) -> None:
            self.calls.append("push")
            super().push(ids, grads, **options)

    model = Adder()
    stepper = Stepper(model, model.attach(Counting(model.declaration.table_specs())), {}, ClippingConfig())
    pipeline = Pipeline(stepper, marked([batch_of([[1], [2, 1]])] * 3))
    for step in range(3):
        pipeline.run_step(step)
    assert Counting.calls == ["pull", "push"] * 3


class Normed(mt.Model):
    """A batch norm, a constant, and a count that each forward pass replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("f", slot=1)
        self.vector = self.embedding_slice("f", "vector", 1, optimizer=Sgd(1.0), initializer=Ones())
        self.dense_feature("x")
        self.norm = torch.nn.BatchNorm1d(2)
        self.register_buffer("constant", torch.full((1 << 16,), 2.0**-16))
        self.register_buffer("calls", torch.zeros(()))
        self.fails = False

    def forward(self, batch: Any) -> mt.Output:
        self.calls = self.calls + 1
        inputs = self.norm(torch.cat([self.vector(batch), batch.dense["x"]], dim=1))
        if self.fails:
            raise ValueError("this forward pass fails")
        return mt.Output(logits=inputs.sum(1) * self.constant.sum(), label=batch.label[:, 0])


@pytest.mark.parametrize("failure", ["loss", "exception", "gradient"])
@pytest.mark.parametrize("steps_before", [0, 1, 3])
def test_a_refused_step_leaves_the_buffers_of_the_model_as_they_were(failure: str, steps_before: int) -> None:
    model = Normed()
    stepper = stepper_of(model)

    def run(step: int, value: float = 1.0) -> None:
        batch = batch_of([[1], [2]], label=[1, 0], dense={"x": [[value], [2.0]]})
        pulled = stepper.embedder.pull(batch, before_push=True)
        gradients = stepper.compute(pulled, step).gradients
        stepper.apply_dense(gradients)
        stepper.apply_sparse(gradients)

    for step in range(steps_before):
        run(step)
    before = {name: value.clone() for name, value in model.named_buffers()}
    if failure == "gradient":
        model.norm.weight.register_hook(lambda grad: grad * float("nan"))
    model.fails = failure == "exception"
    with pytest.raises((TrainingDiverged, ValueError)):
        run(steps_before, float("nan") if failure == "loss" else 1.0)
    after = dict(model.named_buffers())
    assert after.keys() == before.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=0)
    assert model.calls.item() == steps_before


def test_large_buffers_that_no_step_changes_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Normed()
    stepper = stepper_of(model)
    copied: list[torch.Size] = []
    clone = torch.Tensor.clone

    def count(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        copied.append(tensor.shape)
        return clone(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "clone", count)
    for step in range(3):
        batch = batch_of([[1], [2]], label=[1, 0], dense={"x": [[1.0], [2.0]]})
        stepper.compute(stepper.embedder.pull(batch, before_push=True), step)
    assert copied.count(model.constant.shape) == 1
    assert copied.count(model.norm.running_mean.shape) == 2 * 3, "the mean and the variance"

"""A ``MonolithBaseModel`` as a ``Model``: its declarations, its results, and the errors of its methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from monolith.compat.tasks import EstimatorSpec, MonolithBaseModel
from monolith.core.errors import ConfigError
from monolith.data import Batch, Schema, SparseFeature
from monolith.features import Output
from monolith.training import Estimator
from monolith.training.hooks import Hook


def batches(count: int = 4) -> list[Batch]:
    return [
        Batch.from_arrays(ids={"user": [[1], [2], [3]]}, dense={"price": [[0.0], [1.0], [2.0]]}, label=[0, 1, 1])
        for _ in range(count)
    ]


class Ranker(MonolithBaseModel):
    """Declares in ``model_fn``, as the original does."""

    def __init__(self, params: Any = None) -> None:
        super().__init__(params)
        self.scale = torch.nn.Linear(1, 1)
        self.calls: list[str] = []

    def input_fn(self, mode: str) -> Any:
        return batches()

    def logits(self, features: Any) -> Any:
        self.create_embedding_feature_column("user", slot=3)
        bias = self.lookup_embedding_slice(["user"], "bias", slice_dim=1, out_type="add_n")
        return (bias + self.scale(features["price"])).squeeze(1)

    def model_fn(self, features: Any, mode: str) -> Any:
        self.calls.append(mode)
        logits = self.logits(features)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, features["label"], reduction="none")
        return EstimatorSpec(label=features["label"], pred=torch.sigmoid(logits), loss=loss)


def made(cls: type[MonolithBaseModel], **params: Any) -> Any:
    return cls(cls.params().set(**params)).create_model_fn()()


def test_a_dry_run_declares_the_inputs_of_model_fn() -> None:
    model = made(Ranker, default_occurrence_threshold=2)
    declaration = model.declaration
    assert declaration.is_frozen
    assert type(model).__name__ == "Ranker"
    assert declaration.features["user"].slot == 3
    assert declaration.features["user"].occurrence_threshold == 2
    assert declaration.dense["price"].width == 1
    assert list(model.state_dict()) == ["task.scale.weight", "task.scale.bias"]
    assert model.task.calls == ["train"]


def test_an_estimator_trains_and_scores_the_task() -> None:
    task = Ranker()
    estimator = Estimator(task.create_model_fn())
    before = estimator.evaluate(task.input_fn("eval"))["loss"]
    for _ in range(30):
        estimator.train(task.input_fn("train"))
    assert estimator.evaluate(task.input_fn("eval"))["loss"] < before
    assert set(task.calls) == {"train", "eval"}
    assert next(estimator.predict(task.input_fn("eval")))["ctr_head"].shape == (3,)


def test_slices_of_init_are_called_with_the_features() -> None:
    class Declared(Ranker):
        def __init__(self, params: Any = None) -> None:
            super().__init__(params)
            self.create_embedding_feature_column("user", slot=3)
            self.bias = self.lookup_embedding_slice(["user"], "bias", 1, out_type="add_n")

        def logits(self, features: Any) -> Any:
            return self.bias(features).squeeze(1)

    assert made(Declared)(batches()[0])[0].predictions.tolist() == [0.5, 0.5, 0.5]


def test_slots_and_served_inputs_come_from_the_receiver() -> None:
    class Served(Ranker):
        def input_fn(self, mode: str) -> Any:
            raise AssertionError("a receiver spares the data")

        def serving_input_receiver_fn(self) -> Any:
            return Schema(sparse=[SparseFeature("user", slot=9)], dense={"price": 1})

        def logits(self, features: Any) -> Any:
            self.create_embedding_feature_column("user")
            return self.lookup_embedding_slice("user", "bias", 1).squeeze(1) + features["req_time"] * 0

    assert made(Served).declaration.features["user"].slot == 9

    class NotASchema(Served):
        def serving_input_receiver_fn(self) -> Any:
            return {"user": None}

    with pytest.raises(ConfigError, match=r"serving_input_receiver_fn of NotASchema returned dict, expected .*Schema"):
        made(NotASchema)


@pytest.mark.parametrize(
    ("result", "heads"),
    [
        (lambda y, p: (y, p.sum(), p), ["ctr_head"]),
        (lambda y, p: Output(head="own", predictions=p, label=y, loss=p.sum()), ["own"]),
        (lambda y, p: EstimatorSpec(label=y, pred=p[:, None], loss=p.sum(), head_name="a"), ["a"]),
        (lambda y, p: EstimatorSpec(label=[y, y], pred=[p, p], loss=p, head_name=["a", "b"]), ["a", "b"]),
        (lambda y, p: EstimatorSpec(label=[y, y], pred=[p, p], loss=p, head_name="a, b"), ["a", "b"]),
        (lambda y, p: EstimatorSpec(label={"b": y, "a": y}, pred={"a": p, "b": p}, loss=p.sum()), ["a", "b"]),
        (lambda y, p: EstimatorSpec(pred={"a": p, "b": p}, loss=p.sum(), classification=[True, False]), ["a", "b"]),
    ],
)
def test_each_form_of_result_becomes_outputs(result: Any, heads: list[str]) -> None:
    class Formed(Ranker):
        def model_fn(self, features: Any, mode: str) -> Any:
            return result(features["label"], torch.sigmoid(self.logits(features)))

    outputs = made(Formed)(batches()[0])
    assert [each.head for each in outputs] == heads
    assert all(each.predictions.shape == (3,) for each in outputs)
    assert [each.loss is None for each in outputs] == [False, *[True] * (len(heads) - 1)]
    assert outputs[0].loss.dim() == 0


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda y, p: p, "model_fn returned Tensor, expected an EstimatorSpec"),
        (lambda y, p: EstimatorSpec(label=y, pred=p), "EstimatorSpec.loss is None in mode 'train'"),
        (lambda y, p: EstimatorSpec(pred=[p, p], loss=p, head_name="a"), "EstimatorSpec.pred has 2 values, expected 1"),
        (lambda y, p: EstimatorSpec(pred={"a": p}, label=y, loss=p), "label is a Tensor and pred a mapping"),
        (lambda y, p: EstimatorSpec(pred={"a": p}, label={"b": y}, loss=p), r"label has the heads \['b'\]"),
        (lambda y, p: EstimatorSpec(pred=p, loss=p, optimizer="adam"), "set dense_optimizer of the run"),
    ],
)
def test_a_wrong_result_is_refused(result: Any, text: str) -> None:
    class Wrong(Ranker):
        def model_fn(self, features: Any, mode: str) -> Any:
            return result(features["label"], torch.sigmoid(self.logits(features)))

    with pytest.raises(ConfigError, match=text):
        made(Wrong)


def test_weights_that_model_fn_creates_are_refused() -> None:
    class Creates(Ranker):
        def logits(self, features: Any) -> Any:
            return torch.nn.Linear(1, 1)(features["price"]).squeeze(1)

    with pytest.raises(ConfigError, match="model_fn of Creates creates the weight 'weight' of a Linear"):
        made(Creates)
    torch.nn.Linear(1, 1)  # allowed again


def test_an_unknown_input_and_a_late_slice_are_refused() -> None:
    class Unknown(Ranker):
        def logits(self, features: Any) -> Any:
            return features["age"]

    with pytest.raises(ConfigError, match=r"model_fn of Unknown reads an input .* no 'age'"):
        made(Unknown)

    class Late(Ranker):
        def logits(self, features: Any) -> Any:
            logits = super().logits(features)
            if len(self.calls) > 1:
                self.lookup_embedding_slice(["user"], "late", 1)
            return logits

    with pytest.raises(ConfigError, match="that its dry run in mode 'train' did not"):
        made(Late)(batches()[0])


def test_extra_outputs_losses_and_hooks_reach_the_run() -> None:
    class Counting(Hook):
        steps = 0

        def after_step(self, *args: Any) -> None:
            Counting.steps += 1

    class Extra(Ranker):
        def model_fn(self, features: Any, mode: str) -> Any:
            self.add_loss([torch.tensor(2.0), torch.tensor([1.0, 1.0])])
            self.add_extra_output("both", {"a": features["price"], "b": features["price"]})
            return super().model_fn(features, mode)

    task = Extra()
    task.add_training_hook(Counting())
    estimator = Estimator(task.create_model_fn())
    plain = Estimator(Ranker().create_model_fn()).evaluate(batches(1))["loss"]
    assert estimator.evaluate(batches(1))["loss"] == pytest.approx(plain + 4 / 3, abs=0.5)
    assert {"both/a", "both/b"} <= set(next(estimator.predict(batches(1))))
    assert [type(hook) for hook in task.training_hooks()] == [Counting]
    task.add_extra_output("x", torch.zeros(1))
    with pytest.raises(ConfigError, match="extra output 'x' is added twice"):
        task.add_extra_output("x", torch.zeros(1))

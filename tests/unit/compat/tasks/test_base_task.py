from __future__ import annotations

from typing import Any

import pytest

from monolith.compat.tasks import BaseTask, MonolithBaseModel, NativeTask
from monolith.core.registry import ModelRegistry, SingleTaskModelParams


class Ranker(MonolithBaseModel):
    def input_fn(self, mode: str) -> Any:
        return [mode]

    def model_fn(self, features: Any, mode: str) -> Any:
        return features, mode


def ranker() -> Ranker:
    made: Ranker = Ranker.params().instantiate()
    return made


def test_a_native_task_has_the_groups_of_the_original() -> None:
    p = NativeTask.params()
    assert p.mode == "train"
    assert p.metrics.deep_insight_sample_ratio == 0.01
    assert p.metrics.enable_throughput_hook
    assert p.train.max_pending_seconds_for_barrier == 30
    assert p.serving.export_dir_base == "exported_models"
    assert p.train.label_key == "label"


def test_params_of_two_tasks_share_nothing() -> None:
    NativeTask.params().metrics.extra_fields_keys.append("x")
    assert NativeTask.params().metrics.extra_fields_keys == []


def test_a_task_without_its_functions_raises() -> None:
    task = BaseTask.params().instantiate()
    for call in (lambda: task.create_input_fn("train"), task.create_model_fn):
        with pytest.raises(NotImplementedError, match="Abstract method"):
            call()
    model = MonolithBaseModel.params().instantiate()
    for call in (lambda: model.input_fn("train"), lambda: model.model_fn({}, "train"), model.serving_input_receiver_fn):
        with pytest.raises(NotImplementedError, match="Abstract method"):
            call()


def test_attributes_of_a_model_are_its_params() -> None:
    model = ranker()
    assert model.clip_norm == 1000.0
    model.clip_norm = 5.0
    assert model.p.clip_norm == 5.0
    model.other = 3
    assert model.other == 3
    assert "other" not in model.p
    with pytest.raises(AttributeError, match="nothing is not a sub-layer of Ranker"):
        _ = model.nothing


def test_the_batch_size_is_that_of_the_mode_and_is_set_for_both() -> None:
    model = ranker()
    assert model.batch_size is None
    model.batch_size = 8
    assert model.p.train.per_replica_batch_size == model.p.eval.per_replica_batch_size == 8
    model.p.eval.per_replica_batch_size = 4
    assert model.batch_size == 8
    model.mode = "eval"
    assert model.batch_size == 4


def test_the_functions_of_a_model_are_its_methods() -> None:
    model = ranker()
    assert model.create_input_fn("eval")() == ["eval"]
    assert model.instantiate() is model


def test_a_registered_task_is_made_from_its_params() -> None:
    models = ModelRegistry()

    @models.register
    class RankerParams(SingleTaskModelParams):
        def task(self) -> Any:
            return Ranker.params().set(name="ranker", clip_norm=1.0)

    task = models.get_params("RankerParams").instantiate()
    assert isinstance(task, Ranker)
    assert task.p.clip_norm == 1.0


def test_torch_can_still_switch_modes() -> None:
    model = ranker()
    model.eval()
    assert not model.training
    model.train()
    assert model.training

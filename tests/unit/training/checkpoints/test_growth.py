"""A model with more features keeps every weight of the smaller model: by name, with optimizer state."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import monolith as mt
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.features import Model
from monolith.layers.kernel_norm import normalized_kernel
from monolith.training.checkpoints.growth import grow_weights

NAMES = ["age", "item", "user"]


def batches(count: int = 3, rows: int = 16, has_age: bool = True) -> list[mt.data.Batch]:
    rng = np.random.default_rng(3)
    return [
        mt.data.Batch.from_arrays(
            ids={
                name: rng.integers(1, 9, (rows, 1)) if name != "age" or has_age else [[]] * rows
                for name in [*NAMES, "history"]
            },
            dense={"price": rng.random((rows, 1)), "rank": rng.random((rows, 2)) if has_age else np.zeros((rows, 2))},
            label=rng.integers(0, 2, (rows, 2)).astype(float),
        )
        for _ in range(count)
    ]


def estimator(folder: Path, make: Callable[[], Model], **options: Any) -> mt.Estimator:
    quiet: dict[str, Any] = {"log_step_count_steps": 0, "save_summary_steps": 0, "threads": 1}
    return mt.Estimator(make, mt.RunConfig(model_dir=str(folder), **{**quiet, **options}))


def trained(folder: Path, make: Callable[[], Model], **options: Any) -> mt.Estimator:
    made = estimator(folder, make, **options)
    made.train(batches())
    return made


def grown(folder: Path, make: Callable[[], Model], **options: Any) -> mt.Estimator:
    made = estimator(folder, make, grow_nn=True, **options)
    assert made.step == 3  # restores
    return made


def weights(made: mt.Estimator) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in made.model.state_dict().items()}


def deepfm(sparse: list[str], dense: list[str] | dict[str, int] = ("price",), **options: Any) -> Callable[[], Model]:  # type: ignore[assignment]
    return lambda: mt.models.DeepFM(sparse=sparse, dense=dense, **{"dim": 2, "hidden": [5], **options})


@pytest.mark.parametrize("sparse", [["item", "user", "age"], ["age", "item", "user"], ["item", "age", "user"]])
def test_new_columns_start_at_initial_values_and_old_ones_keep_theirs(tmp_path: Path, sparse: list[str]) -> None:
    before = weights(trained(tmp_path, deepfm(["item", "user"])))
    fresh = weights(estimator(tmp_path / "other", deepfm(sparse)))
    after = weights(grown(tmp_path, deepfm(sparse)))
    first = next(name for name in before if before[name].shape == (5, 5))  # two vectors of 2 and a price; hidden 5
    place = sparse.index("age") * 2
    new = [place, place + 1]
    old = [column for column in range(7) if column not in new]
    assert after[first].shape == (7, 5)
    assert torch.equal(after[first][old], before[first])
    assert torch.equal(after[first][new], fresh[first][new])
    scale = f"{first}_scale"  # the trained length of each column, which the new rows lengthen
    for name in before.keys() - {first, scale}:
        assert torch.equal(after[name], before[name]), name
    effective = normalized_kernel(after[first], after[scale])
    assert torch.allclose(effective[old], normalized_kernel(before[first], before[scale]), rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_the_state_of_the_optimizer_is_padded_with_its_weight(tmp_path: Path, optimizer: str) -> None:
    old = trained(tmp_path, deepfm(["item", "user"]), dense_optimizer=optimizer)
    new = grown(tmp_path, deepfm(["age", "item", "user"]), dense_optimizer=optimizer)
    before, after = _matrix_state(old, (5, 5)), _matrix_state(new, (7, 5))
    assert before.keys() == after.keys()
    assert len(before) > 1
    for key, value in before.items():
        if value.dim() == 0:
            assert after[key] == value
            continue
        assert torch.equal(after[key][2:], value), key
        fresh = torch.zeros(2, 5) if optimizer == "adam" else after[key][:1, :1].expand(2, 5)
        assert torch.equal(after[key][:2], fresh), key
        assert value.abs().sum() > 0


def _matrix_state(made: mt.Estimator, shape: tuple[int, ...]) -> dict[str, Tensor]:
    found = [
        state
        for optimizer in made._stepper.optimizers.values()
        for weight, state in optimizer.state.items()
        if tuple(weight.shape) == shape
    ]
    assert len(found) == 1
    return {key: value for key, value in found[0].items() if isinstance(value, Tensor)}


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (
            lambda: mt.models.DCNv2(sparse=["user"], dense=["price"], dim=3, hidden=[6]),
            lambda: mt.models.DCNv2(sparse=["age", "user"], dense=["price"], dim=3, hidden=[6]),
        ),
        (
            lambda: mt.models.DCNv2(sparse=["user"], dim=3, hidden=[6], low_rank=2, structure="stacked"),
            lambda: mt.models.DCNv2(sparse=["age", "user"], dim=3, hidden=[6], low_rank=2, structure="stacked"),
        ),
        (
            lambda: mt.models.DLRM(sparse=["user", "item"], dense=["price"], dim=3, hidden=[6]),
            lambda: mt.models.DLRM(sparse=["user", "age", "item"], dense={"price": 1, "rank": 2}, dim=3, hidden=[6]),
        ),
        (
            lambda: mt.models.MMoE(sparse=["user"], dim=3, experts=2),
            lambda: mt.models.MMoE(sparse=["age", "user"], dim=3, experts=2),
        ),
        (
            lambda: mt.models.TwoTower(user=["user"], item=["item"], dim=3),
            lambda: mt.models.TwoTower(user=["age", "user"], item=["item"], dim=3),
        ),
        (
            lambda: mt.models.DIN(sparse=["user"], item="item", history="history", dim=3),
            lambda: mt.models.DIN(sparse=["age", "user"], item="item", history="history", dim=3),
        ),
        (
            lambda: mt.models.DIEN(sparse=["user"], item="item", history="history", dim=3),
            lambda: mt.models.DIEN(sparse=["age", "user"], item="item", history="history", dim=3),
        ),
    ],
    ids=["dcn", "dcn_stacked", "dlrm", "mmoe", "two_tower", "din", "dien"],
)
def test_every_ready_made_model_predicts_as_before_while_the_new_feature_has_no_value(
    tmp_path: Path, small: Callable[[], Model], large: Callable[[], Model]
) -> None:
    before = _predict(trained(tmp_path, small))
    made = grown(tmp_path, large)
    np.testing.assert_allclose(_predict(made), before, rtol=1e-5)
    made.train(batches(), resume_data=False)
    assert made.step == 6


def _predict(made: mt.Estimator) -> np.ndarray[Any, Any]:
    made.model.eval()
    with torch.no_grad():
        outputs = made.model(batches(1, has_age=False)[0])
    first = outputs[0] if isinstance(outputs, list) else outputs
    return first.logits.numpy()


def test_a_removed_feature_takes_its_columns_along(tmp_path: Path) -> None:
    before = weights(trained(tmp_path, deepfm(["age", "item", "user"])))
    after = weights(grown(tmp_path, deepfm(["age", "user"])))
    first = next(name for name in before if before[name].shape == (7, 5))
    assert torch.equal(after[first], before[first][[0, 1, 4, 5, 6]])


def test_without_the_setting_a_grown_model_is_refused_with_the_remedy(tmp_path: Path) -> None:
    trained(tmp_path, deepfm(["item", "user"]))
    with pytest.raises(SchemaMismatch, match=r"other shape.*grow_nn=True"):
        _ = estimator(tmp_path, deepfm(["age", "item", "user"])).step


@pytest.mark.parametrize("grow", [False, True])
def test_columns_in_another_order_are_refused_although_the_weights_fit(tmp_path: Path, grow: bool) -> None:
    trained(tmp_path, deepfm(["item", "user"]))
    with pytest.raises(SchemaMismatch, match="input columns of tower are user, item, price, expected the order"):
        _ = estimator(tmp_path, deepfm(["user", "item"]), grow_nn=grow).step


def test_another_width_of_a_hidden_layer_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, deepfm(["item", "user"]))
    with pytest.raises(SchemaMismatch, match="expected a difference in the input columns only"):
        _ = estimator(tmp_path, deepfm(["age", "item", "user"], hidden=[9]), grow_nn=True).step


def test_a_checkpoint_without_column_names_is_refused(tmp_path: Path) -> None:
    saved = weights(trained(tmp_path, deepfm(["item", "user"])))
    with pytest.raises(SchemaMismatch, match="has no names of input columns"):
        grow_weights(deepfm(["age", "item", "user"])(), saved, None, tmp_path, None)
    same, _, growth = grow_weights(deepfm(["item", "user"])(), saved, None, tmp_path, None)
    assert growth == {}
    assert all(torch.equal(same[name], saved[name]) for name in saved)


class Own(mt.Model):
    """A model that names no columns."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        for slot, name in enumerate(names, 1):
            self.embedding_feature(name, slot=slot)
        self.vectors = [self.embedding_slice(name, "v", 2) for name in names]
        self.tower = torch.nn.Linear(2 * len(names), 1)

    def forward(self, batch: Any) -> mt.Output:
        x = torch.cat([vector(batch) for vector in self.vectors], dim=1)
        return mt.Output(logits=self.tower(x).squeeze(1), label=batch.label[:, 0])


def test_a_model_without_column_names_gets_its_new_columns_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = weights(trained(tmp_path, lambda: Own(["item", "user"])))
    with caplog.at_level(logging.WARNING):
        after = weights(grown(tmp_path, lambda: Own(["item", "user", "age"])))
    assert torch.equal(after["tower.weight"][:, :4], before["tower.weight"])
    assert "new columns taken as the last name=tower.weight columns=2" in caplog.text


def test_growing_and_clearing_contradict() -> None:
    with pytest.raises(ConfigError, match="grow_nn is True with clear_nn True"):
        mt.RunConfig(grow_nn=True, clear_nn=True)


def test_a_checkpoint_names_the_input_columns(tmp_path: Path) -> None:
    made = trained(tmp_path, deepfm(["item", "user"]))
    folder = made.latest_checkpoint()
    assert folder is not None
    state = json.loads((folder / "state.json").read_bytes())
    assert state["input_columns"] == {"tower": [["item", 2], ["user", 2], ["price", 1]]}

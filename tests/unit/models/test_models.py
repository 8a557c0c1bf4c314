from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from monolith.core.errors import ConfigError
from monolith.data import Batch, DenseFeature, Ragged, SparseFeature
from monolith.demo.world import World
from monolith.embedding import Adagrad, Constant, MultiTable, Sgd
from monolith.features import EmbeddedBatch, Model, Output
from monolith.features.autograd import embed
from monolith.layers.clipping import ClippingConfig
from monolith.models import DIEN, DIN, DLRM, DCNv2, DeepFM, MMoE, TwoTower
from monolith.training.heads import compute_losses
from monolith.training.step import Stepper

SPARSE = ["user_id", "item_id", "gender", "category"]
SMALL: dict[str, Any] = {"dim": 4, "hidden": [8]}
FIELDS: dict[str, Any] = {"sparse": SPARSE, "dense": ["price"], **SMALL}
SEQUENCE: dict[str, Any] = {**FIELDS, "item": "item_id", "history": "history", "max_history": 3}
TOWERS: dict[str, Any] = {"user": ["user_id", "gender"], "item": ["item_id", "category"], "dim": 4, "hidden": [8, 4]}

MAKERS: dict[str, Callable[..., Model]] = {
    "deepfm": lambda **options: DeepFM(**FIELDS, **options),
    "deepfm_without_numbers": lambda **options: DeepFM(sparse=SPARSE, **SMALL, **options),
    "dcnv2": lambda **options: DCNv2(**FIELDS, **options),
    "dcnv2_low_rank": lambda **options: DCNv2(**FIELDS, low_rank=2, experts=2, **options),
    "dcnv2_stacked": lambda **options: DCNv2(**FIELDS, structure="stacked", **options),
    "din": lambda **options: DIN(**SEQUENCE, **options),
    "dien": lambda **options: DIEN(**SEQUENCE, **options),
    "mmoe": lambda **options: MMoE(**FIELDS, experts=3, expert_hidden=[16, 12], **options),
    "dlrm": lambda **options: DLRM(**FIELDS, bottom=[6], **options),
    "dlrm_without_numbers": lambda **options: DLRM(sparse=SPARSE, **SMALL, **options),
    "two_tower": lambda **options: TwoTower(**TOWERS, **options),
    "two_tower_softmax": lambda **options: TwoTower(**TOWERS, loss="softmax", **options),
}
every_model = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


@pytest.fixture(scope="module")
def world() -> World:
    return World(users=40, items=30, seed=5)


def batch_for(model: Model, world: World, rows: int = 128) -> Batch:
    ds = world.clicks(rows).dataset(labels=2).with_schema(model.declaration.schema())
    return next(iter(ds.batch(rows)))


def trainer(model: Model, rate: float = 0.002) -> Stepper:
    embedder = model.attach(MultiTable(model.declaration.table_specs()))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return Stepper(model, embedder, {"all": optimizer}, ClippingConfig())


def take_step(stepper: Stepper, batch: Batch, step: int) -> float:
    computed = stepper.compute(stepper.embedder.pull(batch), step)
    heads, gradients = computed.heads, computed.gradients
    stepper.apply_dense(gradients)
    stepper.apply_sparse(gradients)
    assert heads.loss is not None
    return heads.loss.item()


def outputs(model: Model, batch: Batch) -> list[Output]:
    said = model(batch)
    return said if isinstance(said, list) else [said]


@every_model
def test_every_head_gives_one_finite_logit_per_example(make: Callable[..., Model], world: World) -> None:
    model = make()
    batch = batch_for(model, world)
    said = outputs(model, batch)
    assert [output.head for output in said] == (["click", "like"] if isinstance(model, MMoE) else ["ctr"])
    for column, output in enumerate(said):
        assert output.logits is not None
        assert output.logits.shape == (128,)
        assert torch.isfinite(output.logits).all()
        assert output.label is not None
        assert output.label.tolist() == batch.label[:, column].tolist()


@every_model
def test_gradients_reach_every_slice_and_every_weight(make: Callable[..., Model], world: World) -> None:
    torch.manual_seed(0)
    model = make()
    batch = batch_for(model, world)
    stepper = trainer(model)
    take_step(stepper, batch, 0)  # ids get rows by their first push
    embedded = embed(stepper.embedder, stepper.embedder.pull(batch))
    heads = compute_losses(model, model(embedded.batch), embedded.batch)
    model.zero_grad()
    assert heads.loss is not None
    heads.loss.backward()
    assert embedded.gradients is not None
    for table, gradient in zip(model.declaration.tables, embedded.gradients, strict=True):
        for name, piece in model.declaration.slices[table].items():
            column = model.declaration.column_of(table, name)
            reached = bool(gradient[:, column : column + piece.dim].any())
            assert reached == (name != "interval"), f"{name} of {table}"  # that one counts steps, and learns nothing
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert bool(weight.grad.any()), name


@every_model
def test_plain_gradient_descent_learns(make: Callable[..., Model], world: World) -> None:
    torch.manual_seed(0)
    model = make(vec_optimizer=Sgd(0.02))
    batch = batch_for(model, world, rows=256)
    stepper = trainer(model)
    losses = [take_step(stepper, batch, step) for step in range(60)]
    assert min(losses[-10:]) < 0.93 * losses[1]  # plain descent oscillates


@pytest.mark.parametrize("name", ["deepfm", "dcnv2", "din", "dien", "mmoe", "dlrm", "two_tower"])
def test_the_dense_part_exports_with_layouts_as_inputs(name: str, world: World) -> None:
    torch.manual_seed(0)
    model = MAKERS[name]()
    stepper = trainer(model)
    take_step(stepper, batch_for(model, world), 0)
    model.eval()
    embedded = embed(stepper.embedder, stepper.embedder.pull(batch_for(model, world)), needs_grad=False).batch
    program = DensePart(model)
    inputs = (dict(embedded.layouts), dict(embedded.dense), embedded.label)
    rows = torch.export.Dim("rows", min=2, max=1 << 20)
    shapes = ({name: {0: rows} for name in inputs[0]}, {name: {0: rows} for name in inputs[1]}, {0: rows})
    exported = torch.export.export(program, inputs, dynamic_shapes=shapes)
    few = (
        {name: x[:7] for name, x in inputs[0].items()},
        {name: x[:7] for name, x in inputs[1].items()},
        inputs[2][:7],
    )
    for expected, got in zip(program(*few), exported.module()(*few), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


class DensePart(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, layouts: dict[str, Tensor], dense: dict[str, Tensor], label: Tensor) -> list[Tensor]:
        one = torch.ones_like(label[:, 0])
        empty = Ragged(torch.zeros(0), torch.zeros(1))
        batch = EmbeddedBatch(
            size=label.shape[0],
            ids={},
            dense=dense,
            label=label,
            label_mask=torch.ones_like(label, dtype=torch.bool),
            weight=one,
            sample_rate=one,
            event_time_s=one,
            uid=one,
            actions=empty,
            extras={},
            layouts=layouts,
        )
        said = self.model.forward(batch)
        return [output.logits for output in (said if isinstance(said, list) else [said]) if output.logits is not None]


# --- formulas ---------------------------------------------------------------------------------------------------------


def with_rows(model: Model, rows: dict[str, dict[int, list[float]]]) -> Model:
    """Give the model tables that hold these rows."""
    store = MultiTable(model.declaration.table_specs())
    model.attach(store)
    for table, values in rows.items():
        store[table].assign(np.array(list(values)), np.array(list(values.values()), np.float32))
    return model


def test_deepfm_is_biases_pairs_and_a_tower() -> None:
    model = DeepFM(sparse={"a": 1, "b": 2}, dense={"x": 1}, dim=2, hidden=[3])
    # Columns of a row: the vector, then the bias.
    with_rows(model, {"a": {7: [1.0, 2.0, 0.25]}, "b": {8: [3.0, 4.0, 0.5], 9: [1.0, 1.0, 1.0]}})
    batch = Batch.from_arrays(ids={"a": [[7]], "b": [[8, 9]]}, dense={"x": [[np.e - 1]]}, label=[1])
    tower = model.tower(torch.tensor([[1.0, 2.0, 4.0, 5.0, 1.0]])).item()
    logit = model(batch).logits.item()
    assert logit == pytest.approx(0.25 + 0.5 + 1.0 + (1 * 4 + 2 * 5) + tower, rel=1e-5)


def test_negative_numbers_enter_on_a_logarithmic_scale_too() -> None:
    model = DeepFM(sparse=["a"], dense=["x"], dim=2, hidden=[3])
    batch = Batch.from_arrays(ids={"a": [[7]]}, dense={"x": [[1 - np.e]]}, label=[1])
    expected = model.tower(torch.tensor([[0.0, 0.0, -1.0]])).item()
    assert model(batch).logits.item() == pytest.approx(expected, rel=1e-5)


def test_dlrm_feeds_numbers_and_all_inner_products_to_its_tower() -> None:
    model = DLRM(sparse=["a", "b"], dense=["x"], dim=2, bottom=[3], hidden=[4])
    with_rows(model, {"a": {7: [1.0, 2.0]}, "b": {8: [3.0, 4.0]}})
    batch = Batch.from_arrays(ids={"a": [[7]], "b": [[8]]}, dense={"x": [[np.e - 1]]}, label=[1])
    assert model.bottom is not None
    d = model.bottom(torch.ones(1, 1))
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])
    products = torch.stack([(a * b).sum(1), (a * d).sum(1), (b * d).sum(1)], dim=1)
    expected = model.tower(torch.cat([d, products], dim=1)).item()
    assert model(batch).logits.item() == pytest.approx(expected, rel=1e-5)


def test_dcnv2_stacked_puts_the_tower_on_the_crosses() -> None:
    model = DCNv2(sparse=["a"], dim=2, hidden=[3], structure="stacked")
    with_rows(model, {"a": {7: [1.0, 2.0]}})
    logit = model(Batch.from_arrays(ids={"a": [[7]]}, label=[1])).logits.item()
    expected = model.last(model.tower(model.cross(torch.tensor([[1.0, 2.0]])))).item()
    assert logit == pytest.approx(expected, rel=1e-5)


def test_mmoe_heads_learn_from_their_own_label_where_it_is_known(world: World) -> None:
    model = MMoE(**FIELDS, heads=["click", "like", "buy"])
    batch = batch_for(model, world)
    assert batch.label.shape == (128, 3)
    heads = compute_losses(model, model(batch), batch.as_torch())
    assert set(heads.losses) == {"click", "like", "buy"}
    assert heads.losses["click"].item() > 0
    assert heads.losses["buy"].item() == 0  # no row has a third label


@pytest.mark.parametrize("cls", [DIN, DIEN])
def test_history_shares_the_rows_of_the_item_and_items_without_a_row_are_as_none(cls: type[Model]) -> None:
    torch.manual_seed(0)
    model = cls(sparse=["user"], item="item", history="past", max_history=3, dim=2, hidden=[32])
    assert model.declaration.tables == ["item", "user"]
    with_rows(model, {"item": {1: [1.0, 0.5], 2: [0.5, 1.0]}, "user": {5: [0.3, 0.3]}})
    histories = [[1, 2], [1, 2, 77], [1, 77, 2], [2, 1], [], [77], [1, 2, 77, 1]]
    batch = Batch.from_arrays(ids={"user": [[5]] * 7, "item": [[1]] * 7, "past": histories}, label=[1] * 7)
    known, padded, between, turned, empty, unknown, cut = model(batch).logits.tolist()
    assert known == pytest.approx(padded) == pytest.approx(between) == pytest.approx(cut)
    assert empty == pytest.approx(unknown)
    assert known != pytest.approx(empty)
    if cls is DIEN:  # only an order of events makes a difference to a GRU
        assert known != pytest.approx(turned)
    else:
        assert known == pytest.approx(turned)


def test_two_towers_score_by_the_cosine_of_the_vectors_that_they_also_return() -> None:
    model = TwoTower(user=["u"], item=["i"], dim=2, hidden=[3], temperature=0.5)
    with_rows(model, {"u": {1: [1.0, 2.0], 2: [0.3, 0.1]}, "i": {3: [0.5, 0.5]}})
    output = model(Batch.from_arrays(ids={"u": [[1], [2]], "i": [[3], [3]]}, label=[1, 0]))
    user, item = output.extra["user_vector"], output.extra["item_vector"]
    assert torch.linalg.norm(user, dim=1).tolist() == pytest.approx([1, 1])
    assert output.logits.tolist() == pytest.approx((2 * (user * item).sum(1)).tolist())


def test_softmax_of_two_towers_counts_known_positive_rows_only() -> None:
    model = TwoTower(user=["u"], item=["i"], dim=2, hidden=[3], loss="softmax")
    with_rows(model, {"u": {1: [1.0, 2.0], 2: [0.3, 0.1]}, "i": {3: [0.5, 0.5, 1.0], 4: [0.1, 0.9, 4.0]}})
    ids = {"u": [[1], [2]], "i": [[3], [4]]}

    def loss(label: list[float], mask: list[bool], weight: list[float]) -> float:
        batch = Batch.from_arrays(ids=ids, label=label, label_mask=[[each] for each in mask], weight=weight)
        value: float = model(batch).loss.item()
        return value

    first, second = loss([1, 0], [True, True], [1, 1]), loss([0, 1], [True, True], [1, 1])
    assert loss([1, 1], [True, True], [1, 2]) == pytest.approx(first + 2 * second)
    assert loss([1, float("nan")], [True, False], [1, 1]) == pytest.approx(first)


def test_the_interval_of_an_item_follows_how_often_it_comes() -> None:
    torch.manual_seed(0)
    model = TwoTower(user=["u"], item=["i"], dim=2, hidden=[3], loss="softmax")
    stepper = trainer(model)
    often = Batch.from_arrays(ids={"u": [[1]], "i": [[3]]}, label=[1])
    both = Batch.from_arrays(ids={"u": [[1], [1]], "i": [[3], [4]]}, label=[1, 1])
    for step in range(1, 200):
        take_step(stepper, often if step % 4 else both, step)
    rows = stepper.embedder.store.pull({"i": np.array([3, 4]), "u": np.array([1])})["i"]
    column = model.declaration.column_of("i", "interval")
    assert rows[:, column].tolist() == pytest.approx([1, 4], rel=0.05)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_of_tables_reach_every_slice() -> None:
    model = DeepFM(
        sparse={"a": 11, "b": 12},
        vec_optimizer=Sgd(0.5),
        vec_initializer=Constant(0.5),
        bias_optimizer=Sgd(0.25),
        expire_days=7,
        occurrence_threshold=3,
    )
    for spec in model.declaration.table_specs():
        assert [piece.optimizer for piece in spec.slices] == [Sgd(0.5), Sgd(0.25)]
        assert spec.slices[0].initializer == Constant(0.5)
        assert spec.expire_days == 7
        assert spec.threshold_of({"a": 11, "b": 12}[spec.name]) == 3


def test_features_keep_the_slot_column_and_default_that_they_are_given() -> None:
    model = DeepFM(
        sparse=[SparseFeature("user", 9, "uid_column"), "fc_slot_12"],
        dense=[DenseFeature("age", default=30.0, column="user_age")],
    )
    schema = model.declaration.schema()
    assert [(each.slot, each.column) for each in schema.sparse_features] == [(9, "uid_column"), (12, None)]
    assert (schema.dense_features[0].default, schema.dense_features[0].column) == (30.0, "user_age")


def test_a_name_alone_has_the_same_slot_in_every_model() -> None:
    one, other = DeepFM(sparse=["user_id", "item_id"]), DIN(sparse=[], item="user_id", history="past")
    slots = {each.name: each.slot for each in one.declaration.schema().sparse_features}
    assert slots["user_id"] == other.declaration.schema().sparse_features[0].slot
    assert slots["user_id"] != slots["item_id"]
    assert all(0 < slot < 1 << 15 for slot in slots.values() if slot is not None)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: DeepFM(sparse=[]), r"DeepFM.sparse is \[\]"),
        (lambda: DeepFM(sparse="user_id"), "sparse features are 'user_id'; give a list"),
        (lambda: DeepFM(sparse=["a"], dense="x"), "dense features are 'x'; give a list"),
        (lambda: DeepFM(sparse=["a", "a"]), "'a' is declared twice"),
        (lambda: DCNv2(sparse=["a"], structure="above"), "DCNv2.structure is 'above'"),  # type: ignore[arg-type]
        (lambda: DIN(item="i", history="i"), "DIN.history is 'i', which has another role"),
        (lambda: DIEN(sparse=["h"], item="i", history="h"), "DIEN.history is 'h', which has another role"),
        (lambda: DIN(item="i", history="h", max_history=0), "DIN.max_history is 0"),
        (lambda: MMoE(sparse=["a"], heads=["x", "x"]), r"MMoE.heads is \['x', 'x'\]"),
        (lambda: MMoE(sparse=["a"], heads="click"), "MMoE.heads is 'click'"),
        (lambda: DLRM(sparse=["a"]), r"DLRM.sparse is \['a'\] without dense features, expected two features"),
        (lambda: TwoTower(user=["u"], item=["i"], loss="hinge"), "TwoTower.loss is 'hinge'"),  # type: ignore[arg-type]
        (lambda: TwoTower(user=["u"], item=["i"], temperature=0.0), "TwoTower.temperature is 0.0"),
    ],
)
def test_a_wrong_setting_is_named(make: Callable[[], Model], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()


def test_an_unknown_option_of_a_ready_made_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"option of DeepFM is 'optimizer'"):
        DeepFM(sparse=["a"], optimizer=Adagrad())  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"did you mean 'vec_optimizer'"):
        TwoTower(user=["a"], item=["b"], vec_optimiser=Adagrad())  # type: ignore[call-arg]


@pytest.mark.parametrize("cls", [DIN, DIEN])
def test_a_history_keeps_the_type_that_it_is_given(cls: type[Model]) -> None:
    item = SparseFeature("item", 3, value_type="fid", hash_wide=True)
    for past in (SparseFeature("past", 3, value_type="fid", hash_wide=True), "past"):
        (found,) = [each for each in cls(item=item, history=past).declaration.schema().sparse_features if each != item]
        assert (found.value_type, found.hash_wide) == ("fid", True)
    with pytest.raises(ConfigError, match="value_type of feature 'past' is 'text', expected 'integer'"):
        cls(item=SparseFeature("item", value_type="integer"), history=SparseFeature("past", value_type="text"))

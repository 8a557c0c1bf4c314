from __future__ import annotations

from pathlib import Path

import pytest

from monolith import data
from monolith.core.errors import ConfigError
from monolith.data import DenseFeature, Schema, SparseFeature
from monolith.demo.world import World
from monolith.demo.world.files import write_parquet
from monolith.embedding import Adam, DelayCompensated, Fp16, Sgd, StochasticRoundingFp16, Zeros
from monolith.features import Model
from monolith.models import MODELS, DeepFM, TwoTower, build, from_schema


def names(model: Model) -> tuple[list[str], list[str]]:
    schema = model.declaration.schema()
    return [each.name for each in schema.sparse_features], [each.name for each in schema.dense_features]


@pytest.mark.parametrize("name", ["two_tower", "TwoTower", "two-tower", "TWOTOWER"])
def test_a_model_is_found_however_its_name_is_written(name: str) -> None:
    assert isinstance(build(name, {"user": ["u"], "item": ["i"]}), TwoTower)


def test_an_unknown_model_is_refused_with_the_nearest_or_all_names() -> None:
    with pytest.raises(ConfigError, match=r"'deepfn'.*'deepfm'"):
        build("deepfn", {})
    with pytest.raises(ConfigError, match="choose one of deepfm, dcnv2, din, dien, mmoe, dlrm, two_tower"):
        build("xxxx", {})


def test_options_that_are_unknown_or_missing_are_named() -> None:
    with pytest.raises(ConfigError, match=r"'hiden'.*'hidden'"):
        build("deepfm", {"sparse": ["a"], "hiden": [4]})
    with pytest.raises(ConfigError, match="DIN needs 'item' and 'history'"):
        build("din", {"sparse": ["a"]})


def test_parts_are_made_of_plain_settings() -> None:
    options = {
        "sparse": {"a": 3},
        "vec_optimizer": {"kind": "adam", "learning_rate": 0.5},
        "vec_initializer": {"kind": "zeros"},
        "vec_compressor": {"kind": "fp16"},
        "dim": 4,
    }
    piece = build("deepfm", options).declaration.slices["a"]["vec"]
    assert (piece.optimizer, piece.initializer, piece.compressor) == (Adam(learning_rate=0.5), Zeros(), Fp16())


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"kind": "adagrat"}, "vec_optimizer is of kind 'adagrat'; did you mean 'adagrad'"),
        ({"learning_rate": 1.0}, "vec_optimizer is of kind None"),
        ({"kind": "sgd", "speed": 1.0}, "vec_optimizer of kind 'sgd'.*'speed'.*see monolith.embedding.Sgd"),
        ({"kind": "sgd", "learning_rate": -1.0}, "Sgd.learning_rate is -1.0"),
    ],
)
def test_a_wrong_part_is_named(part: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        build("deepfm", {"sparse": ["a"], "vec_optimizer": part})


SCHEMA = Schema(
    sparse=[SparseFeature("tags", 5), SparseFeature("mixed")],
    dense=[
        DenseFeature("user_id", dtype="int64"),
        DenseFeature("item_id", dtype="int64", column="movie"),
        DenseFeature("city", dtype="bytes"),
        DenseFeature("history", 4, dtype="int64", pad=True),
        DenseFeature("price", 2, default=1.0),
        DenseFeature("click"),
        DenseFeature("like"),
        DenseFeature("instance_weight"),
    ],
)


def test_ids_numbers_and_text_become_sparse_and_reals_dense_without_labels_and_weight() -> None:
    model = from_schema("deepfm", SCHEMA, labels=["click", "like"])
    assert isinstance(model, DeepFM)
    assert names(model) == (["tags", "mixed", "user_id", "item_id", "city", "history"], ["price"])
    schema = model.declaration.schema()
    slots = {each.name: each.slot for each in schema.sparse_features}
    assert (slots["tags"], slots["mixed"], slots["city"] is None) == (5, None, False)
    assert [each.column for each in schema.sparse_features if each.name == "item_id"] == ["movie"]
    assert (schema.dense_features[0].width, schema.dense_features[0].default) == (2, 1.0)


def test_the_labels_of_the_schema_are_left_out_as_well() -> None:
    schema = Schema(dense=["price", "click", "user"], sparse=["slot_1"], label_features=["click"])
    assert names(from_schema("dlrm", schema)) == (["slot_1"], ["price", "user"])


def test_features_with_a_role_are_not_read_twice() -> None:
    model = from_schema("din", SCHEMA, {"item": "item_id", "history": "history"}, labels=["click", "like"])
    assert sorted(names(model)[0]) == ["city", "history", "item_id", "mixed", "tags", "user_id"]
    assert model.declaration.features["history"].table == "item_id"
    assert model.declaration.features["history"].length == 50
    towers = from_schema("two_tower", SCHEMA, {"user": ["user_id", "city"], "item": ["item_id"]}, labels=["click"])
    assert names(towers) == (["user_id", "city", "item_id"], [])


def test_features_can_be_chosen_and_labels_become_heads() -> None:
    model = from_schema("mmoe", SCHEMA, {"sparse": ["user_id"], "dense": []}, labels=["click", "like"])
    assert names(model) == (["user_id"], [])
    assert model.heads == ["click", "like"]  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"item": "item", "history": "history"},
            "DIN.item is 'item', which the data does not have; did you mean 'item_id'",
        ),
        ({"sparse": ["click"], "item": "item_id", "history": "history"}, "DIN.sparse is 'click', which the data does"),
        ({}, "DIN needs 'item' and 'history'"),
    ],
)
def test_a_feature_that_the_data_does_not_have_is_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        from_schema("din", SCHEMA, options, labels=["click"])


ROLES: dict[str, dict[str, object]] = {
    "din": {"item": "item_id", "history": "history"},
    "dien": {"item": "item_id", "history": "history", "max_history": 4},
    "two_tower": {"user": ["user_id", "gender"], "item": ["item_id", "category"]},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_reads_a_parquet_file_whose_schema_was_inferred(name: str, tmp_path: Path) -> None:
    write_parquet(World(users=20, items=10).clicks(64), tmp_path / "clicks.parquet")
    schema = data.infer_schema(data.parquet(tmp_path / "clicks.parquet"))
    model = from_schema(name, schema, ROLES.get(name), labels=["click", "like"])
    read = model.declaration.schema(label_features=["click", "like"])
    batch = next(iter(data.parquet(tmp_path / "clicks.parquet", schema=read).batch(64)))
    said = model(batch)
    for output in said if isinstance(said, list) else [said]:
        assert output.logits.shape == (64,)


def test_a_part_may_have_another_one_inside() -> None:
    inner = {"kind": "stochastic_rounding_float16", "optimizer": {"kind": "sgd", "learning_rate": 0.5}}
    options = {"sparse": ["a"], "vec_optimizer": {"kind": "dc", "lambda_": 0.1, "optimizer": inner}}
    piece = build("deepfm", options).declaration.slices["a"]["vec"]
    assert piece.optimizer == DelayCompensated(StochasticRoundingFp16(Sgd(learning_rate=0.5)), 0.1)
    inner["optimizer"] = {"kind": "adagrat"}
    with pytest.raises(ConfigError, match="vec_optimizer is of kind 'adagrat'; did you mean 'adagrad'"):
        build("deepfm", options)

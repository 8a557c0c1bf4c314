import json
from typing import Any

import numpy as np
import pytest

import monolith as mt
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.data import FeatureList
from monolith.embedding import Adagrad, Fp16, Fp32, Ftrl, GroupAdagrad, MultiTable, PolynomialDecay, Sgd, SliceSpec
from monolith.features.declaration import Declaration, merge_slices
from monolith.features.layouts import layout_name


def declared() -> Declaration:
    made = Declaration()
    made.add_feature("user_id", slot=1, expire_days=30, occurrence_threshold=2)
    made.add_feature("item_id", slot=2)
    made.add_feature("history", slot=2, shared_with="item_id", max_sequence_length=3)
    return made


def test_a_table_per_slot_holds_the_slices_of_all_its_features() -> None:
    made = declared()
    made.add_layout(["user_id", "item_id"], "bias", 1, out="add_n", optimizer=Ftrl())
    made.add_layout(["user_id", "item_id"], "vec", 4, out="stack")
    made.add_layout(["history"], "vec", 4, out=None)
    made.freeze()
    specs = {spec.name: spec for spec in made.table_specs(seed=7, deterministic=True)}
    assert list(specs) == ["item_id", "user_id"]
    assert [piece.dim for piece in specs["item_id"].slices] == [1, 4]
    assert specs["user_id"].expire_days == 30
    assert specs["user_id"].threshold_of(1) == 2
    assert specs["user_id"].threshold_of(0) == 2, "ids made without a slot are counted too"
    assert specs["item_id"].slot_thresholds == {}
    assert specs["item_id"].seed == 7
    assert specs["item_id"].deterministic


def test_the_schema_reads_every_declared_feature() -> None:
    made = declared()
    made.add_dense("price", width=2)
    made.labels = 2
    schema = made.schema()
    assert {each.name: each.slot for each in schema.sparse_features} == {"user_id": 1, "item_id": 2, "history": 2}
    assert [(each.name, each.width) for each in schema.dense_features] == [("price", 2)]
    assert schema.labels == 2


def test_shapes_of_the_layouts() -> None:
    made = declared()
    made.add_feature("seen", slot=3, max_sequence_length=3)
    shapes = {}
    for out in ("concat", "stack", "add_n", None):
        layout = made.add_layout(["user_id", "item_id"], "vec", 4, out=out)
        shapes[out] = [tensor.shape for tensor in layout.tensors()]
        if out != "add_n":
            layout = made.add_layout(["history", "seen"], "vec", 4, out=out)
            shapes[f"first {out}"] = [tensor.shape for tensor in layout.tensors()]
    assert shapes == {
        "concat": [(8,)],
        "first concat": [(3, 8)],
        "stack": [(2, 4)],
        "first stack": [(2, 3, 4)],
        "add_n": [(4,)],
        None: [(4,), (4,)],
        "first None": [(3, 4), (3, 4)],
    }


def test_the_memory_limit_of_a_feature_is_that_of_its_table() -> None:
    made = Declaration()
    made.add_feature("user_id", slot=1, max_bytes=1 << 20)
    made.add_layout(["user_id"], "vec", 4, out="concat")
    made.freeze()
    assert [spec.max_bytes for spec in made.table_specs()] == [1 << 20]


def test_slices_of_a_table_lie_one_after_the_other() -> None:
    made = Declaration()
    made.add_feature("user_id", slot=1)
    for name, width in (("vec", 4), ("bias", 1)):
        made.add_layout(["user_id"], name, width, out="concat")
    names = list(made.slices["user_id"])
    dims = [piece.dim for piece in made.slices["user_id"].values()]
    assert [made.column_of("user_id", name) for name in names] == [0, dims[0]]
    with pytest.raises(ConfigError, match="has no slice 'other'"):
        made.column_of("user_id", "other")


def test_stacked_sequences_lie_one_after_the_other() -> None:
    made = declared()
    made.add_feature("seen", slot=3, max_sequence_length=3)
    (stacked,) = made.add_layout(["history", "seen"], "vec", 4, out="stack").tensors()
    assert [(part.piece.feature, part.offset, part.stride) for part in stacked.parts] == [
        ("history", 0, 4),
        ("seen", 12, 4),
    ]
    (single,) = made.add_layout(["user_id", "item_id"], "vec", 4, out="stack").tensors()
    assert [part.offset for part in single.parts] == [0, 4]


def test_groups_are_joined_before_the_layout() -> None:
    made = declared()
    added = made.add_layout([("user_id", "item_id"), ("user_id",)], "a", 4, out="concat").tensors()[0]
    assert added.shape == (8,)
    assert [(part.piece.feature, part.offset) for part in added.parts] == [
        ("user_id", 0),
        ("item_id", 0),
        ("user_id", 4),
    ]
    side = made.add_layout([("user_id", "item_id")], "b", 4, out=None, group_out="concat").tensors()[0]
    assert [(part.piece.feature, part.offset) for part in side.parts] == [("user_id", 0), ("item_id", 4)]


def test_pairs_and_mappings_bring_their_dims() -> None:
    made = declared()
    by_pairs = made.add_layout([("user_id", 2), ("item_id", 3)], "a", None, out="concat")
    by_mapping = made.add_layout({"user_id": 2, "item_id": 3}, "a", None, out="concat")
    assert by_pairs.tensors()[0].shape == by_mapping.tensors()[0].shape == (5,)
    assert by_pairs.name != by_mapping.name


def test_a_slice_named_again_reads_the_same_columns_and_must_agree() -> None:
    made = declared()
    made.add_layout(["item_id"], "vec", 4, out=None, optimizer=Adagrad(0.5))
    made.add_layout(["history"], "vec", 4, out=None)
    assert list(made.slices["item_id"]) == ["vec"]
    with pytest.raises(ConfigError, match="slice 'vec' of 'item_id' was declared as"):
        made.add_layout(["history"], "vec", 8, out=None)


def test_the_name_of_a_layout_is_the_original_one() -> None:
    assert layout_name("vec", ["uid", "mov"]) == "vec_b8bb987c858296379f9bb9084d83d12a"


def test_neighbouring_slices_of_one_kind_are_one_run_of_columns() -> None:
    def rate(step: int) -> float:
        return 0.1

    warm = SliceSpec(5, optimizer=Adagrad(warmup_steps=10))
    slices = [
        warm,
        *(SliceSpec(2, optimizer=Sgd(), learning_rate=rate) for _ in range(2)),
        SliceSpec(2, optimizer=Sgd()),
    ]
    merged, dims = merge_slices(slices)
    assert [piece.dim for piece in merged] == [5, 4, 2]
    assert dims == [5, 2, 2, 2]


def test_slices_that_are_groups_stay_apart() -> None:
    slices = [SliceSpec(2, optimizer=GroupAdagrad())] * 2
    assert [piece.dim for piece in merge_slices(slices)[0]] == [2, 2]
    mixed = [SliceSpec(2, optimizer=Sgd(), compressor=Fp16()), SliceSpec(2, optimizer=Sgd(), compressor=Fp32())]
    assert len(merge_slices(mixed)[0]) == 2


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda made: made.add_feature("user_id"), "declared twice"),
        (lambda made: made.add_dense("user_id"), "declared twice"),
        (lambda made: made.add_feature("x", combiner="first"), "'first' needs a length"),
        (lambda made: made.add_feature("x", combiner="max"), "combiner is 'max'"),
        (lambda made: made.add_feature("x", max_sequence_length=-1), "max_sequence_length is -1"),
        (lambda made: made.add_feature("x", max_sequence_length=2.5), "max_sequence_length is 2.5; give a whole"),
        (lambda made: made.add_feature("x", max_sequence_length=2**40), "max_sequence_length is 1099511627776; give"),
        (lambda made: made.add_feature("x", slot=9, shared_with="item_id"), "slot 9"),
        (lambda made: made.add_feature("x", shared_with="y"), "'y' is not declared"),
        (lambda made: made.add_layout(["y"], "vec", 4, out=None), "'y' is not declared"),
        (lambda made: made.add_layout(["user_id"], "vec", None, out=None), "has no dim"),
        (lambda made: made.add_layout([], "vec", 4, out=None), "has no features"),
        (lambda made: made.add_layout(["user_id"], "vec", 4, out="sum"), "out is 'sum'"),
        (lambda made: made.add_layout(["history"], "vec", 4, out="add_n"), "adds sequences up"),
        (lambda made: made.add_layout(["history", "user_id"], "vec", 4, out="stack"), "max_sequence_length"),
        (lambda made: made.add_layout({"user_id": 2, "item_id": 3}, "v", None, out="stack"), "dims of features"),
        (lambda made: made.freeze(), "has no slice"),
        (lambda made: made.table_specs(), "has no slice"),
    ],
)
def test_a_wrong_declaration_is_refused_with_the_remedy(act, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        act(declared())


def test_nothing_is_declared_after_the_model_was_used() -> None:
    made = Declaration()
    made.add_feature("a", slot=1)
    made.add_layout("a", "vec", 2, out=None)
    made.freeze()
    with pytest.raises(ConfigError, match="before the model is used"):
        made.add_feature("b")


def test_json_brings_back_an_equal_declaration() -> None:
    made = declared()
    made.add_layout(["user_id", "item_id"], "bias", 1, out="add_n", learning_rate=PolynomialDecay(0.1, 10))
    made.add_layout(["history"], "vec", 4, out=None)
    made.add_layout([("user_id", "item_id")], "vec", 4, out="stack")
    made.add_dense("price")
    made.freeze()
    again = Declaration.from_json(made.to_json())
    assert again == made
    assert again.table_specs() == made.table_specs()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 1}', '{"version": 2}', '{"version": 1, "features": [{}]}']
)
def test_other_text_is_refused_as_a_declaration(text: str) -> None:
    with pytest.raises(ConfigError, match="declaration"):
        Declaration.from_json(text)


def test_json_keeps_the_order_of_slices_in_a_row() -> None:
    one, other = declared(), declared()
    for made, names in ((one, ("a", "b")), (other, ("b", "a"))):
        for name in names:
            made.add_layout(["user_id"], name, 4, out=None)
    assert [name for name, _ in json.loads(one.to_json())["slices"]["user_id"]] == ["a", "b"]
    assert [name for name, _ in json.loads(other.to_json())["slices"]["user_id"]] == ["b", "a"]


def test_slots_and_names_come_from_the_feature_list() -> None:
    listed = FeatureList.parse("feature_name=f_user slot=5 feature_version=2 method=DirectString depend=user\n")
    made = Declaration(feature_list=listed)
    name = next(iter(listed)).name
    assert made.add_feature(name).slot == 5
    assert made.feature(5).name == name


def test_a_bare_slot_is_a_feature() -> None:
    made = Declaration()
    assert made.add_feature(12).name == "fc_slot_12"
    assert made.feature(12).slot == 12


def test_models_are_in_the_public_surface() -> None:
    assert mt.Model is not None
    assert mt.Output(predictions=None, logits=object()).head == "ctr"  # type: ignore[arg-type]


# --- types of values ---


def declare(**features: dict[str, Any]) -> Declaration:
    made = Declaration()
    for name, options in features.items():
        made.add_feature(name, **options)
        made.add_layout(name, "vec", 2, out=None)
    return made


def test_a_declaration_records_types_and_its_json_keeps_them() -> None:
    made = declare(user={}, item={"value_type": "text"})
    made.record_value_types({"user": "integer", "item": "text", "stranger": "text"})
    assert made.value_types == {"user": "integer", "item": "text"}
    assert Declaration.from_json(made.to_json()).value_types == made.value_types
    assert [each.value_type for each in made.schema().sparse_features] == ["integer", "text"]
    with pytest.raises(SchemaMismatch, match=r"value_type of feature 'user' is 'text' in day\.csv, expected 'integer'"):
        made.record_value_types({"user": "text"}, "day.csv")


def test_a_declaration_of_an_earlier_release_has_the_old_rule_of_ids() -> None:
    body = json.loads(declare(user={"slot": 1}).to_json())
    for feature in body["features"]:
        del feature["value_type"], feature["hash_wide"]
    old = Declaration.from_json(json.dumps(body))
    assert old.value_types == {"user": "slot48"}
    assert Declaration.from_json(old.to_json()).value_types == {"user": "slot48"}


def test_features_that_share_rows_have_one_type() -> None:
    made = declare(item={}, last={"shared_with": "item"})
    made.record_value_types({"item": "integer"})
    with pytest.raises(SchemaMismatch, match=r"share the rows of 'item'.*Declare value_type='integer'"):
        made.record_value_types({"last": "text"})
    assert declare(item={"value_type": "text"}, last={"shared_with": "item"}).value_types["last"] == "text"
    with pytest.raises(ConfigError, match="whose rows it shares"):
        declare(item={"value_type": "text"}, last={"shared_with": "item", "value_type": "integer"})


def test_a_threshold_holds_for_every_64_bit_id() -> None:
    made = declare(user={"occurrence_threshold": 3})
    (spec,) = made.table_specs()
    tables = MultiTable([spec])
    ids = [2**62 + 1, -1, 7]
    rows = []
    for _ in range(5):
        tables["user"].apply_gradients(ids, np.ones((3, 2), np.float32))
        rows.append(len(tables["user"]))
    assert rows == [0, 0, 0, 3, 3]


def test_refused_types_of_values_are_not_recorded() -> None:
    made = declare(other={}, user={"value_type": "integer"}, item={}, last={"shared_with": "item"})
    with pytest.raises(SchemaMismatch, match="'user' is 'text'"):
        made.record_value_types({"other": "text", "user": "text"})
    with pytest.raises(SchemaMismatch, match="share the rows of 'item'"):
        made.record_value_types({"item": "integer", "last": "text"})
    assert made.value_types == {"user": "integer"}
    made.record_value_types(dict.fromkeys(made.inputs, "integer"))
    assert set(made.value_types.values()) == {"integer"}

"""Specs of slices and tables: checks, rates, the JSON form, and merging."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

from monolith.core.errors import ConfigError
from monolith.embedding.admission import ProbabilisticFilter, SlidingHashFilter
from monolith.embedding.compressors import FixedR8, Fp16, OneBit
from monolith.embedding.initializers import Constant, RandomUniform
from monolith.embedding.learning_rates import PolynomialDecay
from monolith.embedding.optimizers import (
    OPTIMIZERS,
    Adagrad,
    BatchSoftmax,
    DelayCompensated,
    Ftrl,
    MovingAverage,
    Sgd,
    StochasticRoundingFp16,
)
from monolith.embedding.specs import SliceSpec, TableSpec, merge_specs
from monolith.embedding.table import Table


def one_slice(name: str = "t", **settings: Any) -> TableSpec:
    return TableSpec(name, [SliceSpec(1, optimizer=Sgd())], **settings)


FULL = TableSpec(
    name="user",
    slices=[
        SliceSpec(1, optimizer=Ftrl(0.01, l1_regularization_strength=0.1), learning_rate=0.3),
        SliceSpec(
            16,
            optimizer=StochasticRoundingFp16(DelayCompensated(Adagrad(0.05), 0.2)),
            initializer=RandomUniform(-0.05, 0.05),
            compressor=Fp16(),
        ),
        SliceSpec(2, optimizer=Sgd(), compressor=OneBit(), learning_rate=PolynomialDecay(0.0, 7, 0.5, power=2.0)),
        SliceSpec(3, optimizer=Sgd(), initializer=Constant(1 / 3), compressor=FixedR8(0.1)),
    ],
    expire_days=30,
    slot_expire_days={305: 7, 1: 0},
    admission=SlidingHashFilter(capacity=1_000_000, split_num=9),
    slot_thresholds={305: 5},
    on_miss="initial",
    max_bytes=10**12,
    seed=2**64 - 1,
    deterministic=True,
    nan_gradients="pass",
    touched_capacity=1000,
    extra_restore_names=("old",),
)


# --- shape and checks -------------------------------------------------------------------------------------------------


def test_the_dim_of_a_table_is_the_sum_of_its_slices() -> None:
    assert FULL.dim == 22


def test_a_list_of_slices_becomes_a_tuple_so_that_specs_are_values() -> None:
    assert isinstance(FULL.slices, tuple)
    assert one_slice() == one_slice()
    assert hash(one_slice()) == hash(one_slice())
    assert one_slice() != one_slice(seed=1)
    assert pickle.loads(pickle.dumps(FULL)) == FULL


def test_a_later_change_of_a_given_mapping_does_not_reach_the_spec() -> None:
    thresholds = {1: 2}
    spec = one_slice(slot_thresholds=thresholds)
    thresholds[1] = 99
    assert spec.threshold_of(1) == 2


def test_slots_have_their_own_expiry_and_threshold_or_the_tables() -> None:
    assert [FULL.expire_days_of(slot) for slot in (305, 1, 2)] == [7, 0, 30]
    assert [FULL.threshold_of(slot) for slot in (305, 1)] == [5, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, "TableSpec.name is ''"),
        ({"slices": []}, "at least one SliceSpec"),
        ({"slices": [Sgd()]}, "TableSpec.slices[0] is Sgd"),
        ({"expire_days": -1}, "TableSpec.expire_days is -1"),
        ({"slot_expire_days": {32768: 1}}, "slots go from 0 to 32767"),
        ({"slot_expire_days": {-1: 1}}, "TableSpec.slot_expire_days has the slot -1"),
        ({"slot_thresholds": {1: -1}}, "TableSpec.slot_thresholds[1] is -1"),
        ({"slot_thresholds": {"1": 1}}, "TableSpec.slot_thresholds has the slot '1'"),
        ({"slot_thresholds": [1]}, "TableSpec.slot_thresholds is [1]"),
        ({"admission": "sliding"}, "TableSpec.admission is 'sliding'"),
        ({"on_miss": "random"}, "TableSpec.on_miss is 'random'; choose one of 'zeros', 'initial'"),
        ({"nan_gradients": "ignore"}, "TableSpec.nan_gradients is 'ignore'"),
        ({"max_bytes": 0}, "TableSpec.max_bytes is 0"),
        ({"touched_capacity": 0}, "TableSpec.touched_capacity is 0"),
        ({"seed": -1}, "TableSpec.seed is -1"),
        ({"seed": 2**64}, "below 2^64"),
        ({"deterministic": 1}, "TableSpec.deterministic is 1"),
        ({"extra_restore_names": "old"}, "TableSpec.extra_restore_names is 'old'"),
    ],
)
def test_a_bad_table_is_refused_by_field_and_value(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TableSpec(**{"name": "t", "slices": [SliceSpec(1, optimizer=Sgd())], **settings})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 0}, "SliceSpec.dim is 0"),
        ({"dim": 1.0}, "SliceSpec.dim is 1.0"),
        ({"optimizer": "sgd"}, "SliceSpec.optimizer is 'sgd'"),
        ({"initializer": 0.0}, "SliceSpec.initializer is 0.0"),
        ({"compressor": None}, "SliceSpec.compressor is None"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'"),
        ({"learning_rate": -0.5}, "ConstantRate.value is -0.5"),
        ({"dim": 2, "optimizer": BatchSoftmax()}, "needs dim 1"),
        ({"dim": 2, "optimizer": StochasticRoundingFp16(BatchSoftmax())}, "needs dim 1"),
    ],
)
def test_a_bad_slice_is_refused_by_field_and_value(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SliceSpec(**{"dim": 1, "optimizer": Sgd(), **settings})
    assert message in str(caught.value)


# --- rates ------------------------------------------------------------------------------------------------------------


def test_rates_come_from_the_slice_or_else_from_its_optimizer() -> None:
    spec = TableSpec(
        "t",
        [
            SliceSpec(1, optimizer=Sgd(0.5)),
            SliceSpec(1, optimizer=Sgd(0.5), learning_rate=0.25),
            SliceSpec(1, optimizer=Sgd(0.5), learning_rate=lambda step: step),
            SliceSpec(1, optimizer=DelayCompensated(Adagrad(0.125), 0.1)),
            SliceSpec(1, optimizer=MovingAverage()),
        ],
    )
    rates = spec.learning_rates_at(3)
    assert rates.tolist() == [0.5, 0.25, 3.0, 0.125, 0.0]
    assert rates.dtype == np.float32


def test_warm_up_steps_make_the_rate_climb_from_zero() -> None:
    spec = TableSpec("t", [SliceSpec(1, optimizer=Adagrad(0.4, warmup_steps=10))])
    assert [float(spec.learning_rates_at(step)[0]) for step in (0, 5, 10, 99)] == pytest.approx([0, 0.2, 0.4, 0.4])


def test_a_rate_of_the_slice_replaces_the_warm_up() -> None:
    spec = TableSpec("t", [SliceSpec(1, optimizer=Adagrad(0.4, warmup_steps=10), learning_rate=1.0)])
    assert spec.learning_rates_at(0).tolist() == [1.0]


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_json_brings_back_every_field() -> None:
    assert TableSpec.from_json(FULL.to_json()) == FULL
    assert TableSpec.from_json(FULL.to_json().encode()) == FULL


@pytest.mark.parametrize("kind", sorted(set(OPTIMIZERS) - {"dc", "stochastic_rounding_float16"}))
def test_json_brings_back_every_optimizer(kind: str) -> None:
    spec = TableSpec("t", [SliceSpec(1, optimizer=OPTIMIZERS[kind]())])
    assert TableSpec.from_json(spec.to_json()) == spec


def test_json_of_an_older_release_may_lack_fields_that_have_defaults() -> None:
    encoded: dict[str, Any] = {"name": "t", "slices": [{"dim": 1, "optimizer": {"kind": "sgd"}}]}
    assert TableSpec.from_json(json.dumps(encoded)) == one_slice()
    encoded["admission"] = {"kind": "probabilistic_filter"}
    assert TableSpec.from_json(json.dumps(encoded)).admission == ProbabilisticFilter()


def test_a_bare_function_has_no_json_form() -> None:
    spec = TableSpec("t", [SliceSpec(1, optimizer=Sgd(), learning_rate=lambda: 1.0)])
    with pytest.raises(ConfigError, match="no JSON form"):
        spec.to_json()


def changed(path: list[Any], value: Any) -> str:
    """The JSON of the full spec with one place changed."""
    encoded = json.loads(FULL.to_json())
    place = encoded
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(encoded)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "give a JSON object"),
        ('{"name": "t"}', "has no key 'slices'"),
        (changed(["expire_day"], 3), "unknown key 'expire_day'; did you mean 'expire_days'?"),
        (changed(["slices"], {}), "slices is {}"),
        (changed(["slices", 0], 3), "slices[0] is 3"),
        (changed(["slices", 0, "dims"], 3), "slices[0] has the unknown key 'dims'; did you mean 'dim'?"),
        (changed(["slices", 0, "optimizer", "kind"], "ftlr"), "unknown kind 'ftlr'; did you mean 'ftrl'?"),
        (changed(["slices", 0, "optimizer", "betta"], 1), "unknown key 'betta'; did you mean 'beta'?"),
        (changed(["slices", 1, "optimizer", "optimizer"], None), "StochasticRoundingFp16.optimizer is None"),
        (changed(["slices", 1, "initializer"], "zeros"), "slices[1].initializer is 'zeros'"),
        (changed(["slices", 3, "initializer"], {"kind": "constants"}), "has no key 'constant'"),
        (changed(["admission", "kind"], "no_such"), "unknown kind 'no_such'"),
        (changed(["slot_thresholds"], [1]), "slot_thresholds is [1]"),
        (changed(["slot_thresholds"], {"x": 1}), "slot_thresholds is {'x': 1}"),
        (changed(["on_miss"], "random"), "TableSpec.on_miss is 'random'"),
        (changed(["extra_restore_names"], 5), "TableSpec.extra_restore_names is 5"),
    ],
)
def test_json_that_is_wrong_anywhere_is_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TableSpec.from_json(text)
    assert message in str(caught.value)


# --- merging ----------------------------------------------------------------------------------------------------------


def test_config_keys_are_equal_exactly_when_only_names_differ() -> None:
    assert one_slice("a").config_key() == one_slice("b", extra_restore_names=("c",)).config_key()
    assert one_slice("a").config_key() != one_slice("a", seed=1).config_key()
    slow = TableSpec("a", [SliceSpec(1, optimizer=Sgd(), learning_rate=PolynomialDecay(1.0, 10))])
    fast = TableSpec("a", [SliceSpec(1, optimizer=Sgd(), learning_rate=PolynomialDecay(1.0, 11))])
    assert slow.config_key() != fast.config_key()


def test_the_same_function_as_rate_merges_and_another_does_not() -> None:
    def rate() -> float:
        return 1.0

    specs = [TableSpec(name, [SliceSpec(1, optimizer=Sgd(), learning_rate=rate)]) for name in "ab"]
    other = TableSpec("c", [SliceSpec(1, optimizer=Sgd(), learning_rate=lambda: 1.0)])
    assert sorted(names for _, names in merge_specs([*specs, other]).values()) == [("a", "b"), ("c",)]


@pytest.mark.parametrize(
    ("names", "merged"),
    [
        (["slot1", "slot0"], "e21904dd414d1780e5fc904866dc69c2"),
        (["uid"], "9871d3a2c554b27151cacf1422eec048"),
        (["gid", "cid"], "c4a398dea30b21551ae4c09454001dba"),
        (["slot_0"], "cde3ba88ba62b682f84241b273f8100c"),
    ],
)
def test_the_merged_name_is_the_md5_of_the_sorted_names(names: list[str], merged: str) -> None:
    result = merge_specs([one_slice(name) for name in names])
    assert list(result) == [merged]
    spec, members = result[merged]
    assert spec.name == merged
    assert members == tuple(sorted(names))
    assert spec.extra_restore_names == ()


def test_slots_with_the_new_prefix_are_also_restored_under_their_old_merged_name() -> None:
    ((spec, _),) = merge_specs([one_slice("fc_slot_0")]).values()
    assert spec.extra_restore_names == ("cde3ba88ba62b682f84241b273f8100c",)


def test_when_renaming_changes_the_order_both_old_names_are_offered() -> None:
    ((spec, _),) = merge_specs([one_slice("fc_slot_1", extra_restore_names=("x",)), one_slice("gid")]).values()
    assert spec.extra_restore_names[0] == "x"
    assert len(spec.extra_restore_names) == 3


def test_different_tables_stay_apart_in_sorted_order() -> None:
    result = merge_specs([one_slice("b"), one_slice("a", seed=1)])
    assert list(result) == sorted(result)
    assert sorted(names for _, names in result.values()) == [("a",), ("b",)]


def test_two_tables_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tables are called 'a'"):
        merge_specs([one_slice("a"), one_slice("a", seed=1)])


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("expire_days", 2**32 - 1),
        ("occurrence_threshold", 2**32 - 1),
        ("max_bytes", 2**64 - 1),
        ("touched_capacity", 2**64 - 1),
    ],
)
def test_numbers_beyond_those_of_the_engine_are_named(name: str, most: int) -> None:
    assert len(Table(one_slice(**{name: most}))) == 0
    with pytest.raises(ConfigError, match=rf"TableSpec\.{name} is {most + 1}; give a whole number below"):
        one_slice(**{name: most + 1})


def test_a_number_of_a_slot_beyond_the_engine_is_named() -> None:
    with pytest.raises(ConfigError, match=r"slot_thresholds\[1\] is 4294967296; .*below 2\^32"):
        one_slice(slot_thresholds={1: 2**32})

"""Layout configurations: derived fields, the form for the kernel, and refused configurations."""

from __future__ import annotations

import numpy as np
import pytest

from monolith.compat.layout_encodings.layout_configs import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    PoolingType,
    SliceConfig,
    flatten_layout,
    layout_parts,
    native_layouts,
    nest_layout,
    resolve,
)
from monolith.core.errors import ConfigError

FEATURES = {
    "b": FeatureConfig(table="t", slice_dims=[1, 4]),
    "a": FeatureConfig(table="t", slice_dims=[1, 4], pooling_type=PoolingType.MEAN),
    "s": FeatureConfig(table="q", slice_dims=[2, 4], pooling_type=PoolingType.FIRSTN, max_sequence_length=3),
    "r": FeatureConfig(table="q", slice_dims=[2, 4], pooling_type=PoolingType.FIRSTN, max_sequence_length=3),
    "x": FeatureConfig(table="q", slice_dims=[6], pooling_type=PoolingType.FIRSTN, max_sequence_length=2),
}


def out(out_type: OutType, *slices: tuple[str, int, int]) -> OutConfig:
    cuts = [SliceConfig(feature_name=name, start=start, end=end) for name, start, end in slices]
    return OutConfig(slice_configs=cuts, out_type=out_type)


def resolved(config: OutConfig) -> OutConfig:
    return resolve(FeatureConfigs(feature_configs=FEATURES, out_configs={"layout": config})).out_configs["layout"]


def test_the_numbers_are_those_of_the_original() -> None:
    assert [(kind.name, kind.value) for kind in PoolingType] == [("SUM", 0), ("MEAN", 1), ("FIRSTN", 3)]
    assert [(kind.name, kind.value) for kind in OutType] == [("CONCAT", 0), ("STACK", 1), ("ADDN", 2), ("NONE", 3)]


def test_slices_learn_their_indices_and_pooling() -> None:
    config = resolved(out(OutType.CONCAT, ("b", 1, 5), ("a", 0, 1)))
    assert [(piece.feature_idx, piece.slice_idx) for piece in config.slice_configs] == [(1, 1), (0, 0)]
    assert [piece.pooling_type for piece in config.slice_configs] == [PoolingType.SUM, PoolingType.MEAN]
    assert resolved(out(OutType.NONE, ("s", 2, 6))).slice_configs[0].max_sequence_length == 3


@pytest.mark.parametrize(
    ("config", "shapes", "parts", "widths"),
    [
        (
            out(OutType.NONE, ("a", 0, 1), ("b", 1, 5), ("s", 2, 6)),
            [(-1, 1), (-1, 4), (-1, 3, 4)],
            [(5, 0, 0, 1, 0, 0), (6, 1, 1, 4, 0, 0), (7, 3, 2, 4, 0, 4)],
            [1, 4, 12],
        ),
        (
            out(OutType.CONCAT, ("a", 0, 1), ("b", 1, 5)),
            [(-1, 5)],
            [(5, 0, 0, 1, 0, 0), (5, 1, 1, 4, 1, 0)],
            [5],
        ),
        (
            out(OutType.CONCAT, ("s", 0, 2), ("r", 2, 6)),
            [(-1, 3, 6)],
            [(5, 3, 0, 2, 0, 6), (5, 2, 2, 4, 2, 6)],
            [18],
        ),
        (
            out(OutType.STACK, ("a", 1, 5), ("b", 1, 5)),
            [(-1, 2, 4)],
            [(5, 0, 1, 4, 0, 0), (5, 1, 1, 4, 4, 0)],
            [8],
        ),
        (
            out(OutType.STACK, ("s", 2, 6), ("r", 2, 6)),
            [(-1, 2, 3, 4)],
            [(5, 3, 2, 4, 0, 4), (5, 2, 2, 4, 12, 4)],
            [24],
        ),
        (
            out(OutType.ADDN, ("a", 1, 5), ("b", 1, 5)),
            [(-1, 4)],
            [(5, 0, 1, 4, 0, 0), (5, 1, 1, 4, 0, 0)],
            [4],
        ),
    ],
)
def test_shapes_and_parts(
    config: OutConfig, shapes: list[tuple[int, ...]], parts: list[tuple[int, ...]], widths: list[int]
) -> None:
    config = resolved(config)
    assert list(config.shape) == shapes
    assert layout_parts(config, first_output=5) == (parts, widths)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (out(OutType.ADDN, ("s", 2, 6), ("r", 2, 6)), "adds up FIRSTN features"),
        (out(OutType.CONCAT, ("s", 2, 6), ("a", 1, 5)), "with and without sequences"),
        (out(OutType.STACK, ("s", 0, 6), ("x", 0, 6)), "of several lengths"),
        (out(OutType.STACK, ("a", 0, 1), ("b", 1, 5)), r"STACK of slices of dims \[1, 4\]"),
        (out(OutType.ADDN, ("a", 0, 1), ("b", 1, 5)), r"ADDN of slices of dims \[1, 4\]"),
        (out(OutType.NONE, ("z", 0, 1)), "uses feature 'z'; the features are"),
        (out(OutType.NONE, ("a", 2, 5)), r"columns 2 to 5 of feature 'a', whose slices begin at \[0, 1\] and end at 5"),
        (out(OutType.NONE, ("a", 1, 6)), "columns 1 to 6"),
        (out(OutType.NONE), "layout 'layout' has no slices"),
    ],
)
def test_layouts_that_do_not_go_together_are_refused(config: OutConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(config)


@pytest.mark.parametrize(
    "feature",
    [
        FeatureConfig(table="t", slice_dims=[]),
        FeatureConfig(table="t", slice_dims=[2, 0]),
        FeatureConfig(table="t", slice_dims=[2], max_sequence_length=3),
        FeatureConfig(table="t", slice_dims=[2], pooling_type=PoolingType.FIRSTN),
    ],
)
def test_a_feature_that_cannot_be_is_refused(feature: FeatureConfig) -> None:
    with pytest.raises(ConfigError, match=r"feature 'f' has (slice_dims|max_sequence_length)"):
        resolve(FeatureConfigs(feature_configs={"f": feature}))


@pytest.fixture
def configs() -> FeatureConfigs:
    layouts = {"vec": out(OutType.CONCAT, ("a", 1, 5)), "each": out(OutType.NONE, ("s", 0, 2), ("b", 0, 1))}
    return resolve(FeatureConfigs(feature_configs=FEATURES, out_configs=layouts))


def test_nesting_and_flattening_undo_each_other(configs: FeatureConfigs) -> None:
    nested = nest_layout(configs, ["s", "b", "vec"])
    assert nested == {"each": ["s", "b"], "vec": "vec"}
    assert flatten_layout(configs, nested) == ["s", "b", "vec"]
    with pytest.raises(ConfigError, match="there are 2 tensors"):
        nest_layout(configs, ["s", "b"])
    with pytest.raises(ConfigError, match="there are tensors of"):
        flatten_layout(configs, {"vec": "vec"})
    with pytest.raises(ConfigError, match="layout 'each' has 2 tensors; there are 1"):
        flatten_layout(configs, {"vec": "vec", "each": ["s"]})


def test_a_configuration_becomes_a_kernel_in_sorted_order(configs: FeatureConfigs) -> None:
    bags = {"a": [1], "b": [1], "r": [2], "s": [3, 4], "x": []}
    values = [np.array(bag, np.int64) for bag in bags.values()]
    offsets = [np.array([0, len(bag)]) for bag in bags.values()]
    plan = native_layouts(configs).plan(1, values, offsets, [False] * 5)
    assert plan.ids(0).tolist() == [2, 3, 4]  # table q
    assert plan.ids(1).tolist() == [1]
    outputs = [np.zeros((1, width), np.float32) for width in (6, 1, 4)]
    plan.pool([np.arange(18, dtype=np.float32).reshape(3, 6), np.arange(5, dtype=np.float32)[None]], outputs)
    assert [output.tolist() for output in outputs] == [[[6, 7, 12, 13, 0, 0]], [[0]], [[1, 2, 3, 4]]]


def test_a_kernel_needs_one_dim_per_table() -> None:
    features = {"a": FeatureConfig(table="t", slice_dims=[1]), "b": FeatureConfig(table="t", slice_dims=[2])}
    with pytest.raises(ConfigError, match=r"table 't' holds features of dims \[1, 2\]"):
        native_layouts(FeatureConfigs(feature_configs=features))

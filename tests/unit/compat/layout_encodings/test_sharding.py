"""Sharded ids: every encoding leads to the same layouts and gradients as the native kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.compat.layout_encodings.layout_configs import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    PoolingType,
    SliceConfig,
    native_layouts,
    resolve,
)
from monolith.compat.layout_encodings.sharding import (
    ShardedFids,
    concat_requests,
    embedding_to_layout,
    embedding_to_layout_grad,
    sharding_sparse_fids,
)
from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.data.batch import Ragged


def out(out_type: OutType, *slices: tuple[str, int, int]) -> OutConfig:
    cuts = [SliceConfig(feature_name=name, start=start, end=end) for name, start, end in slices]
    return OutConfig(slice_configs=cuts, out_type=out_type)


CONFIGS = resolve(
    FeatureConfigs(
        feature_configs={
            "a": FeatureConfig(table="t", slice_dims=[1, 4]),
            "b": FeatureConfig(table="t", slice_dims=[1, 4], pooling_type=PoolingType.MEAN),
            "c": FeatureConfig(table="q", slice_dims=[2, 2], pooling_type=PoolingType.FIRSTN, max_sequence_length=3),
            "d": FeatureConfig(table="q", slice_dims=[2, 2], pooling_type=PoolingType.FIRSTN, max_sequence_length=3),
        },
        out_configs={
            "added": out(OutType.ADDN, ("a", 1, 5), ("b", 1, 5)),
            "joined": out(OutType.CONCAT, ("c", 0, 2), ("d", 2, 4)),
            "listed": out(OutType.NONE, ("a", 0, 1), ("d", 0, 2)),
            "stacked": out(OutType.STACK, ("a", 1, 5), ("b", 1, 5), ("a", 1, 5)),
            "stacked_sequences": out(OutType.STACK, ("c", 0, 2), ("c", 2, 4)),
        },
    )
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, dict[str, Ragged]]:
    rows = draw(st.integers(1, 4))
    fids = st.lists(st.integers(-5, 9), max_size=5)
    ids: dict[str, Ragged] = {}
    for name in CONFIGS.features:
        kind = draw(st.sampled_from(["each", "shared", "absent"]))
        if kind == "each":
            ids[name] = Ragged.from_lists(draw(st.lists(fids, min_size=rows, max_size=rows)))
        elif kind == "shared":
            bag = draw(fids)
            ids[name] = Ragged(np.array(bag, np.int64), np.array([0, len(bag)]), shared=True)
    return rows, ids


def row_of(fid: int, dim: int) -> np.ndarray:
    """Any row that depends on its id."""
    return np.sin(np.arange(dim) * 1.7 + fid).astype(np.float32)


def embeddings_of(fids: ShardedFids) -> list[np.ndarray]:
    dims = {"t": 5, "q": 4}
    tables = CONFIGS.tables
    if fids.concat_sizes is None:
        names = [table for table in tables for _ in range(fids.ps_num)]
        return [
            np.array([row_of(fid, dims[name]) for fid in ids.tolist()], np.float32).reshape(-1, dims[name])
            for name, ids in zip(names, fids.fid_list, strict=True)
        ]
    parts = np.split(fids.fid_list[0], np.cumsum(fids.concat_sizes.fid_list_table_row_length)[:-1])
    rows = [row_of(fid, dims[tables[i % 2]]) for i, part in enumerate(parts) for fid in part.tolist()]
    return [np.concatenate(rows) if rows else np.zeros(0, np.float32)]


def by_id(fids: ShardedFids, grads: list[np.ndarray]) -> dict[tuple[str, int], np.ndarray]:
    """Gradients summed per table and id."""
    names = [table for table in CONFIGS.tables for _ in range(fids.ps_num)]
    found: dict[tuple[str, int], np.ndarray] = {}
    for name, ids, block in zip(names, fids.fid_list, grads, strict=True):
        for fid, grad in zip(ids.tolist(), block, strict=True):
            found[name, fid] = found.get((name, fid), np.float32(0)) + grad
    return found


@settings(max_examples=40)
@given(batches(), st.integers(1, 3), st.booleans())
def test_every_encoding_agrees_with_the_kernel(batch: tuple[int, dict[str, Ragged]], shards: int, unique: bool) -> None:
    rows, ids = batch
    nothing = Ragged(np.zeros(0, np.int64), np.zeros(2, np.int64), shared=True)
    bags = [ids.get(name, nothing) for name in CONFIGS.features]
    plan = native_layouts(CONFIGS).plan(
        rows, [bag.values for bag in bags], [bag.offsets for bag in bags], [bag.shared for bag in bags]
    )
    shapes = [shape[1:] for name in CONFIGS.layouts for shape in CONFIGS.out_configs[name].shape]
    expected = [np.full((rows, int(np.prod(shape))), np.nan, np.float32) for shape in shapes]
    dims = [4, 5]
    tables = [
        np.array([row_of(fid, dim) for fid in plan.ids(table).tolist()], np.float32).reshape(-1, dim)
        for table, dim in enumerate(dims)
    ]
    plan.pool(tables, expected)
    rng = np.random.default_rng(0)
    grads = [rng.standard_normal((rows, *shape)).astype(np.float32) for shape in shapes]
    table_grads = [np.empty_like(table) for table in tables]
    plan.scatter([grad.reshape(rows, -1) for grad in grads], table_grads)

    flat_grads: list[np.ndarray] | None = None
    for version in (1, 2, 3, 4, 5):
        fids = sharding_sparse_fids(ids, CONFIGS, shards, version=version, unique=unique, batch_size=rows)
        embeddings = embeddings_of(fids)
        for tensor, wanted, shape in zip(embedding_to_layout(embeddings, fids, CONFIGS), expected, shapes, strict=True):
            assert tensor.shape == (rows, *shape)
            np.testing.assert_allclose(tensor.reshape(rows, -1), wanted, rtol=1e-5, atol=1e-5)
        found = embedding_to_layout_grad(grads, embeddings, fids, CONFIGS)
        assert [grad.shape for grad in found] == [block.shape for block in embeddings]
        if version == 4:
            np.testing.assert_allclose(np.sort(found[0]), np.sort(np.concatenate(flat_grads or [])), atol=1e-5)
            continue
        flat_grads = [grad.reshape(-1) for grad in found]
        per_id = by_id(fids, found)
        for table, name in enumerate(CONFIGS.tables):
            for fid, grad in zip(plan.ids(table).tolist(), table_grads[table], strict=True):
                np.testing.assert_allclose(per_id[name, fid], grad, rtol=1e-4, atol=1e-4)


BATCH = {"a": Ragged.from_lists([[1], [2, 3]])}


def test_no_shards_means_one_in_this_process() -> None:
    fids = sharding_sparse_fids(BATCH, CONFIGS, 0)
    assert fids.ps_num == 1
    assert [ids.tolist() for ids in fids.fid_list] == [[], [1, 2, 3]]


def test_negative_ids_are_spread_as_unsigned_numbers() -> None:
    fids = sharding_sparse_fids({"a": Ragged.from_lists([[-1]])}, CONFIGS, 3)
    assert [ids.tolist() for ids in fids.fid_list[3:]] == [[-1], [], []]  # 2**64 - 1 is a multiple of 3


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (({"z": BATCH["a"]}, CONFIGS, 2), {}, r"there are ids of \['z'\]"),
        ((BATCH, CONFIGS, -1), {}, "ps_num is -1"),
        ((BATCH, CONFIGS, 2), {"version": 6}, "version is 6; the encodings are 1 to 5"),
    ],
)
def test_wrong_settings_are_refused(arguments: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sharding_sparse_fids(*arguments, **options)


def test_the_batch_size_must_be_known_and_one() -> None:
    with pytest.raises(DimensionMismatch, match="no feature has a row per example"):
        sharding_sparse_fids({}, CONFIGS, 2)
    with pytest.raises(DimensionMismatch, match=r"batch_size is 3 and rows by feature are \{'a': 2\}"):
        sharding_sparse_fids(BATCH, CONFIGS, 2, batch_size=3)


def test_version_1_needs_one_dim_per_table() -> None:
    features = {"a": FeatureConfig(table="t", slice_dims=[1]), "b": FeatureConfig(table="t", slice_dims=[2])}
    configs = FeatureConfigs(feature_configs=features)
    with pytest.raises(ConfigError, match=r"table 't' holds dims \[1, 2\]; version 1 needs one"):
        sharding_sparse_fids(BATCH, configs, 2, version=1)
    assert sharding_sparse_fids(BATCH, configs, 2, version=3).batch_size == 2


def test_features_of_several_dims_share_a_table_in_the_later_versions() -> None:
    configs = resolve(
        FeatureConfigs(
            feature_configs={
                "a": FeatureConfig(table="t", slice_dims=[1]),
                "b": FeatureConfig(table="t", slice_dims=[2]),
            },
            out_configs={"all": out(OutType.CONCAT, ("a", 0, 1), ("b", 0, 2))},
        )
    )
    ids = {"a": Ragged.from_lists([[2], [4]]), "b": Ragged.from_lists([[2], [2]])}
    for version in (2, 3, 4, 5):
        fids = sharding_sparse_fids(ids, configs, 1, version=version)  # type: ignore[arg-type]
        (tensor,) = embedding_to_layout([np.array([2, 4, 20, 21], np.float32)], fids, configs)
        assert tensor.tolist() == [[2, 20, 21], [4, 20, 21]]


def test_embeddings_and_gradients_that_do_not_fit_are_refused() -> None:
    fids = sharding_sparse_fids(BATCH, CONFIGS, 1)
    embeddings = embeddings_of(fids)
    with pytest.raises(DimensionMismatch, match=r"\[0, 10\] floats.*\[0, 15\]"):
        embedding_to_layout([embeddings[0], embeddings[1][:2]], fids, CONFIGS)
    with pytest.raises(DimensionMismatch, match=r"2 gradients.*'listed'"):
        embedding_to_layout_grad([None, None], embeddings, fids, CONFIGS)
    with pytest.raises(DimensionMismatch, match="7 gradients"):
        embedding_to_layout_grad([None] * 7, embeddings, fids, CONFIGS)


def test_only_requests_of_version_5_can_be_joined() -> None:
    with pytest.raises(ConfigError, match="version 5"):
        concat_requests([sharding_sparse_fids(BATCH, CONFIGS, 1, version=3)])
    with pytest.raises(ConfigError, match="there are no requests"):
        concat_requests([])

"""Pins ids in text, buckets and crosses to the original.

``parse_fid_list`` follows ``instance_utils_test.cc`` and ``FeatureNameMapper`` follows ``reader_util_test.cc``;
buckets, values and crosses were found in the example batch that the original ships. The bit layouts are in
test_fid_vectors.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monolith.compat.formulas.buckets import log2_bucket, log_bucket, ratio_bucket
from monolith.compat.text.fid_text import parse_fid_list
from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data.records.formatter import parse_record
from monolith.data.slot_names import FeatureNameMapper


def test_a_list_of_ids_with_a_trailing_comma() -> None:
    found = parse_fid_list("6457882839108881377,6436927642569553426,")
    assert set(found) == {6457882839108881377, 6436927642569553426}
    with pytest.raises(ConfigError, match="'abc'"):
        parse_fid_list("6457882839108881377,abc")


@pytest.mark.parametrize(
    ("price", "market_price", "in_10", "in_1000", "market_10", "market_1000", "ratio", "reduction_10"),
    [(29.0, 39.9, 34, 3401, 37, 3711, 72, 24), (79, 179, 43, 4382, 51, 5192, 44, 46)],
)
def test_numeric_buckets(
    price: float,
    market_price: float,
    in_10: int,
    in_1000: int,
    market_10: int,
    market_1000: int,
    ratio: int,
    reduction_10: int,
) -> None:
    assert (log_bucket(price, 10), log_bucket(price, 1000)) == (in_10, in_1000)
    assert (log_bucket(market_price, 10), log_bucket(market_price, 1000)) == (market_10, market_1000)
    assert ratio_bucket(price / market_price) == ratio
    assert log_bucket(market_price - price, 10) == reduction_10


def test_numeric_buckets_of_counts_and_of_tf_examples() -> None:
    assert (log_bucket(178, 10), log_bucket(178, 1000)) == (51, 5187)
    assert log_bucket(178) == 5
    assert log2_bucket([0.0, 1.0, -3.0, 7.9]).tolist() == [0, 1, 2, 3]


def test_a_bucket_is_hashed_as_its_text() -> None:
    assert fid.from_value(214, log_bucket(79, 1000), version=1) == fid.as_signed(3864695453538224966)


def test_names_and_ids_may_become_known_in_either_order() -> None:
    ids = {"fc_a": 1, "fc_b": 2}
    first, second = FeatureNameMapper(), FeatureNameMapper()
    first.register(["fc_a"])
    first.set_ids(ids)
    second.set_ids(ids)
    second.register(["fc_a"])
    for mapper in (first, second):
        assert (mapper.id("fc_a"), mapper.name(1)) == (1, "fc_a")
        assert mapper.accepts("fc_a", 1)
        assert not mapper.accepts("fc_a", 2)
        assert not mapper.accepts("fc_b", 2)
        assert not mapper.accepts("fc_c", 1)
        for unknown in ("fc_b", "fc_c"):
            with pytest.raises(ConfigError, match=unknown):
                mapper.id(unknown)
        for unknown_id in (2, 3):
            with pytest.raises(ConfigError, match=f"id {unknown_id}"):
                mapper.name(unknown_id)


def test_the_crosses_of_the_shipped_batch_are_ours(sample: Callable[[str], str]) -> None:
    """Where both parts of a cross have one id in a row, the third column has the cross of them."""
    batch = parse_record(sample("example_batch.pbtxt"), "example_batch")
    columns = {column.name: column.feature for column in batch.named_feature_list}
    checked = 0
    for name, cells in columns.items():
        parts = name.split("-")
        if len(parts) != 2 or not all(part in columns for part in parts):
            continue
        for row, cell in enumerate(cells):
            a, b = (columns[part][row].fid_v1_list.value for part in parts)
            if len(a) == len(b) == len(cell.fid_v1_list.value) == 1:
                slot = fid.slot_v1(cell.fid_v1_list.value[0])
                assert fid.cross(a[0], b[0], slot, version=1) == fid.as_signed(cell.fid_v1_list.value[0])
                checked += 1
    assert checked == 61


def test_the_values_of_the_shipped_batch_are_ours(sample: Callable[[str], str]) -> None:
    batch = parse_record(sample("example_batch.pbtxt"), "example_batch")
    columns = {column.name: column.feature for column in batch.named_feature_list}
    known = [
        ("f_goods_test30_bool", 520, {"0", "1"}),
        ("f_user_ctx_platform", 52, {"ios", "android"}),
        ("f_user_ctx_network", 61, {"wifi"}),
        ("f_goods_pub_time_year", 232, {"2020"}),
    ]
    for name, slot, texts in known:
        found = {fid.as_signed(one) for cell in columns[name] for one in cell.fid_v1_list.value}
        assert found & {fid.from_value(slot, text, version=1) for text in texts}

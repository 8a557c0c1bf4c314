from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError
from monolith.data.feature_list import FeatureList, ListedCache, ListedFeature, ListedFeed

TEXT = """
# features of the shop
column_name : user_id, goods_price ,
column_name: goods, user_id
cache_column: user; cache_name=users; capacity=100; timeout=30; cache_type=lru; cache_key_class=Uid
feed_name=fc_goods; shared=true; feature_id=368235
feature_name=f_user_id;depend=user_id;method=DirectString;slot=5
feature_name=fc_goods; depend="goods", price; method=VectorTop; args=10,'x'; slot=1204; feature_version=2; shared=Y
feature_name=f_user_id-f_page; depend=f_user_id,f_page; method=Combine; slot=504; input_optional=true,no; need_raw=1
feature_name=fc_a-fc_b; slot=5; feature_version=2; cache_keys=k1,k2; feature_group=g1; owner=me; feature_id=7
feature_name=f_no_slot method=DirectString
"""


def test_every_kind_of_line_is_read() -> None:
    listed = FeatureList.parse(TEXT)
    assert listed.columns == ("user_id", "goods_price", "goods")
    assert listed.caches == (
        ListedCache(
            cache_name="users", cache_column="user", capacity=100, timeout=30, cache_type="lru", cache_key_class="Uid"
        ),
    )
    assert listed.feeds == (ListedFeed(feed_name="fc_goods", shared=True, feature_id=368235),)
    assert listed.features == (
        ListedFeature(feature_name="f_user_id", depend=("user_id",), method="DirectString", slot=5),
        ListedFeature(
            feature_name="fc_goods",
            depend=("goods", "price"),
            method="VectorTop",
            args=("10", "x"),
            slot=1204,
            feature_version=2,
            shared=True,
        ),
        ListedFeature(
            feature_name="f_user_id-f_page",
            depend=("f_user_id", "f_page"),
            method="Combine",
            slot=504,
            input_optional=(True, False),
            need_raw=True,
        ),
        ListedFeature(
            feature_name="fc_a-fc_b",
            slot=5,
            feature_version=2,
            cache_keys=("k1", "k2"),
            feature_group=("g1",),
            feature_id=7,
            extra={"owner": "me"},
        ),
        ListedFeature(feature_name="f_no_slot", method="DirectString"),
    )
    assert len(listed) == 5
    assert [feature.name for feature in listed] == ["user_id", "goods", "user_id-page", "a-b", "no_slot"]


def test_features_are_found_by_slot_and_by_name() -> None:
    listed = FeatureList.parse(TEXT)
    assert listed[5].feature_name == "f_user_id"  # the first of two
    assert listed["user_id"] is listed["f_user_id"] is listed[5]
    assert listed["goods"].feature_name == "fc_goods"
    assert listed["user_id-page"].slot == 504
    assert listed["a-b"].feature_name == "fc_a-fc_b"
    assert (listed.slot("goods"), listed.name(1204), listed.version("goods"), listed.version(5)) == (
        1204,
        "fc_goods",
        2,
        1,
    )
    assert "goods" in listed
    assert 504 in listed
    assert 6 not in listed
    assert listed.find("page") is None


def test_an_unknown_feature_is_named_with_the_nearest() -> None:
    listed = FeatureList.parse(TEXT)
    with pytest.raises(ConfigError, match="feature 'f_user_ids' is unknown; did you mean f_user_id"):
        listed.slot("f_user_ids")
    with pytest.raises(ConfigError, match="no feature has slot 6"):
        listed.name(6)
    with pytest.raises(ConfigError, match="'f_no_slot' has no slot"):
        listed.slot("no_slot")


def test_the_text_of_a_list_gives_the_list_again() -> None:
    listed = FeatureList.parse(TEXT)
    assert FeatureList.parse(listed.to_text()) == listed
    assert FeatureList.parse("\n").to_text() == ""


WORDS = st.text("abcdefgh_XYZ-.0123", min_size=1, max_size=8)


@given(
    st.lists(
        st.builds(
            ListedFeature,
            feature_name=WORDS,
            depend=st.lists(WORDS, max_size=3).map(tuple),
            method=st.just("") | WORDS,
            slot=st.none() | st.integers(0, 32767),
            args=st.lists(WORDS, max_size=3).map(tuple),
            feature_version=st.sampled_from([1, 2]),
            shared=st.booleans(),
            input_optional=st.lists(st.booleans(), max_size=3).map(tuple),
            feature_id=st.none() | st.integers(-5, 2**40),
        ),
        unique_by=lambda feature: feature.feature_name,
        max_size=5,
    )
)
def test_any_list_survives_its_text(features: list[ListedFeature]) -> None:
    listed = FeatureList(tuple(features), columns=("a", "b"))
    assert FeatureList.parse(listed.to_text()) == listed


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("feature_name=f_a; slot=x5", "slot is 'x5'; a whole number is needed"),
        ("feature_name=f_a; slot=40000", "slot is 40000; slots are 0..32767"),
        ("feature_name=f_a; feature_version=3", "feature_version is 3"),
        ("feature_name=f_a; shared=maybe", "shared is 'maybe'; use true or false"),
        ("feature_name=f_a; feature_versoin=2", "'feature_versoin' is not known; did you mean 'feature_version'"),
        ("feature_name=f_a; slot=1; slot=2", "the key 'slot' is given twice"),
        ("feature_name=; slot=1", "feature_name is empty"),
        ("feature_name=f_first; slot=1", "feature_name=f_first is on line 1 already"),
        ("slot=1; method=x", "is not an item, expected one of feature_name="),
        ("just words", "does not begin with key=value"),
        ("= 5", "does not begin with key=value"),
        ("cache_name=c; capacity=many", "capacity is 'many'"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(line: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^feature list: line 3: .*{problem}"):
        FeatureList.parse(f"feature_name=f_first; slot=1\n\n{line}\n")


def test_a_list_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "date=1" / "feature_list.conf"
    path.parent.mkdir()
    path.write_text("\ufefffeature_name=f_a; slot=3\n")
    assert FeatureList.parse(path).slot("a") == FeatureList.parse(str(path)).slot("a") == 3
    path.write_text("feature_name=f_a; slot=x\n")
    with pytest.raises(ConfigError, match=r"feature_list\.conf: line 1"):
        FeatureList.parse(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        FeatureList.parse(path)
    with pytest.raises(ConfigError, match=r"'absent\.conf' cannot be read"):
        FeatureList.parse("absent.conf")
    assert FeatureList.parse("feature_name=f_a; slot=3").slot("a") == 3


def test_items_can_be_keys_of_a_dict() -> None:
    listed = FeatureList.parse(TEXT)
    assert len(set(listed.features)) == 5

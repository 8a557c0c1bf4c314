from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError
from monolith.core.nested_map import NestedMap

keys = st.sampled_from(["a", "b", "c", "d_1"])
leaves = st.integers() | st.text(max_size=3) | st.tuples(st.integers())
trees = st.recursive(
    st.dictionaries(keys, leaves, max_size=3).map(NestedMap),
    lambda inner: st.dictionaries(keys, leaves | inner | st.lists(leaves | inner, max_size=3), max_size=3).map(
        NestedMap
    ),
    max_leaves=8,
)


def test_keys_are_attributes() -> None:
    tree = NestedMap(x=1)
    tree.y = 2
    tree["z"] = 3
    del tree.x
    assert tree == {"y": 2, "z": 3}
    with pytest.raises(AttributeError, match=r"'x'; available attributes: \['y', 'z'\]"):
        _ = tree.x
    with pytest.raises(AttributeError, match="'x'"):
        del tree.x
    assert not hasattr(tree, "nothing")


@pytest.mark.parametrize("key", ["", "1a", "a b", "a.b", "a-b", 5, None])
def test_keys_are_identifiers(key: str) -> None:
    with pytest.raises(ConfigError, match="Invalid NestedMap key"):
        NestedMap({key: 1})


@pytest.mark.parametrize("key", ["items", "get", "copy", "Flatten"])
def test_names_of_methods_are_refused_as_keys(key: str) -> None:
    tree = NestedMap()
    for change in (
        lambda: NestedMap({key: 1}),
        lambda: tree.update({key: 1}),
        lambda: tree.setdefault(key, 1),
        lambda: tree.__ior__({key: 1}),
        lambda: setattr(tree, key, 1),
        lambda: tree.Set(f"x.{key}", 1),
    ):
        with pytest.raises(ConfigError, match=f"{key} is a reserved key"):
            change()
    assert tree == {}


def test_dotted_keys_go_through_maps() -> None:
    tree = NestedMap()
    tree.Set("a.b.c", 1)
    assert tree.a.b.c == 1
    assert tree.GetItem("a.b.c") == tree.Get("a.b.c") == 1
    assert tree.Get("a.x", 5) == 5
    assert tree.Get("a.b.c.d") is None
    with pytest.raises(KeyError, match=r"a\.x"):
        tree.GetItem("a.x")
    with pytest.raises(ConfigError, match='Sub key "c" is of type'):
        tree.Set("a.b.c.d", 2)


def test_leaves_are_walked_by_sorted_keys_through_lists_but_not_through_plain_dicts() -> None:
    tree = NestedMap(b=[1, NestedMap(x=2)], a={"k": 3}, c=(4, 5))
    assert tree.FlattenItems() == [("a", {"k": 3}), ("b[0]", 1), ("b[1].x", 2), ("c", (4, 5))]
    assert tree.Flatten() == [{"k": 3}, 1, 2, (4, 5)]


def test_packing_needs_a_value_for_each_leaf() -> None:
    with pytest.raises(ConfigError, match="Pack got 1 values for 2 leaves"):
        NestedMap(a=1, b=2).Pack([1])


def test_filters_drop_parts_that_become_empty_and_keep_empty_ones() -> None:
    tree = NestedMap(a=NestedMap(x=1, y=2), b=[1, 2], c=NestedMap(x=1), d=NestedMap(), e=[1])
    assert tree.Filter(lambda leaf: leaf > 1) == {"a": {"y": 2}, "b": [2], "d": {}}
    assert tree.FilterKeyVal(lambda key, _: key.startswith("a.")) == {"a": {"x": 1, "y": 2}, "d": {}}
    assert NestedMap(a=1).Filter(lambda _: False) == {}


def test_plain_structures_become_maps() -> None:
    tree = NestedMap.FromNestedDict({"a": [{"b": 1}], "c": ({"d": 2},)})
    assert isinstance(tree.a[0], NestedMap)
    assert tree.a[0].b == 1
    assert tree.c[0].d == 2


def test_the_debug_text_has_a_line_per_leaf() -> None:
    assert NestedMap(long=NestedMap(x=1), a=2).DebugString() == "a         2\nlong.x    1"
    assert NestedMap().DebugString() == ""


def test_the_debug_text_is_logged_on_demand(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="monolith"):
        NestedMap(a=1).VLog(prefix="step")
    assert caplog.messages == ["step a    1"]


def test_a_deep_copy_shares_its_leaves() -> None:
    leaf = object()
    tree = NestedMap(a=NestedMap(x=leaf), b=[leaf])
    for twin in (tree.DeepCopy(), copy.deepcopy(tree)):
        assert twin.a.x is leaf
        assert twin.a is not tree.a
        assert twin.b is not tree.b
    assert isinstance(tree.copy(), NestedMap)
    assert tree.copy().a is tree.a


@given(trees)
def test_packing_the_flattened_gives_the_same(tree: NestedMap) -> None:
    assert tree.Pack(tree.Flatten()) == tree
    assert tree.Transform(lambda leaf: leaf) == tree
    assert tree.IsCompatible(tree.Transform(str))
    assert pickle.loads(pickle.dumps(tree)) == tree


@given(trees)
def test_a_tree_with_one_more_leaf_is_not_compatible(tree: NestedMap) -> None:
    other = tree.DeepCopy()
    other.extra = 1
    assert not tree.IsCompatible(other)

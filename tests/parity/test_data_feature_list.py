"""Pins ``feature_list.conf`` to the rules of the original's ``feature_list.py``, its defects repaired."""

from __future__ import annotations

import pytest

from monolith.data.feature_list import FeatureList
from monolith.data.slot_names import SlotNames


def test_pairs_need_no_blank_between_them() -> None:
    spaced = FeatureList.parse("feature_name=f_a; depend=x,y; slot=7\n")
    assert FeatureList.parse("feature_name=f_a;depend=x,y;slot=7\n") == spaced
    assert FeatureList.parse("feature_name=f_a depend=x,y slot=7\n") == spaced


def test_a_blank_before_the_colon_does_not_belong_to_the_column() -> None:
    assert FeatureList.parse("column_name : a, b\n").columns == FeatureList.parse("column_name: a, b\n").columns
    assert FeatureList.parse("column_name : a, b\n").columns == ("a", "b")


@pytest.mark.parametrize(("word", "is_true"), [("true", 1), ("Yes", 1), ("t", 1), ("Y", 1), ("1", 1), ("false", 0)])
def test_the_words_for_true(word: str, is_true: int) -> None:
    assert FeatureList.parse(f"feature_name=f_a; shared={word}\n")["a"].shared is bool(is_true)


def test_a_version_that_is_not_given_is_1() -> None:
    listed = FeatureList.parse("feature_name=f_a; slot=7\nfeature_name=fc_b; slot=1200; feature_version=2\n")
    assert (listed.version("a"), listed.version("b")) == (1, 2)


def test_names_are_tried_with_each_prefix_in_turn() -> None:
    listed = FeatureList.parse(
        "feature_name=x; slot=1\nfeature_name=f_x; slot=2\nfeature_name=fc_x; slot=3\n"
        "feature_name=fc_y; slot=4\nfeature_name=f_x-f_y; slot=5\nfeature_name=second; slot=4\n"
    )
    found = {key: listed[key].feature_name for key in ("x", "y", "x-y", "f_x-f_y", 4)}
    assert found == {"x": "x", "y": "fc_y", "x-y": "f_x-f_y", "f_x-f_y": "f_x-f_y", 4: "fc_y"}
    assert listed["x-y"].name == "x-y"


def test_slot_names() -> None:
    assert (SlotNames(prefix="slot_").name(12), SlotNames().name(12)) == ("slot_12", "fc_slot_12")
    assert SlotNames().slot("slot_12") == SlotNames().slot("fc_slot_12") == 12

from __future__ import annotations

import pytest

from monolith.core.errors import ConfigError
from monolith.data.feature_list import FeatureList
from monolith.data.slot_names import FeatureNameMapper, SlotNames, slot_of_name


def test_slots_without_a_name_have_a_systematic_one() -> None:
    assert SlotNames().name(12) == "fc_slot_12"
    assert SlotNames(prefix="slot_").name(12) == "slot_12"
    for names in (SlotNames(), SlotNames(prefix="slot_")):
        assert names.slot("slot_12") == names.slot("fc_slot_12") == 12


def test_registered_names_come_first() -> None:
    names = SlotNames({"user_id": 5, "uid": 5, "slot_7": 8})
    assert (names.slot("uid"), names.name(5), names.slot("slot_7"), names.name(8)) == (5, "user_id", 8, "slot_7")


def test_names_come_from_a_feature_list() -> None:
    names = SlotNames.from_feature_list(FeatureList.parse("feature_name=f_a; slot=3\nfeature_name=f_b"))
    assert (names.slot("f_a"), names.name(3)) == (3, "f_a")
    with pytest.raises(ConfigError):
        names.slot("f_b")


@pytest.mark.parametrize("name", ["user_id", "slot_", "slot_x", "slot_012", "fc_fc_slot_1", "slot_1 "])
def test_an_unknown_name_is_refused_and_never_numbered(name: str) -> None:
    assert slot_of_name(name) is None
    with pytest.raises(ConfigError, match="has no slot; register it"):
        SlotNames().slot(name)


@pytest.mark.parametrize("name", ["slot_32768", "slot_99999999999999999999"])
def test_slots_that_do_not_exist_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="names no slot"):
        SlotNames().slot(name)
    with pytest.raises(ConfigError, match="slot 32768"):
        SlotNames().name(32768)
    with pytest.raises(ConfigError, match="'a' has slot -1"):
        SlotNames({"a": -1})
    with pytest.raises(ConfigError, match="prefix"):
        SlotNames(prefix="s_")


def test_an_id_cannot_change_and_a_refused_change_changes_nothing() -> None:
    mapper = FeatureNameMapper()
    mapper.register(["a", "b", "c"])
    mapper.set_ids({"a": 1})
    with pytest.raises(ConfigError, match="'a' has id 1 already, not 2"):
        mapper.set_ids({"b": 2, "a": 2})
    with pytest.raises(ConfigError, match="id 1 is that of feature 'a', not 'c'"):
        mapper.set_ids({"b": 2, "c": 1})
    with pytest.raises(ConfigError, match="'b' has no id"):
        mapper.id("b")
    assert mapper.accepts("a", 1)

import itertools
from pathlib import Path

import numpy as np
import pytest

from monolith.core.errors import ConfigError
from monolith.demo.demo import Demo
from monolith.demo.moves import as_features, turns
from monolith.demo.world import World


def test_too_small_a_demonstration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="clicks is 10"):
        Demo(tmp_path, clicks=10)


def test_an_item_that_turns_is_clicked_by_its_new_taste_and_no_other_item_changes() -> None:
    shown = World(users=100, items=30, seed=1).clicks(5000)
    found = list(itertools.islice(turns(shown, 400), 30))
    assert {turn.item_id for turn in found} == set(shown.item_id.tolist())
    assert {turn.is_up for turn in found} == {True, False}
    for turn in found:
        turned = np.arange(400) % 4 == 0
        assert len(turn.events) == 400
        assert (turn.events.item_id[turned] == turn.item_id).all()
        assert (turn.events.category[turned] == turn.shown.category).all()
        assert abs(turn.events.click[turned].mean() - turn.chance) < 0.15
        others = turn.events.item_id[~turned]
        assert len(np.unique(others)) > 10
        was = shown.click[shown.item_id == turn.item_id].mean()
        assert (turn.chance > was) == turn.is_up


def test_turns_are_the_same_for_the_same_seed() -> None:
    shown = World(users=100, items=30, seed=1).clicks(1000)
    first, second = (next(turns(shown, 100, seed=3)) for _ in range(2))
    assert first.item_id == second.item_id
    np.testing.assert_array_equal(first.events.click, second.events.click)


def test_features_of_a_request_are_those_of_the_impression() -> None:
    shown = World(users=100, items=30, seed=1).clicks(100).rows(7, 8)
    found = as_features(shown)
    assert found["item_id"] == shown.item_id[0]
    assert found["history"] == shown.history.tolist()
    assert found.keys() == {each.name for each in shown.schema().sparse_features} | {"price"}

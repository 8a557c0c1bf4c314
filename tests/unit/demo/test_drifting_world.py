"""The drifting world: its oracle agrees with the specification, items live and die, results depend on the seed only."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest

from monolith.core.errors import ConfigError
from monolith.demo.world import START_S, Clicks, Drift, DriftingWorld, World

STILL = {"turn": 0.0, "noise": 0.0}
COLUMNS = list(Clicks.__dataclass_fields__)


@pytest.fixture(scope="module")
def world() -> DriftingWorld:
    return DriftingWorld(users=200, items=60, drift=Drift.fast(), events_per_s=5.0, seed=4)


@pytest.fixture(scope="module")
def clicks(world: DriftingWorld) -> Clicks:
    return world.clicks(60_000)


@pytest.mark.parametrize(
    ("drift", "expected"),
    [
        (Drift(**STILL), [0.8467, 0.8467, 0.8463, 0.8407, 0.8050]),
        (
            Drift(amplitude=2.5, rise_s=600.0, life_s=7200.0, memory_s=1800.0, **STILL),
            [0.8437, 0.8437, 0.8437, 0.8243, 0.7520],
        ),
    ],
    ids=["default", "fast"],
)
def test_the_oracle_loses_by_staleness_as_in_the_specification(drift: Drift, expected: list[float]) -> None:
    found = []
    for seed in range(3):
        world = DriftingWorld(drift=drift, user_zipf=0.0, price_weight=0.0, events_per_s=300_000 / 21_600, seed=seed)
        clicks = world.clicks(300_000)
        stale = [clicks.auc(world.stale_probability(clicks, interval)) for interval in (1, 60, 600, 3600)]
        assert clicks.best_auc + 1e-4 >= stale[0] >= stale[1] > stale[2] > stale[3]
        found.append([clicks.best_auc, *stale])
    # Draws differ from those of the reference, so the mean over its three seeds is compared.
    np.testing.assert_allclose(np.mean(found, axis=0), expected, atol=0.005)


def test_clicks_are_as_frequent_as_their_probabilities(clicks: Clicks) -> None:
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 1.0)):
        inside = (clicks.click_probability >= low) & (clicks.click_probability < high)
        chance = clicks.click_probability[inside]
        assert abs(clicks.click[inside].sum() - chance.sum()) < 4 * np.sqrt((chance * (1 - chance)).sum())
    assert not (clicks.like > clicks.click).any()


def test_a_seed_gives_the_same_rows_every_time_and_another_seed_others(world: DriftingWorld, clicks: Clicks) -> None:
    again = DriftingWorld(users=200, items=60, drift=Drift.fast(), events_per_s=5.0, seed=4).clicks(60_000)
    other = DriftingWorld(users=200, items=60, drift=Drift.fast(), events_per_s=5.0, seed=5).clicks(60_000)
    assert all(np.array_equal(getattr(clicks, name), getattr(again, name)) for name in COLUMNS)
    assert not np.allclose(clicks.click_probability, other.click_probability)


def test_an_item_belongs_to_one_slot_and_gives_way_to_a_younger_item(clicks: Clicks) -> None:
    assert clicks.slot is not None
    for slot in range(5):
        items = clicks.item_id[clicks.slot == slot]
        changes = np.flatnonzero(np.diff(items))
        assert (np.diff(items)[changes] > 0).all(), "an id came back, or an older item followed a younger one"
    per_item = {int(item): int(slot) for item, slot in zip(clicks.item_id, clicks.slot, strict=True)}
    assert all(per_item[int(item)] == slot for item, slot in zip(clicks.item_id, clicks.slot, strict=True))
    assert clicks.item_id.max() > 60 + 30, "a life of two hours over three hours replaces most items"


def test_a_stream_continues_times_and_histories_from_part_to_part(world: DriftingWorld) -> None:
    first, second = islice(world.stream(3000), 2)
    assert first.event_time_s[0] >= START_S
    assert second.event_time_s[0] >= first.event_time_s[-1]
    user = int(second.user_id[0])
    clicked = first.item_id[(first.user_id == user) & (first.click == 1)][-world.history_length :]
    begin, end = second.history_offsets[:2]
    np.testing.assert_array_equal(second.history[begin:end], clicked)


def test_the_cached_state_does_not_depend_on_the_order_of_calls() -> None:
    ahead, fresh = (DriftingWorld(users=50, items=20, events_per_s=1.0) for _ in range(2))
    ahead.clicks(100, START_S + 100_000)
    np.testing.assert_array_equal(ahead.clicks(100).click_probability, fresh.clicks(100).click_probability)


def test_wrong_settings_and_rows_of_another_world_are_refused(world: DriftingWorld) -> None:
    with pytest.raises(ConfigError, match=r"Drift.life_s is 0"):
        Drift(life_s=0)
    with pytest.raises(ConfigError, match=r"Drift.noise is 2"):
        Drift(noise=2)
    with pytest.raises(ConfigError, match=r"DriftingWorld.items is 0"):
        DriftingWorld(items=0)
    with pytest.raises(ConfigError, match="n is 0"):
        world.clicks(0)
    with pytest.raises(ConfigError, match="start_s is 5"):
        world.clicks(1, 5)
    with pytest.raises(ConfigError, match="DriftingWorld"):
        world.stale_probability(World(users=5, items=5).clicks(10), 60)
    with pytest.raises(ConfigError, match="interval_s is 0"):
        world.stale_probability(world.clicks(10), 0)


def test_a_page_has_one_user_distinct_items_and_the_history_before_its_part() -> None:
    world = DriftingWorld(users=20, items=40, events_per_s=10, seed=3)
    parts = world.pages(6, 8)
    first, second = next(parts), next(parts)
    assert len(first) == 48
    assert len(first.history) == 0
    for begin in range(0, 48, 8):
        page = second.rows(begin, begin + 8)
        assert len(set(page.user_id)) == 1
        assert len(set(page.item_id)) == 8
        assert len(set(page.event_time_s)) == 1
        histories = {tuple(page.history[a:b]) for a, b in pairwise(page.history_offsets.tolist())}
        assert len(histories) == 1
        user = page.user_id[0]
        clicked = first.item_id[(first.user_id == user) & (first.click == 1)]
        assert histories == {tuple(clicked[-world.history_length :])}
    assert 0.6 < second.best_auc <= 1.0


def test_a_page_wider_than_the_world_is_refused() -> None:
    with pytest.raises(ConfigError, match="width is 41"):
        next(DriftingWorld(items=40).pages(1, 41))

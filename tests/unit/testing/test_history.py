"""The checker finds every violation, and none in a correct history."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from monolith.core.errors import ShardUnavailable
from monolith.embedding import MultiTable
from monolith.embedding.shard_map import shard_of
from monolith.testing.suites.history import Cells, History, Kill, Lookup, NotedPush, numbers_table
from monolith.testing.suites.history_clients import HistoryClients, read_numbers

KEYS = list(range(10))
CLIENTS = 3
SHARDS = 2


class World:
    """A store of two shards in one thread, with a clock: it answers every call immediately, or as the test demands."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.history = History(clients=CLIENTS, shards=SHARDS)
        self.cells = {key: [0] * CLIENTS for key in KEYS}
        self.kept = {key: [0] * CLIENTS for key in KEYS}
        self.now = 0.0

    def tick(self) -> float:
        self.now += 1
        return self.now

    def push(self, client: int, *, applied: int = 1, acknowledged: bool = True, keys: int = 3) -> NotedPush:
        amounts = {key: self.chance.randint(1, 999) for key in self.chance.sample(KEYS, keys)}
        start = self.tick()
        for key, amount in amounts.items():
            self.cells[key][client] += applied * amount
        push = NotedPush(client=client, amounts=amounts, start=start, end=self.tick() if acknowledged else None)
        self.history.pushes.append(push)
        return push

    def look(self, keys: list[int] | None = None) -> Lookup:
        start = self.tick()
        cells = {key: list(self.cells[key]) for key in keys or KEYS}
        lookup = Lookup(cells=cells, start=start, end=self.tick())
        self.history.lookups.append(lookup)
        return lookup

    def save(self) -> None:
        """Make everything durable."""
        self.kept = {key: list(row) for key, row in self.cells.items()}
        self.durable = self.tick()

    def kill(self, shard: int) -> None:
        start = self.tick()
        for key in KEYS:
            if shard_of(np.array([key], np.int64), SHARDS)[0] == shard:
                self.cells[key] = list(self.kept[key])
        self.history.kills.append(Kill(shard=shard, start=start, end=self.tick(), durable_until=self.durable))

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self.push(self.chance.randrange(CLIENTS))
            self.look(self.chance.sample(KEYS, 4))

    def kinds(self) -> set[str]:
        return {violation.kind for violation in self.history.violations(self.cells)}


@pytest.fixture
def world(seed: int) -> World:
    made = World(seed)
    made.save()
    made.run(40)
    return made


def test_a_history_of_calls_that_all_succeed_is_possible(world: World) -> None:
    assert world.history.violations(world.cells) == []


@pytest.mark.parametrize("applied", [0, 1])
def test_an_unacknowledged_push_may_be_there_or_not(world: World, applied: int) -> None:
    for client in (0, 1, 1):
        world.push(client, applied=applied, acknowledged=False)
        world.run(3)
    assert world.kinds() == set()


def test_a_kill_loses_only_pushes_that_were_not_durable(world: World) -> None:
    for shard in (0, 1, 0):
        world.save()
        world.run(12)
        world.kill(shard)
        world.run(5)
    assert world.kinds() == set()


def test_each_of_two_kills_after_one_save_loses_the_pushes_before_it(world: World) -> None:
    world.save()
    for shard in (0, 0, 1, 0):
        for client in range(CLIENTS):
            world.push(client, keys=len(KEYS))
        world.look()
        world.kill(shard)
        world.look()
    assert world.kinds() == set()


def test_a_lost_push_is_found(world: World) -> None:
    world.push(1, applied=0)
    assert world.kinds() == {"lost"}


def test_a_push_that_was_applied_twice_is_found(world: World) -> None:
    world.push(2, applied=2)
    assert world.kinds() >= {"doubled"}


def test_an_unacknowledged_push_that_was_applied_twice_is_found(world: World) -> None:
    world.push(0, applied=2, acknowledged=False)
    assert world.kinds() == {"doubled"}


def test_a_lost_push_is_found_where_an_unknown_one_could_hide_its_amount(world: World) -> None:
    world.push(1, applied=1, acknowledged=False, keys=10)
    world.push(1, applied=0, keys=2)
    assert world.kinds() & {"lost", "impossible"}


def test_half_of_a_push_is_found(world: World) -> None:
    push = world.push(0, acknowledged=False, keys=10)
    shard = shard_of(np.array(KEYS, np.int64), SHARDS)
    mine = [key for key in push.amounts if shard[KEYS.index(key)] == 0]
    world.cells[mine[0]][0] -= push.amounts[mine[0]]
    assert world.kinds() == {"impossible"}


def test_a_durable_push_that_a_kill_took_away_is_found(world: World) -> None:
    world.save()
    kept = world.kept
    world.push(0, keys=10)
    world.save()
    world.run(5)
    world.kept = kept
    world.kill(0)
    assert world.kinds() & {"lost", "impossible"}


def test_a_gap_in_the_pushes_that_a_kill_lost_is_found(world: World) -> None:
    world.save()
    lost = world.push(0, keys=10)
    later = world.push(0, keys=10)
    world.run(2)
    before = {key: list(row) for key, row in world.cells.items()}
    world.kill(0)
    for key in KEYS:
        if shard_of(np.array([key], np.int64), SHARDS)[0] == 0:
            world.cells[key] = before[key]
            world.cells[key][0] -= lost.amounts[key]
    assert later.end is not None
    assert world.kinds() == {"impossible"}, "a kill takes the latest, not one in the middle"


def test_a_push_under_way_at_a_kill_may_have_come_after_it(world: World) -> None:
    world.save()
    world.push(0, keys=10)
    start = world.tick()
    world.kill(0)
    amounts = dict.fromkeys(KEYS, 7)
    for key in KEYS:
        world.cells[key][0] += 7
    world.history.pushes.append(NotedPush(client=0, amounts=amounts, start=start, end=world.tick()))
    world.run(3)
    assert world.kinds() == set()


def test_a_stale_lookup_is_found(world: World) -> None:
    lookup = world.look([3])
    world.push(0, keys=10)
    world.history.lookups.append(replace(lookup, start=world.tick(), end=world.tick()))
    assert world.kinds() == {"stale"}


def test_a_lookup_of_a_later_push_is_found(world: World) -> None:
    start, end = world.tick(), world.tick()
    world.push(0, keys=10)
    world.history.lookups.append(replace(world.look([3]), start=start, end=end))
    assert "early" in world.kinds()


def test_a_lookup_of_a_value_that_never_was_is_found(world: World) -> None:
    world.push(0, acknowledged=False, keys=10)
    lookup = world.look([3])
    world.history.lookups[-1] = replace(lookup, cells={3: [lookup.cells[3][0] - 1, *lookup.cells[3][1:]]})
    assert "impossible" in world.kinds()


def test_lookups_that_go_back_in_time_are_found(world: World) -> None:
    before = world.look([3])
    push = world.push(0, acknowledged=False, keys=10)
    world.look([3])
    world.history.lookups.append(replace(before, start=world.tick(), end=world.tick()))
    assert push.end is None
    assert world.kinds() == {"backwards"}


# --- clients ---


class Shaky:
    """A store that fails at times, before or after it has executed a call.

    It fails at most 20 times, because each unacknowledged push makes the check longer.
    """

    def __init__(self, table: MultiTable, seed: int) -> None:
        self._table = table
        self._chance = random.Random(seed)
        self._faults_left = 20

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)

    @contextmanager
    def _fault(self) -> Iterator[None]:
        self._fail_at_times("before")
        yield
        self._fail_at_times("after")

    def _fail_at_times(self, moment: str) -> None:
        if self._faults_left and self._chance.random() < 0.05:
            self._faults_left -= 1
            raise ShardUnavailable(moment)

    def pull(self, ids: object) -> object:
        with self._fault():
            return self._table.pull(ids)  # type: ignore[arg-type]

    def push(self, ids: object, grads: object) -> None:
        with self._fault():
            self._table.push(ids, grads)  # type: ignore[arg-type]

    def close(self) -> None:
        pass


def test_clients_of_a_sound_store_leave_a_possible_history(seed: int) -> None:
    history = History(clients=CLIENTS, shards=1)
    table = MultiTable([numbers_table(CLIENTS)])
    with HistoryClients(history, lambda: Shaky(table, seed), KEYS, seed=seed) as clients:  # type: ignore[arg-type,return-value]
        assert clients.wait_for(300, 60)
    final: Cells = read_numbers(table, KEYS)
    assert history.violations(final) == []
    assert any(push.end is None for push in history.pushes)
    assert clients.failures
    wrong = {key: [row[0] + 1, *row[1:]] for key, row in final.items()}
    assert history.violations(wrong)


# --- many unacknowledged pushes ---


def doubtful_history(seed: int, count: int, keys: int) -> tuple[History, dict[int, list[int]]]:
    """Return a history of one client whose pushes all failed, and rows with a random half of them."""
    chance = random.Random(seed)
    history = History(clients=1, shards=1)
    cells = {key: [0] for key in KEYS}
    for number in range(count):
        amounts = {key: chance.randint(1, 999) for key in chance.sample(KEYS, chance.randint(2, keys))}
        history.pushes.append(NotedPush(client=0, amounts=amounts, start=float(number), end=None))
        if chance.random() < 0.5:
            for key, amount in amounts.items():
                cells[key][0] += amount
    return history, cells


def test_a_history_with_many_unacknowledged_pushes_is_decided(seed: int) -> None:
    history, cells = doubtful_history(seed, 40, 4)
    assert history.violations(cells) == []
    for key in KEYS:
        wrong = {**cells, key: [cells[key][0] + 1]}
        assert history.violations(wrong), f"key {key}"


def test_a_history_with_too_many_unacknowledged_pushes_is_checked_by_bounds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monolith.testing.suites.history._MOST_STEPS", 1000)
    history, cells = doubtful_history(seed, 200, 10)
    assert history.violations(cells) == []
    most = sum(push.amounts.get(3, 0) for push in history.pushes)
    assert {violation.kind for violation in history.violations({**cells, 3: [most + 1]})} == {"doubled"}

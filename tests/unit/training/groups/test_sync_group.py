"""Workers that connect, step together, lose each other and reconnect; each is a thread here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from monolith.core.clock import SystemClock
from monolith.core.errors import ClusterError
from monolith.embedding.ranks.channel import PeersLost
from monolith.testing.fakes.local_job_store import LocalJobStore
from monolith.training.cluster.job_state import JobState, WorkerEntry, WorkerPhase
from monolith.training.groups.base import ControlFlags, GroupClosed
from monolith.training.groups.workers.connections import GroupAddress, open_store
from monolith.training.groups.workers.rendezvous import ChiefRendezvous, RendezvousPoint, WorkerRendezvous
from monolith.training.groups.workers.sync_group import RoundTotals, SyncGroup

SESSION = 7
LIMIT_S = 60.0


class State:
    """Weights that are one number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def pack(self) -> bytes:
        return str(self.value).encode()

    def load(self, packed: bytes) -> None:
        self.value = float(packed)


class Workers:
    """A chief and others, on the tables of one store."""

    def __init__(self, size: int, stack: ExitStack, rendezvous_timeout_s: float = LIMIT_S) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._store = LocalJobStore()
        self._stack = stack
        self._options = {"size": size, "timeout_s": LIMIT_S, "rendezvous_timeout_s": rendezvous_timeout_s}
        self._pool = stack.enter_context(ThreadPoolExecutor(size))
        for index in range(size):
            self.rows(index).write(WorkerEntry(WorkerPhase.READY, SESSION, 0))

    def rows(self, index: int) -> JobState:
        return JobState(self._store, index, self.size, 0)

    def team(self, index: int) -> SyncGroup:
        place: Any = GroupAddress(index=index, **self._options)
        rendezvous = (
            WorkerRendezvous(place, SystemClock(), chief_host=lambda: "127.0.0.1", on_new_session=self._anew)
            if index
            else ChiefRendezvous(place, SystemClock())
        )
        rendezvous.begin(self.rows(index), lambda: SESSION)
        team = SyncGroup(rendezvous)
        self._stack.callback(team.close)
        return team

    def _anew(self) -> None:
        raise ClusterError("begun anew")

    def all(self, *calls: Callable[[], Any]) -> list[Any]:
        done: list[Future[Any]] = [self._pool.submit(call) for call in calls]
        return [each.result(LIMIT_S) for each in done]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def add(value: float, state: State) -> Callable[[Any], tuple[RoundTotals, float]]:
    """A round that adds up one number each, and then applies it."""

    def round_of(channels: Any) -> tuple[RoundTotals, float]:
        found = float(channels.words.sum(torch.tensor([value], dtype=torch.float64)))
        return RoundTotals(samples=int(found)), found

    return round_of


def step(team: SyncGroup, value: float, state: State) -> float | None:
    found = team.run_round(add(value, state))
    if found is not None:
        state.value += found
    return found


def test_all_workers_begin_with_the_chief_s_weights_and_sum_their_gradients(stack: ExitStack) -> None:
    workers = Workers(3, stack)
    teams, states = [workers.team(index) for index in range(3)], [State(10.0 * index) for index in range(3)]
    states[0].value = 5.0
    joins = [
        lambda i=i: teams[i].join(states[i], 4 if i == 0 else 0, is_current=i == 0)  # type: ignore[misc]
        for i in range(3)
    ]
    workers.all(*joins)
    assert [state.value for state in states] == [5.0] * 3
    found = workers.all(*(lambda i=i: step(teams[i], 1.0 + i, states[i]) for i in range(3)))  # type: ignore[misc]
    assert found == [6.0] * 3
    assert {team.rounds for team in teams} == {5}
    assert [state.value for state in states] == [11.0] * 3


@pytest.mark.parametrize("lost", [0, 1], ids=["chief", "worker"])
def test_a_restarted_worker_loads_the_weights_of_the_worker_that_lost_nothing(stack: ExitStack, lost: int) -> None:
    workers = Workers(2, stack)
    teams, states = [workers.team(index) for index in range(2)], [State(1.0), State(0.0)]
    workers.all(*(lambda i=i: teams[i].join(states[i], 0, is_current=i == 0) for i in range(2)))  # type: ignore[misc]
    workers.all(*(lambda i=i: step(teams[i], 1.0, states[i]) for i in range(2)))  # type: ignore[misc]
    teams[lost].close()
    teams[lost], states[lost] = workers.team(lost), State(-100.0)

    def come_back() -> float | None:
        teams[lost].join(states[lost], 0, is_current=False)
        return step(teams[lost], 2.0, states[lost])

    other = 1 - lost
    assert workers.all(lambda: step(teams[other], 3.0, states[other]), come_back) == [5.0, 5.0]
    assert [state.value for state in states] == [8.0, 8.0]
    assert {team.rounds for team in teams} == {2}


def test_a_round_that_another_has_finished_is_not_made_again(stack: ExitStack) -> None:
    workers = Workers(2, stack)
    teams, states = [workers.team(index) for index in range(2)], [State(0.0), State(0.0)]
    workers.all(*(lambda i=i: teams[i].join(states[i], 0, is_current=i == 0) for i in range(2)))  # type: ignore[misc]
    tried: list[int] = []

    def broken(channels: Any) -> tuple[RoundTotals, float]:
        found = add(4.0, states[1])(channels)
        if not tried:  # the other has the sum, and this one is not told
            tried.append(1)
            channels.close()
            with pytest.raises(AttributeError):
                channels.words._group.size()
            raise PeersLost("lost", reason="lost")
        return found

    def first() -> list[float | None]:
        return [step(teams[0], 1.0, states[0]), step(teams[0], 1.0, states[0])]

    def second() -> list[float | None]:
        found = teams[1].run_round(broken)
        return [found, step(teams[1], 1.0, states[1])]

    assert workers.all(first, second) == [[5.0, 2.0], [None, 2.0]]
    assert [state.value for state in states] == [7.0, 7.0]


def test_waiting_workers_name_the_missing_worker(stack: ExitStack) -> None:
    workers = Workers(3, stack, rendezvous_timeout_s=3.0)
    teams = [workers.team(index) for index in range(3)]

    def joined(index: int) -> str:
        with pytest.raises(ClusterError) as caught:
            teams[index].join(State(0.0), 0, is_current=not index)
        return str(caught.value)

    texts = workers.all(lambda: joined(0), lambda: joined(2))
    assert all("for worker 1; partially synchronous training needs all workers" in text for text in texts), texts
    alone = Workers(2, stack, rendezvous_timeout_s=0.2)
    with pytest.raises(ClusterError, match=r"worker 1 of 2 waited 0.2 s for worker 0"):
        alone.team(1).join(State(0.0), 0, is_current=False)


def test_a_stopped_worker_abandons_the_rendezvous_and_the_others_end_too(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers(3, stack)
    chief, other = workers.team(0), workers.team(2)
    is_there = threading.Event()

    def flags() -> ControlFlags:  # when both are waiting
        return ControlFlags(stop_reason="stopped" if is_there.is_set() else None)

    def join_chief() -> None:
        chief.flags = flags
        with pytest.raises(GroupClosed):
            chief.join(State(0.0), 0, is_current=True)
        chief.rendezvous.end()  # as it does when its run ends

    def join_other() -> None:
        other.flags = lambda: ControlFlags(stop_reason=is_there.set())  # type: ignore[func-returns-value]
        with pytest.raises(GroupClosed):
            other.join(State(0.0), 0, is_current=False)

    workers.all(join_chief, join_other)
    assert chief.is_incomplete
    assert not other.is_incomplete
    assert "rendezvous abandoned, worker stops missing=worker" in caplog.text


def test_no_worker_joins_a_training_that_has_ended(stack: ExitStack) -> None:
    workers = Workers(2, stack)
    chief = workers.team(0)
    chief.rendezvous.end()
    for index in range(2):
        with pytest.raises(GroupClosed):
            workers.team(index).join(State(0.0), 0, is_current=False)
    other = Workers(2, stack)
    other.rows(1).write(WorkerEntry(WorkerPhase.DONE, SESSION, 3))
    with pytest.raises(GroupClosed):  # that one has taken the last step
        other.team(0).join(State(0.0), 3, is_current=True)


def test_a_worker_notices_the_new_session_of_its_chief(stack: ExitStack) -> None:
    workers = Workers(2, stack)
    workers.rows(0).write(WorkerEntry(WorkerPhase.READY, SESSION + 1, 0))
    with pytest.raises(ClusterError, match="begun anew"):
        workers.team(1).join(State(0.0), 0, is_current=False)


def test_the_error_of_a_port_in_use_names_it() -> None:
    store, port = open_store(GroupAddress(index=0, size=2))
    with pytest.raises(ClusterError, match=rf"bind_port {port} .*in use.*bind_port 0 for any free port"):
        open_store(GroupAddress(index=0, size=2, bind_port=port))
    del store


def test_a_rendezvous_point_is_kept_in_a_row() -> None:
    rows = JobState(LocalJobStore(), 0, 2, 0)
    assert rows.rendezvous() == RendezvousPoint()
    for point in (RendezvousPoint((1 << 22) - 1, 3, 65535), RendezvousPoint(9, 0, 0, is_over=True)):
        rows.write_rendezvous(point)
        assert rows.rendezvous() == point
    assert rows.read() == [WorkerEntry(), WorkerEntry()]

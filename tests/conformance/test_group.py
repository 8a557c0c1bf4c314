"""Every group with one member trains like a process alone, and turns the requests of its member into decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
from monolith.core.clock import SystemClock
from monolith.core.errors import TrainingDiverged
from monolith.embedding import Adagrad
from monolith.layers import Dense
from monolith.testing.fakes.local_job_store import LocalJobStore
from monolith.training.cluster.job_state import JobState
from monolith.training.groups import Group, Solo
from monolith.training.groups.base import ControlFlags, DueSave
from monolith.training.groups.ranks import RankConnection, RankInfo, Ranks
from monolith.training.groups.workers import SyncGroup, Workers
from monolith.training.groups.workers.connections import GroupAddress
from monolith.training.groups.workers.rendezvous import ChiefRendezvous
from monolith.training.hooks import Hook

Make = Callable[[], Group]


class Small(mt.Model):
    """One feature, and a layer with a loss, which a group must count once."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1)
        self.vector = self.embedding_slice("user", "vector", 3, optimizer=Adagrad(0.1))
        self.dense = Dense(1, kernel_regularizer="l2")
        self.dense(torch.zeros(1, 3))  # gives the weights their shape, under the seed of the estimator

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(head="click", logits=self.dense(self.vector(batch)).squeeze(1), label=batch.label[:, 0])


def batches(count: int) -> list[mt.Batch]:
    numbers = np.random.default_rng(3)
    return [
        mt.Batch.from_arrays(
            ids={"user": [[int(user)] for user in numbers.integers(0, 9, 8)]}, label=numbers.integers(0, 2, 8)
        )
        for _ in range(count)
    ]


def make_workers(stack: ExitStack) -> Workers:
    rendezvous = ChiefRendezvous(GroupAddress(index=0, size=1, timeout_s=60, rendezvous_timeout_s=60), SystemClock())
    rendezvous.begin(JobState(LocalJobStore(), 0, 1, 0), lambda: 7)
    sync = SyncGroup(rendezvous)
    stack.callback(sync.close)
    return Workers(sync, rank=0, size=1, is_current=lambda: True)


@pytest.fixture(params=["solo", "ranks", "workers"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    with ExitStack() as stack:
        if request.param == "solo":
            yield Solo
        elif request.param == "ranks":
            connection = stack.enter_context(RankConnection(RankInfo()))
            yield lambda: Ranks(connection)
        else:
            yield lambda: make_workers(stack)


def estimator_of(group: Group, **options: Any) -> mt.Estimator:
    fixed = {"log_step_count_steps": 0, "save_summary_steps": 0, "threads": 1, "deterministic": True}
    return mt.Estimator(Small, mt.RunConfig(**{**fixed, **options}), group=group)


def rows_of(estimator: mt.Estimator) -> list[list[float]]:
    rows: list[list[float]] = estimator.store.pull({"user": np.arange(9)})["user"].tolist()
    return rows


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_one_member_gives_the_same_bytes_as_a_process_alone(make: Make, clip_norm: float | None) -> None:
    alone, member = (estimator_of(group, clip_norm=clip_norm) for group in (Solo(), make()))
    metrics = [estimator.train(batches(5)) for estimator in (alone, member)]
    assert member.step == alone.step == 5
    assert rows_of(member) == rows_of(alone)
    for name, weight in alone.model.state_dict().items():
        assert torch.equal(member.model.state_dict()[name], weight), name
    assert metrics[0] == metrics[1]
    assert len(set(map(tuple, rows_of(member)))) > 1, "the rows have learned"


def test_a_member_resumes_from_its_checkpoint(make: Make, tmp_path: Path) -> None:
    data = batches(6)
    straight = estimator_of(Solo())
    straight.train(data)
    first = estimator_of(make(), model_dir=str(tmp_path))
    first.train(data, max_steps=4)
    first.close()
    second = estimator_of(make(), model_dir=str(tmp_path))
    second.train(data)
    assert second.step == 6
    assert rows_of(second) == rows_of(straight)


def test_a_diverged_loss_is_raised_and_changes_nothing(make: Make) -> None:
    estimator = estimator_of(make())
    estimator.train(batches(1))
    before = rows_of(estimator)
    with torch.no_grad():
        estimator.model.dense.bias.fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match="loss is not finite"):
        estimator.train(batches(1))
    assert rows_of(estimator) == before


def test_the_requests_of_a_member_become_a_decision(make: Make) -> None:
    group = make()
    assert group.rank == 0
    assert group.size == 1
    quiet = group.agree(ControlFlags())
    assert (quiet.stop_reason, quiet.pauses, quiet.saves, quiet.due) == (None, False, False, DueSave.NONE)
    assert group.agree(ControlFlags(saves=True)).saves


class StopAt(Hook):
    """Stops the run after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def after_step(self, run: Any, result: Any) -> None:
        if result.step == self._step:
            run.stop("enough")


def test_a_stop_ends_the_run_within_one_step(make: Make) -> None:
    estimator = estimator_of(make())
    estimator.train(batches(9), hooks=[StopAt(3)])
    assert estimator.step in (3, 4), "partially synchronous workers agree during the next step"

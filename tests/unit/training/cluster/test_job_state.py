from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.embedding import MultiTable
from monolith.training.cluster.job_state import (
    JobState,
    WorkerEntry,
    WorkerPhase,
    job_state_specs,
    total_steps,
)


@pytest.fixture
def store() -> MultiTable:
    return MultiTable(job_state_specs())


@given(st.sampled_from(WorkerPhase), st.integers(0, 1 << 22), st.integers(0, 1 << 40))
def test_an_entry_is_read_as_it_was_written(phase: WorkerPhase, session: int, steps: int) -> None:
    state = JobState(MultiTable(job_state_specs()), 0, 1, 0)
    state.write(WorkerEntry(phase, session, steps))
    assert state.read() == [WorkerEntry(phase, session, steps)]


def test_every_worker_is_unknown_at_first(store: MultiTable) -> None:
    assert JobState(store, 0, 3, 0).read() == [WorkerEntry()] * 3


def test_each_worker_writes_its_own_row_and_sees_all(store: MultiTable) -> None:
    chief, worker = (JobState(store, index, 2, 10) for index in range(2))
    chief.write(WorkerEntry(WorkerPhase.READY, 7, 3))
    worker.write(WorkerEntry(WorkerPhase.READY, 7, 1 << 21))
    worker.write(WorkerEntry(WorkerPhase.DONE, 7, (1 << 21) + 1))
    rows = [WorkerEntry(WorkerPhase.READY, 7, 3), WorkerEntry(WorkerPhase.DONE, 7, (1 << 21) + 1)]
    assert chief.read() == worker.read() == rows
    assert total_steps(rows) == (1 << 21) + 4


def test_changes_of_all_workers_count(store: MultiTable) -> None:
    size = 300  # more than one row of the table, and not a whole number of them
    chief, worker = (JobState(store, index, 2, size) for index in range(2))
    first = np.arange(size, dtype=np.float32)
    weights, rows = chief.add(first, WorkerEntry(WorkerPhase.READY, 1, 0))
    assert np.array_equal(weights, first), "on new servers the first weights arrive bit by bit"
    assert rows[0] == WorkerEntry(WorkerPhase.READY, 1, 0)
    weights, _ = worker.weights()
    worker.add(np.full(size, 0.5, np.float32), WorkerEntry(WorkerPhase.READY, 1, 1))
    weights, rows = chief.add(np.full(size, 0.25, np.float32), WorkerEntry(WorkerPhase.READY, 1, 1))
    assert np.array_equal(weights, first + 0.75)
    assert rows == [WorkerEntry(WorkerPhase.READY, 1, 1)] * 2


def test_a_row_is_right_again_after_its_server_went_back(store: MultiTable, tmp_path: object) -> None:
    worker = JobState(store, 0, 1, 4)
    worker.write(WorkerEntry(WorkerPhase.READY, 1, 5))
    store.snapshot(f"{tmp_path}/old")
    worker.write(WorkerEntry(WorkerPhase.READY, 1, 9))
    store.restore(f"{tmp_path}/old")
    worker.write(WorkerEntry(WorkerPhase.READY, 1, 10))
    assert worker.read() == [WorkerEntry(WorkerPhase.READY, 1, 10)]


def test_a_model_without_dense_weights_has_none_to_share(store: MultiTable) -> None:
    weights, rows = JobState(store, 0, 1, 0).add(np.empty(0, np.float32), WorkerEntry(WorkerPhase.READY, 1, 2))
    assert len(weights) == 0
    assert rows == [WorkerEntry(WorkerPhase.READY, 1, 2)]

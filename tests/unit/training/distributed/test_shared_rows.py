from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.embedding import MultiTable
from monolith.training.distributed.shared_rows import (
    DONE,
    READY,
    SharedRows,
    WorkerRow,
    shared_specs,
    total_steps,
)


@pytest.fixture
def store() -> MultiTable:
    return MultiTable(shared_specs())


@given(st.integers(0, 3), st.integers(0, 1 << 22), st.integers(0, 1 << 40))
def test_a_row_holds_what_it_is_given(state: int, session: int, steps: int) -> None:
    row = WorkerRow(state, session, steps)
    assert WorkerRow.decode(row.encode()) == row


def test_nobody_was_seen_at_first(store: MultiTable) -> None:
    assert SharedRows(store, 0, 3, 0).read() == [WorkerRow()] * 3


def test_each_worker_writes_its_own_row_and_sees_all(store: MultiTable) -> None:
    chief, worker = (SharedRows(store, index, 2, 10) for index in range(2))
    chief.write(WorkerRow(READY, 7, 3))
    worker.write(WorkerRow(READY, 7, 1 << 21))
    worker.write(WorkerRow(DONE, 7, (1 << 21) + 1))
    rows = [WorkerRow(READY, 7, 3), WorkerRow(DONE, 7, (1 << 21) + 1)]
    assert chief.read() == worker.read() == rows
    assert total_steps(rows) == (1 << 21) + 4


def test_changes_of_all_workers_count(store: MultiTable) -> None:
    size = 300  # more than one row of the table, and not a whole number of them
    chief, worker = (SharedRows(store, index, 2, size) for index in range(2))
    first = np.arange(size, dtype=np.float32)
    weights, rows = chief.add(first, WorkerRow(READY, 1, 0))
    assert np.array_equal(weights, first), "on new servers the first weights arrive bit by bit"
    assert rows[0] == WorkerRow(READY, 1, 0)
    weights, _ = worker.weights()
    worker.add(np.full(size, 0.5, np.float32), WorkerRow(READY, 1, 1))
    weights, rows = chief.add(np.full(size, 0.25, np.float32), WorkerRow(READY, 1, 1))
    assert np.array_equal(weights, first + 0.75)
    assert rows == [WorkerRow(READY, 1, 1)] * 2


def test_a_row_is_right_again_after_its_server_went_back(store: MultiTable, tmp_path: object) -> None:
    worker = SharedRows(store, 0, 1, 4)
    worker.write(WorkerRow(READY, 1, 5))
    store.snapshot(f"{tmp_path}/old")
    worker.write(WorkerRow(READY, 1, 9))
    store.restore(f"{tmp_path}/old")
    worker.write(WorkerRow(READY, 1, 10))
    assert worker.read() == [WorkerRow(READY, 1, 10)]


def test_a_model_without_dense_weights_has_none_to_share(store: MultiTable) -> None:
    weights, rows = SharedRows(store, 0, 1, 0).add(np.empty(0, np.float32), WorkerRow(READY, 1, 2))
    assert len(weights) == 0
    assert rows == [WorkerRow(READY, 1, 2)]

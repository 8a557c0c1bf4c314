"""One suite for the stores of a job state: parameter servers over both transports, and the fake in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from monolith.ps import RemoteStore
from monolith.testing.fakes.local_job_store import LocalJobStore
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster.job_state import (
    JobState,
    JobStore,
    WorkerEntry,
    WorkerPhase,
    job_state_specs,
    total_steps,
)
from monolith.training.groups.workers.rendezvous import RendezvousPoint

# gRPC is built without sanitizers, and its threads would be reported.
IS_SANITIZED = "MONOLITH_SANITIZED" in os.environ
REMOTE = [f"{transport}-{count}" for transport in ("grpc", "data_plane") for count in (1, 3) if not IS_SANITIZED]


@pytest.fixture(params=["local", *REMOTE])
def store(request: pytest.FixtureRequest) -> Iterator[JobStore]:
    if request.param == "local":
        yield LocalJobStore()
        return
    transport, count = request.param.split("-")
    with (
        PsServers(int(count)) as servers,
        RemoteStore(servers.addresses, job_state_specs(), transport=transport) as remote,
    ):
        yield remote


def test_every_worker_is_unknown_at_first(store: JobStore) -> None:
    state = JobState(store, 0, 3, 0)
    assert state.read() == [WorkerEntry()] * 3
    assert (state.paused_session, state.rendezvous()) == (0, RendezvousPoint())


@pytest.mark.parametrize("phase", WorkerPhase)
def test_an_entry_is_read_as_it_was_written(store: JobStore, phase: WorkerPhase) -> None:
    state = JobState(store, 0, 1, 0)
    for entry in (WorkerEntry(phase, 1 << 22, 1 << 40), WorkerEntry(phase, 0, 0)):
        state.write(entry)
        assert state.read() == [entry]


def test_each_worker_writes_its_own_entry_and_reads_all(store: JobStore) -> None:
    chief, worker = (JobState(store, index, 2, 10) for index in range(2))
    chief.write(WorkerEntry(WorkerPhase.READY, 7, 3))
    worker.write(WorkerEntry(WorkerPhase.READY, 7, 1 << 21))
    worker.write(WorkerEntry(WorkerPhase.DONE, 7, (1 << 21) + 1))
    entries = [WorkerEntry(WorkerPhase.READY, 7, 3), WorkerEntry(WorkerPhase.DONE, 7, (1 << 21) + 1)]
    assert chief.read() == worker.read() == entries
    assert total_steps(entries) == (1 << 21) + 4
    assert worker.chief_session() == 7
    assert (chief.has_finished_worker(7), chief.has_finished_worker(8)) == (True, False)


def test_a_pause_is_published_and_withdrawn(store: JobStore) -> None:
    chief, worker = (JobState(store, index, 2, 0) for index in range(2))
    chief.write_pause(7)
    worker.read()
    assert (chief.paused_session, worker.paused_session) == (7, 7)
    chief.write_pause(0)
    worker.read()
    assert (chief.paused_session, worker.paused_session) == (0, 0)


def test_the_newest_rendezvous_point_counts(store: JobStore) -> None:
    chief, worker = (JobState(store, index, 2, 0) for index in range(2))
    chief.write_rendezvous(RendezvousPoint(7, 1, 65535, False))
    chief.write_rendezvous(RendezvousPoint(7, 2, 1024, True))
    assert worker.rendezvous() == RendezvousPoint(7, 2, 1024, True)


def test_changes_of_all_workers_count(store: JobStore) -> None:
    size = 300  # more than one row of the table, and not a whole number of them
    chief, worker = (JobState(store, index, 2, size) for index in range(2))
    first = np.arange(size, dtype=np.float32)
    weights, entries = chief.add(first, WorkerEntry(WorkerPhase.READY, 1, 0))
    assert np.array_equal(weights, first), "on new servers the first weights arrive bit by bit"
    assert entries[0] == WorkerEntry(WorkerPhase.READY, 1, 0)
    worker.add(np.full(size, 0.5, np.float32), WorkerEntry(WorkerPhase.READY, 1, 1))
    weights, entries = chief.add(np.full(size, 0.25, np.float32), WorkerEntry(WorkerPhase.READY, 1, 1))
    assert np.array_equal(weights, first + 0.75)
    assert entries == [WorkerEntry(WorkerPhase.READY, 1, 1)] * 2


def test_a_model_without_dense_weights_shares_none(store: JobStore) -> None:
    weights, entries = JobState(store, 0, 1, 0).add(np.empty(0, np.float32), WorkerEntry(WorkerPhase.READY, 1, 2))
    assert len(weights) == 0
    assert entries == [WorkerEntry(WorkerPhase.READY, 1, 2)]

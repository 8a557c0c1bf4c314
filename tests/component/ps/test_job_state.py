"""The job state of real servers: it belongs to the rows in pushes, cuts, logs and snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.core.errors import ConfigError, MonolithError, ShardUnavailable
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec
from monolith.ps import RemoteStore, ServerConfig, messages
from monolith.ps.job_records import decode_logged_state, encode_logged_state, read_saved_state
from monolith.ps.link import ServerLink
from monolith.testing.processes.ps_servers import PsServers

TABLE = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))], deterministic=True)
IDS = np.arange(6)
NEVER = 1e6
"""An interval that no test lives to see: tests write segments explicitly."""


def of_worker(index: int, steps: int, *, phase: int = 1, session: int = 7) -> messages.JobChange:
    entry = messages.WorkerEntry(phase=phase, session=session, steps=steps)
    return messages.JobChange(worker=messages.WorkerChange(index=index, entry=entry))


def of_rendezvous(generation: int) -> messages.JobChange:
    point = messages.Rendezvous(session=7, generation=generation, port=9000, is_over=True)
    return messages.JobChange(rendezvous=point)


def step(store: RemoteStore, steps: int, index: int = 1) -> None:
    """Add 1 to all rows, and set the steps of a worker in the same push."""
    store.push({"t": IDS}, {"t": np.full((len(IDS), 1), -1.0, np.float32)}, job_change=of_worker(index, steps))


def total(store: RemoteStore) -> float:
    return float(store.pull({"t": IDS})["t"].sum())


def steps(store: RemoteStore, index: int = 1) -> int:
    return store.job_state().workers[index].steps


def fill(store: RemoteStore) -> messages.JobState:
    """Set every kind of value; return the state."""
    step(store, 1 << 40, index=3)
    store.update_job_state(of_worker(0, 5, phase=4))
    store.update_job_state(messages.JobChange(paused_session=7))
    store.update_job_state(of_rendezvous(2))
    return store.job_state()


@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 2), (2, 3)])
def test_a_snapshot_has_the_job_state_of_its_cut_for_any_number_of_servers(
    serve: Callable[..., PsServers], store_of: Callable[..., RemoteStore], tmp_path: Path, before: int, after: int
) -> None:
    first = store_of(serve(before), [TABLE])
    expected = fill(first)
    cut = first.cut()
    step(first, 9, index=3)
    first.update_job_state(messages.JobChange(paused_session=0))
    cut.write(tmp_path / "s")
    second = store_of(serve(after), [TABLE])
    second.update_job_state(of_worker(8, 1))
    second.restore(tmp_path / "s")
    assert second.job_state() == expected
    assert (expected.workers[3].steps, expected.paused_session, expected.rendezvous.generation) == (1 << 40, 7, 2)
    assert total(second) == len(IDS)


def test_a_snapshot_without_job_state_clears_it(
    serve: Callable[..., PsServers], store_of: Callable[..., RemoteStore], tmp_path: Path
) -> None:
    store = store_of(serve(2), [TABLE])
    store.snapshot(tmp_path / "empty")
    assert read_saved_state(tmp_path / "empty") is None
    fill(store)
    store.restore(tmp_path / "empty")
    assert store.job_state() == messages.JobState()
    fill(store)
    store.rewind()
    assert store.job_state() == messages.JobState(), "servers without a snapshot rewind to empty tables"


@pytest.mark.parametrize("transport", ["grpc", "data_plane"])
def test_every_joint_cut_has_a_push_and_its_job_state_or_neither(
    serve: Callable[..., PsServers], store_of: Callable[..., RemoteStore], tmp_path: Path, transport: str
) -> None:
    servers = serve(2)
    reader, other = store_of(servers, [TABLE]), store_of(serve(1), [TABLE])
    errors: list[BaseException] = []
    is_over = threading.Event()

    def train(index: int) -> None:
        try:
            with RemoteStore(servers.addresses, [TABLE], transport=transport) as store:
                count = 0
                while not is_over.is_set():
                    count += 1
                    step(store, count, index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(8):
            reader.snapshot(tmp_path / f"{number}")
            other.restore(tmp_path / f"{number}")
            state = other.job_state()
            assert total(other) == len(IDS) * sum(entry.steps for entry in state.workers.values())
    finally:
        is_over.set()
        for thread in threads:
            thread.join(30)
    assert errors == []
    assert steps(reader, 0) > 0


@pytest.mark.parametrize("transport", ["grpc", "data_plane"])
def test_a_crashed_server_recovers_the_job_state_of_its_rows(
    serve: Callable[..., PsServers], store_of: Callable[..., RemoteStore], tmp_path: Path, transport: str
) -> None:
    config = ServerConfig(delta_log=tmp_path / "log", delta_interval_s=NEVER)
    servers = serve(2, delta_log=tmp_path / "log", delta_interval_s=NEVER)
    store = store_of(servers, [TABLE], transport=transport, on_restart=lambda _: None)
    expected = fill(store)
    store.flush_deltas()
    step(store, 9, index=3)  # after the last segment, so lost
    servers.servers[0]._log.close()  # type: ignore[union-attr]
    servers.restart(0, config)
    assert store.job_state() == expected
    step(store, 10, index=3)
    assert steps(store, 3) == 10, "the same client continues with later revisions"
    store.flush_deltas()
    store.update_job_state(of_worker(3, 11))
    assert store.flush_deltas()[0] > 0
    servers.servers[0]._log.close()  # type: ignore[union-attr]
    servers.restart(0, config)
    assert steps(store, 3) == 11, "a change without a push is in the log"


def test_a_server_recovers_the_job_state_from_snapshot_and_log(
    serve: Callable[..., PsServers], store_of: Callable[..., RemoteStore], tmp_path: Path
) -> None:
    servers = serve(1, delta_log=tmp_path / "log", delta_interval_s=NEVER)
    store = store_of(servers, [TABLE], on_restart=lambda _: None)
    step(store, 1)
    store.snapshot(tmp_path / "s")
    step(store, 2)
    store.flush_deltas()
    servers.restart(0, ServerConfig(delta_log=tmp_path / "log", delta_interval_s=NEVER, recover_from=tmp_path / "s"))
    assert (steps(store), total(store)) == (2, 2 * len(IDS))
    store.rewind()
    assert (steps(store), total(store)) == (1, len(IDS))
    servers.restart(0, ServerConfig(recover_from=tmp_path / "s"))
    assert (steps(store), total(store)) == (1, len(IDS)), "the snapshot alone has the state too"


# --- calls ---


def test_a_delayed_change_does_not_undo_a_later_one(
    serve: Callable[..., PsServers], store_of: Callable[..., RemoteStore]
) -> None:
    servers = serve(1)
    store_of(servers, [TABLE])
    instance = servers.servers[0].tables.shard.instance
    link = ServerLink(servers.addresses[0])

    def update(client: int, revision: int, count: int) -> int:
        request = messages.UpdateJobStateRequest(
            instance=instance, change=of_worker(1, count), client=client, revision=revision
        )
        link.call("UpdateJobState", request, 10.0)
        state = link.call("GetJobState", messages.GetJobStateRequest(instance=instance), 10.0).state
        return int(state.workers[1].steps)

    try:
        assert [update(5, 2, 20), update(5, 1, 10), update(5, 2, 20), update(6, 1, 30)] == [20, 20, 20, 30]
    finally:
        link.close()


def test_a_bad_call_is_refused_with_the_reason(
    serve: Callable[..., PsServers], store_of: Callable[..., RemoteStore]
) -> None:
    servers = serve(2)
    store = store_of(servers, [TABLE])
    instances = [server.tables.shard.instance for server in servers.servers]
    links = [ServerLink(address) for address in servers.addresses]

    def call(verb: str, request: Any, server: int = 0) -> None:
        links[server].call(verb, request, 10.0)

    def request(change: messages.JobChange, instance: int = instances[0]) -> messages.UpdateJobStateRequest:
        return messages.UpdateJobStateRequest(instance=instance, change=change, client=1, revision=1)

    try:
        with pytest.raises(ConfigError, match="server is 1, expected 0"):
            call("GetJobState", messages.GetJobStateRequest(instance=instances[1]), server=1)
        with pytest.raises(ConfigError, match="change is empty"):
            call("UpdateJobState", request(messages.JobChange()))
        with pytest.raises(ConfigError, match="65536"):
            call("UpdateJobState", request(of_worker(1 << 20, 1)))
        with pytest.raises(ShardUnavailable, match="restarted"):
            call("UpdateJobState", request(of_worker(0, 1), instance=1))
    finally:
        for link in links:
            link.close()
    with pytest.raises(MonolithError, match="65536"):
        step(store, 1, index=1 << 20)
    assert (store.job_state(), total(store)) == (messages.JobState(), 0), "nothing was changed"


# --- formats ---


def test_marks_without_job_state_keep_their_form_in_the_log() -> None:
    marks = b"\1\0\0\0\0\0\0\0"
    assert encode_logged_state(marks, []) == marks
    assert decode_logged_state(marks) == (marks, [])
    records = [(3, 9, 4, of_worker(1, 5).SerializeToString())]
    assert decode_logged_state(encode_logged_state(marks, records)) == (marks, records)


@pytest.mark.parametrize("servers", [1, 3])
def test_a_snapshot_of_an_earlier_release_has_its_job_state_as_rows(
    serve: Callable[..., PsServers], store_of: Callable[..., RemoteStore], tmp_path: Path, servers: int
) -> None:
    options: Any = {"nan_gradients": "error", "deterministic": True}
    old = MultiTable([TABLE, TableSpec("monolith.workers", [SliceSpec(4, optimizer=Sgd(1.0))], **options)])
    values = {  # phase, session, steps below 2**20, multiples of 2**20; and likewise pause and rendezvous
        0: [1, 7, 5, 0],
        2: [2, 7, 3, 4],
        1 << 40: [4, 7, 0, 0],
        (1 << 40) + 1: [1, 7, 2, 9000],
    }
    ids, rows = np.array(list(values), np.int64), np.array(list(values.values()), np.float32)
    old.push({"monolith.workers": ids, "t": IDS}, {"monolith.workers": -rows, "t": -np.ones((6, 1), np.float32)})
    old.save(tmp_path / "old")
    expected = messages.JobState(
        workers={
            0: messages.WorkerEntry(phase=1, session=7, steps=5),
            2: messages.WorkerEntry(phase=2, session=7, steps=3 + (4 << 20)),
        },
        paused_session=7,
        rendezvous=messages.Rendezvous(session=7, generation=2, port=9000, is_over=True),
    )
    recovering = serve(servers, recover_from=tmp_path / "old")
    store = store_of(recovering, [TABLE])
    assert store.job_state() == expected, "a server that recovers from it"
    other = store_of(serve(servers), [TABLE])
    assert "monolith.workers" in other.restore(tmp_path / "old").skipped
    assert other.job_state() == expected
    other.snapshot(tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").glob("*.rows")}
    assert read_saved_state(tmp_path / "new") == expected

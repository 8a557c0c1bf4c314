"""A store over servers has the same rows as local tables, also after crashes of servers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.core.clock import SystemClock
from monolith.core.errors import (
    CapacityExceeded,
    ClusterError,
    ConfigError,
    MonolithError,
    RetriesExhausted,
    SchemaMismatch,
    ShardUnavailable,
)
from monolith.core.retry import RetryPolicy
from monolith.embedding import Adam, MultiTable, RandomUniform, Sgd, SliceSpec, SlidingHashFilter, TableSpec
from monolith.embedding.snapshot import TableCut, read_manifest
from monolith.ps import RemoteStore, Restart, ServerConfig
from monolith.testing import FakeClock

TRANSPORTS = pytest.mark.parametrize("transport", ["grpc", "data_plane"])
QUICK = RetryPolicy(attempts=100, initial_backoff_s=0.01, max_backoff_s=0.1, deadline_s=0.5)

WIDE = TableSpec(
    "wide",
    [SliceSpec(1, optimizer=Sgd(0.1)), SliceSpec(5, optimizer=Adam(0.01), initializer=RandomUniform(-0.1, 0.1))],
    on_miss="initial",
    seed=3,
    deterministic=True,
)
COUNTED = TableSpec(
    "counted",
    [SliceSpec(2, optimizer=Sgd(1.0))],
    admission=SlidingHashFilter(capacity=300),
    slot_thresholds={0: 3},
    deterministic=True,
)


def train(store: Any, seed: int, steps: int = 20) -> None:
    random = np.random.default_rng(seed)
    for step in range(steps):
        ids = {name: np.unique(random.integers(-40, 40, 30)) for name in ("wide", "counted")}
        rows = store.pull(ids)
        grads = {name: rows[name] * 0.5 + random.standard_normal(rows[name].shape, np.float32) for name in ids}
        counts = {"counted": random.integers(1, 3, len(ids["counted"]))}
        store.push(ids, grads, counts=counts, time_s=1000 + step, step=step)


def content(store: Any) -> dict[str, bytes]:
    ids = np.arange(-60, 60)
    return {name: rows.tobytes() for name, rows in store.pull({"wide": ids, "counted": ids}).items()}


# --- the same as local tables ---


@TRANSPORTS
@pytest.mark.parametrize("count", [1, 2, 3])
def test_training_gives_the_same_bytes_as_local_tables(
    serve: Any, store_of: Any, transport: str, count: int, seed: int
) -> None:
    local = MultiTable([WIDE, COUNTED])
    remote = store_of(serve(count), [COUNTED, WIDE], transport=transport)
    assert remote.transport == transport
    train(local, seed)
    train(remote, seed)
    assert content(remote) == content(local)


@TRANSPORTS
def test_more_than_a_million_ids_of_one_shard_are_not_mixed_up(serve: Any, store_of: Any, transport: str) -> None:
    narrow = TableSpec("n", [SliceSpec(1, optimizer=Sgd(1.0))])
    store = store_of(serve(1), [narrow], transport=transport)
    ids = np.arange(1_100_000)
    store.push({"n": ids}, {"n": -ids.astype(np.float32)[:, None]})
    assert (store.pull({"n": ids[::-1].copy()})["n"].ravel() == ids[::-1]).all()


@TRANSPORTS
def test_half_precision_on_the_wire_is_near(serve: Any, store_of: Any, transport: str) -> None:
    servers = serve(2)
    store = store_of(servers, transport=transport, half=True)
    grads = np.array([[0.1, -3.0], [1000.5, 1e9]], np.float32)
    store.push({"user": np.array([1, 2])}, {"user": grads})
    rows = store.pull({"user": np.array([1, 2])})["user"]
    assert np.allclose(rows[:, 0], -grads[:, 0], rtol=1e-3)
    assert rows[1, 1] == -65504  # the limit of float16


@TRANSPORTS
def test_pushes_of_many_threads_are_all_applied_once(serve: Any, store_of: Any, transport: str) -> None:
    store = store_of(serve(2), transport=transport)
    one = {"user": np.arange(10)}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.push(one, {"user": np.full((10, 2), -1, np.float32)}), range(50)))
    assert (store.pull(one)["user"] == 50).all()


# --- finding the servers ---


def test_servers_are_ordered_by_index_for_any_order_of_addresses(serve: Any) -> None:
    servers = serve(3)
    with RemoteStore(servers.addresses[::-1], [WIDE]) as store:
        assert list(store.addresses) == servers.addresses


def test_the_same_server_twice_is_refused(serve: Any) -> None:
    servers = serve(2)
    with pytest.raises(ConfigError, match=r"indexes .* 0 to 1"):
        RemoteStore([servers.addresses[0]] * 2, [WIDE])


def test_another_number_of_servers_is_refused(serve: Any) -> None:
    servers = serve(2)
    with pytest.raises(ConfigError, match="shards is 1 at the client, but this server was started as 0 of 2"):
        RemoteStore(servers.addresses[:1], [WIDE])


def test_wrong_settings_are_refused(serve: Any) -> None:
    with pytest.raises(ConfigError, match="at least one PS address is required"):
        RemoteStore([], [WIDE])
    with pytest.raises(ConfigError, match="transport is 'carrier pigeon'"):
        RemoteStore(["127.0.0.1:1"], [WIDE], transport="carrier pigeon")
    with pytest.raises(ConfigError, match="distinct names"):
        RemoteStore(["127.0.0.1:1"], [WIDE, WIDE])


def test_a_server_without_a_data_plane_is_reached_over_grpc(serve: Any, store_of: Any) -> None:
    servers = serve(1, data_plane=False)
    assert store_of(servers).transport == "grpc"
    with pytest.raises(ConfigError, match="not all servers offer"):
        store_of(servers, transport="data_plane")


def test_the_data_plane_is_taken_where_it_is_offered(serve: Any, store_of: Any) -> None:
    assert store_of(serve(2)).transport == "data_plane"


def test_a_server_that_does_not_answer_is_named_and_the_wait_ends() -> None:
    with pytest.raises(RetriesExhausted, match=r"Connect at 127\.0\.0\.1:1: no server answers"):
        RemoteStore(["127.0.0.1:1"], [WIDE], retries=QUICK)


# --- agreement ---


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("dim is 3 at the client, 2 at the server", TableSpec("user", [SliceSpec(3, optimizer=Sgd())])),
        ("slices is '2 items'", TableSpec("user", [SliceSpec(1, optimizer=Sgd()), SliceSpec(1, optimizer=Sgd())])),
        (r"slices\[0\].optimizer.kind is 'adam'", TableSpec("user", [SliceSpec(2, optimizer=Adam())])),
        (
            r"admission.kind",
            TableSpec("user", [SliceSpec(2, optimizer=Sgd())], admission=SlidingHashFilter(capacity=300)),
        ),
        ("'other'", TableSpec("other", [SliceSpec(2, optimizer=Sgd())])),
    ],
)
def test_a_client_with_other_tables_gets_an_error_that_names_the_field(serve: Any, field: str, spec: TableSpec) -> None:
    servers = serve(1)
    mine = TableSpec("user", [SliceSpec(2, optimizer=Sgd())])
    with RemoteStore(servers.addresses, [mine]), pytest.raises(SchemaMismatch, match=field):
        RemoteStore(servers.addresses, [spec])


def test_clients_may_differ_in_their_learning_rates(serve: Any) -> None:
    servers = serve(1)
    slow = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0), learning_rate=lambda step: 1.0 + step)])
    quick = TableSpec("t", [SliceSpec(1, optimizer=Sgd(5.0))])
    with RemoteStore(servers.addresses, [slow]) as one, RemoteStore(servers.addresses, [quick]) as other:
        one.push({"t": np.array([1])}, {"t": np.array([[1.0]], np.float32)}, step=1)
        other.push({"t": np.array([1])}, {"t": np.array([[1.0]], np.float32)})
        assert one.pull({"t": np.array([1])})["t"].tolist() == [[-7.0]]


# --- failures ---


@TRANSPORTS
def test_a_refusal_of_the_table_comes_back_by_its_class(serve: Any, store_of: Any, transport: str) -> None:
    small = TableSpec("s", [SliceSpec(8, optimizer=Sgd())], max_bytes=100_000)
    store = store_of(serve(1), [small], transport=transport)
    ids = np.arange(100_000)
    with pytest.raises(CapacityExceeded, match="max_bytes"):
        store.push({"s": ids}, {"s": np.ones((len(ids), 8), np.float32)})
    assert not store.pull({"s": ids})["s"].any()


@TRANSPORTS
def test_a_pull_with_one_server_away_returns_nothing_and_names_it(serve: Any, store_of: Any, transport: str) -> None:
    servers = serve(2)
    store = store_of(servers, transport=transport, retries=QUICK)
    servers.servers[1].stop(0)
    with pytest.raises(MonolithError, match=servers.addresses[1]):
        store.pull({"user": np.arange(4)})


class _RepairClock(SystemClock):
    """Calls ``repair`` once, in a sleep after ``is_due``."""

    def __init__(self, is_due: Callable[[], object], repair: Callable[[], None]) -> None:
        self._is_due = is_due
        self._repairs = [repair]

    def sleep_s(self, seconds: float) -> None:
        super().sleep_s(seconds)
        if self._repairs and self._is_due():
            self._repairs.pop()()


def _outage_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "parameter servers" in each.getMessage()]


@TRANSPORTS
def test_an_outage_is_logged_once_at_its_start_and_once_at_its_end(
    serve: Any, store_of: Any, transport: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monolith.ps.store._SILENT_S", 0.2)
    caplog.set_level("INFO", "monolith.ps.store")
    servers = serve(2)
    clock = _RepairClock(lambda: _outage_messages(caplog), lambda: servers.restart(1))
    store = store_of(
        servers, [WIDE, COUNTED], transport=transport, clock=clock, timeout_s=5.0, on_restart=lambda restart: None
    )
    before = content(store)
    servers.servers[1].stop(0.0)
    assert content(store) == before
    assert content(store) == before
    lost, back = _outage_messages(caplog)
    assert lost.startswith("parameter servers do not answer, retrying waited_s=")
    assert servers.addresses[1] in lost
    assert back.startswith("parameter servers answer again waited_s=")


def test_a_short_outage_is_not_logged(serve: Any, store_of: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "monolith.ps.store")
    servers = serve(1)
    clock = _RepairClock(lambda: True, lambda: servers.restart(0))
    store = store_of(servers, [WIDE, COUNTED], clock=clock, on_restart=lambda restart: None)
    servers.servers[0].stop(0.0)
    content(store)
    assert not _outage_messages(caplog)


def test_the_first_connection_has_its_own_deadline(serve: Any, store_of: Any) -> None:
    servers, clock = serve(1), FakeClock()
    servers.servers[0].stop(0.0)
    with pytest.raises(RetriesExhausted, match=r"the deadline of 15 s is near.*Connect at"):
        store_of(servers, clock=clock, connect_s=15)
    assert clock.monotonic_s() <= 15


@TRANSPORTS
def test_a_timeout_may_be_infinite(serve: Any, store_of: Any, transport: str) -> None:
    store = store_of(serve(1), transport=transport, timeout_s=math.inf, retries=RetryPolicy(attempts=1))
    store.push({"user": np.arange(4)}, {"user": np.full((4, 2), -1, np.float32)})
    assert (store.pull({"user": np.arange(4)})["user"] == 1).all()


@TRANSPORTS
def test_a_push_repeated_after_a_lost_answer_is_applied_once(
    serve: Any, store_of: Any, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(serve(2), transport=transport)
    send = store._transport.push
    sent = []

    def lose_the_first_answer(push: Any, timeout_s: float) -> None:
        sent.append(push.sequence)
        send(push, timeout_s)
        if len(sent) == 1:
            raise ShardUnavailable("the answer was lost")

    monkeypatch.setattr(store._transport, "push", lose_the_first_answer)
    store.push({"user": np.arange(4)}, {"user": np.full((4, 2), -1, np.float32)})
    assert sent == [1, 1]
    assert (store.pull({"user": np.arange(4)})["user"] == 1).all()


@TRANSPORTS
def test_a_restarted_server_that_has_recovered_is_taken_up(
    serve: Any, store_of: Any, tmp_path: Path, transport: str
) -> None:
    servers = serve(2)
    told: list[Restart] = []
    store = store_of(servers, transport=transport, on_restart=told.append)
    store.push({"user": np.arange(4)}, {"user": np.full((4, 2), -1, np.float32)})
    store.snapshot(tmp_path / "s")
    servers.restart(1, ServerConfig(recover_from=tmp_path / "s"))
    assert (store.pull({"user": np.arange(4)})["user"] == 1).all()
    assert told == [Restart(index=1, address=servers.addresses[1], rows=2)]
    store.push({"user": np.arange(4)}, {"user": np.full((4, 2), -1, np.float32)})
    assert (store.pull({"user": np.arange(4)})["user"] == 2).all()


@TRANSPORTS
def test_a_restarted_server_can_be_restored_while_the_others_continue(
    serve: Any, store_of: Any, tmp_path: Path, transport: str
) -> None:
    servers = serve(2)

    def restore(restart: Restart) -> None:
        store.restore_server(restart.index, tmp_path / "s")

    store = store_of(servers, transport=transport, on_restart=restore)
    store.push({"user": np.arange(4)}, {"user": np.full((4, 2), -1, np.float32)})
    store.snapshot(tmp_path / "s")
    store.push({"user": np.arange(4)}, {"user": np.full((4, 2), -1, np.float32)})
    servers.restart(1)
    assert store.pull({"user": np.arange(4)})["user"][:, 0].tolist() == [2, 1, 2, 1]


@TRANSPORTS
def test_a_server_that_restarts_empty_is_an_error_of_every_call(serve: Any, store_of: Any, transport: str) -> None:
    servers = serve(2)
    store = store_of(servers, transport=transport)
    store.push({"user": np.arange(4)}, {"user": np.ones((4, 2), np.float32)})
    servers.restart(0)
    with pytest.raises(ClusterError, match=r"server 0 at .* restarted without its rows"):
        store.pull({"user": np.arange(4)})
    with pytest.raises(ClusterError, match=r"server 0 .* restarted"):
        store.snapshot("/nowhere")


def test_a_restart_is_noticed_over_grpc_even_after_another_client_has_connected(serve: Any, store_of: Any) -> None:
    servers = serve(1)
    store = store_of(servers, transport="grpc")
    store.push({"user": np.array([1])}, {"user": np.ones((1, 2), np.float32)})
    servers.restart(0)
    store_of(servers, transport="grpc")
    with pytest.raises(ClusterError, match="restarted without its rows"):
        store.pull({"user": np.array([1])})


def test_a_server_that_restarts_without_a_data_plane_is_the_same_error_of_every_call(serve: Any, store_of: Any) -> None:
    servers = serve(1)
    store = store_of(servers, transport="data_plane", retries=QUICK, on_restart=lambda restart: None)
    servers.restart(0, ServerConfig(data_plane=False))
    for _ in range(2):
        with pytest.raises(ConfigError, match="transport is 'data_plane', which not all servers offer"):
            store.pull({"user": np.arange(4)})


# --- snapshots ---


def assert_same(one: Any, other: Any, tmp_path: Path) -> None:
    """Check that both hold the same rows, optimizer state and admission counts."""
    assert content(one) == content(other)
    train(one, 7)
    train(other, 7)
    assert content(one) == content(other)


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(1, 3), (3, 1), (3, 3), (2, 3), (3, 2), (0, 2), (2, 0)])
def test_a_snapshot_of_any_number_of_servers_loads_into_any_number(
    serve: Any, store_of: Any, tmp_path: Path, saved_by: int, loaded_by: int, seed: int
) -> None:
    def store(count: int) -> Any:
        return store_of(serve(count), [WIDE, COUNTED]) if count else MultiTable([WIDE, COUNTED])

    reference = MultiTable([WIDE, COUNTED])
    saver, loader = store(saved_by), store(loaded_by)
    for one in (reference, saver):
        train(one, seed)
    manifest = saver.snapshot(tmp_path / "s")
    assert sum(manifest.rows.values()) == sum(len(reference[name]) for name in reference)
    report = loader.restore(tmp_path / "s")
    assert report.restored == ("counted", "wide")
    assert_same(reference, loader, tmp_path)


def test_a_snapshot_of_three_servers_is_whole_for_every_reader(serve: Any, store_of: Any, tmp_path: Path) -> None:
    store = store_of(serve(3), [WIDE, COUNTED])
    train(store, 1)
    store.snapshot(tmp_path / "s")
    saved = {table.name: table for table in read_manifest(tmp_path / "s")}
    assert len(saved["wide"].parts) == len(saved["wide"].shards) == 3
    loaded = MultiTable.load(tmp_path / "s")
    assert content(loaded) == content(store)
    assert loaded.specs["wide"] == WIDE


def test_a_cut_is_of_its_moment_and_is_written_once(serve: Any, store_of: Any, tmp_path: Path) -> None:
    store = store_of(serve(2), [WIDE, COUNTED])
    train(store, 1)
    before = content(store)
    cut = store.cut()
    train(store, 2)
    cut.write(tmp_path / "s")
    with pytest.raises(ConfigError, match="already written or dropped"):
        cut.write(tmp_path / "again")
    store.restore(tmp_path / "s")
    assert content(store) == before


def test_a_dropped_or_replaced_cut_is_gone(serve: Any, store_of: Any, tmp_path: Path) -> None:
    store = store_of(serve(1), [WIDE, COUNTED])
    old, dropped = store.cut(), store.cut()
    dropped.drop()
    with pytest.raises(ShardUnavailable, match=r"cut \d+ is gone"):
        old.write(tmp_path / "s")
    assert not list((tmp_path / "s").iterdir())
    store.snapshot(tmp_path / "s")


@pytest.mark.parametrize("has_log", [False, True])
def test_a_cut_of_a_client_that_died_does_not_block_the_restore_of_the_next_one(
    serve: Any, store_of: Any, tmp_path: Path, has_log: bool
) -> None:
    servers = serve(2, delta_log=tmp_path / "log" if has_log else None)
    died = store_of(servers, [WIDE, COUNTED])
    train(died, 1)
    before = content(died)
    died.snapshot(tmp_path / "s")
    cut = died.cut()  # not written: its client was killed
    try:
        store = store_of(servers, [WIDE, COUNTED], save_timeout_s=30.0, retries=QUICK)
        train(store, 2)
        store.restore(tmp_path / "s")
        assert content(store) == before
        with pytest.raises(ShardUnavailable, match="is gone"):
            cut.write(tmp_path / "late")
        store.cut()
        store.rewind()
        assert sum(server.tables.rows for server in servers.servers) == 0
    finally:
        for server in servers.servers:
            server._cut.close()


def test_a_restore_waits_for_a_save_and_blocks_nothing_meanwhile(
    serve: Any, store_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = serve(1)
    store = store_of(servers, [WIDE, COUNTED])
    train(store, 1)
    before = content(store)
    is_saving, may_end = threading.Event(), threading.Event()
    write_part = TableCut.write_part

    def slowly(*arguments: Any) -> Any:
        is_saving.set()
        assert may_end.wait(60)
        return write_part(*arguments)

    monkeypatch.setattr(TableCut, "write_part", slowly)
    with ThreadPoolExecutor(2) as pool:
        saving = pool.submit(store.snapshot, tmp_path / "s")
        try:
            assert is_saving.wait(60)
            rewinding = pool.submit(store.rewind)
            with pytest.raises(TimeoutError):
                rewinding.result(0.3)
            train(store, 2)  # pushes are not delayed
            assert servers.servers[0].health.of().status == "HEALTHY"
        finally:
            may_end.set()
        saving.result(60)
        rewinding.result(60)
    assert content(MultiTable.load(tmp_path / "s")) == before
    assert servers.servers[0].tables.rows == 0


def test_a_snapshot_that_one_server_cannot_write_leaves_the_old_one(
    serve: Any, store_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = serve(2)
    store = store_of(servers, [WIDE, COUNTED])
    train(store, 1)
    before = content(store)
    store.snapshot(tmp_path / "s")
    files = sorted((tmp_path / "s").iterdir())
    train(store, 2)
    cut = store.cut()
    servers.servers[1]._cut.close()  # as after its lease
    with pytest.raises(ShardUnavailable, match="is gone"):
        cut.write(tmp_path / "s")
    assert sorted((tmp_path / "s").iterdir()) == files
    store.restore(tmp_path / "s")
    assert content(store) == before


def test_pushes_continue_while_a_snapshot_is_written(serve: Any, store_of: Any, tmp_path: Path) -> None:
    store = store_of(serve(2), [WIDE, COUNTED])
    train(store, 1)
    has_ended = threading.Event()

    def push() -> int:
        pushes = 0
        while not has_ended.is_set():
            train(store, pushes, steps=1)
            pushes += 1
        return pushes

    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(push)
        for number in range(3):
            store.snapshot(tmp_path / str(number))
        has_ended.set()
        assert pushing.result(60) > 0
    assert MultiTable.load(tmp_path / "2").names == ("counted", "wide")


# --- looking inside ---


def test_evict_explain_and_drain_reach_the_right_server(serve: Any, store_of: Any) -> None:
    old = TableSpec("t", [SliceSpec(1, optimizer=Sgd())], expire_days=1)
    servers = serve(2)
    store = store_of(servers, [old])
    store.push({"t": np.arange(3)}, {"t": np.ones((3, 1), np.float32)}, time_s=1)
    store.push({"t": np.array([9])}, {"t": np.ones((1, 1), np.float32)}, time_s=200_000)
    assert "is present" in store.explain("t", 1)
    assert store.evict(now_s=86_400) == 0
    assert store.evict() == 3  # all servers know the time of the last push
    with pytest.raises(ConfigError, match="no table 'x'"):
        store.explain("x", 1)
    store.drain()
    assert {server.health.of().status for server in servers.servers} == {"UNHEALTHY"}


@TRANSPORTS
def test_a_drained_server_refuses_calls_but_can_be_saved_from(
    serve: Any, store_of: Callable[..., RemoteStore], tmp_path: Path, transport: str
) -> None:
    store = store_of(serve(1), [WIDE, COUNTED], transport=transport, retries=QUICK)
    train(store, 1)
    cut_before = content(store)
    store.drain()
    with pytest.raises(MonolithError):
        store.pull({"wide": np.array([1])})
    store.snapshot(tmp_path / "s")
    assert content(MultiTable.load(tmp_path / "s")) == cut_before


@pytest.mark.parametrize("has_log", [False, True])
def test_pushes_wait_while_a_server_replaces_its_rows(
    serve: Any, store_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_log: bool
) -> None:
    servers = serve(1, delta_log=tmp_path / "log" if has_log else None)
    store = store_of(servers)
    ids, one = {"user": np.array([1])}, {"user": -np.ones((1, 2), np.float32)}
    store.push(ids, one)
    store.snapshot(tmp_path / "s")
    store.push(ids, one)
    held = servers.servers[0].tables
    restore_model, is_restoring, may_end = held._restore_model, threading.Event(), threading.Event()

    def slowly(path: Any) -> Any:
        is_restoring.set()
        assert may_end.wait(60)
        return restore_model(path)

    monkeypatch.setattr(held, "_restore_model", slowly)
    with ThreadPoolExecutor(2) as pool:
        restoring = pool.submit(store.restore, tmp_path / "s")
        assert is_restoring.wait(60)
        pushing = pool.submit(store.push, ids, one)
        with pytest.raises(TimeoutError):
            pushing.result(0.3)
        may_end.set()
        restoring.result(60)
        pushing.result(60)
    assert store.pull(ids)["user"].tolist() == [[2, 2]], "the push came after the restored row"

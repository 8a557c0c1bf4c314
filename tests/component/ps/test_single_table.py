"""Lookup and update of single tables: found, created, changed and refused rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from monolith.compat.ps_client.client import GradientEntry, LookupEntry
from monolith.core.errors import ClusterError, ConfigError, DimensionMismatch, RpcTimeout, ShardUnavailable
from monolith.embedding import Adagrad, SliceSpec, TableSpec
from monolith.ps import PsClient, messages, tables
from monolith.ps.link import ServerLink
from monolith.testing.eventually import eventually
from monolith.testing.processes.ps_servers import PsServers


@pytest.fixture
def servers(serve: Callable[..., PsServers]) -> PsServers:
    return serve(2)


@pytest.fixture
def client(servers: PsServers, client_of: Callable[..., PsClient]) -> PsClient:
    return client_of(servers)


@pytest.fixture
def link(serve: Callable[..., PsServers]) -> Any:
    link = ServerLink(serve(1, default_dim=4).addresses[0])
    yield link
    link.close()


def lookup(link: ServerLink, **fields: Any) -> messages.LookupResponse:
    return link.call("Lookup", messages.LookupRequest(table_name="t", **fields), 30)


def apply(link: ServerLink, **fields: Any) -> messages.ApplyGradientsResponse:
    return link.call("ApplyGradients", messages.ApplyGradientsRequest(table_name="t", **fields), 30)


# --- lookup ---


def test_a_lookup_counts_the_rows_that_it_creates_once(client: PsClient) -> None:
    first = client.lookup_detailed("t", [1, 2], 3)
    assert (first.rows.tolist(), first.found.tolist()) == ([[0, 0, 0]] * 2, [False, False])
    assert (first.num_found, first.num_initialized) == (0, 2)
    second = client.lookup_detailed("t", [1, 2], 3)
    assert (second.rows.tolist(), second.found.tolist()) == ([[0, 0, 0]] * 2, [True, True])
    assert (second.num_found, second.num_initialized) == (2, 0)


def test_a_read_of_an_unknown_table_creates_no_table(servers: PsServers, client: PsClient) -> None:
    seen = client.lookup_detailed("stray", [1, 2, 3], 2, create_if_missing=False)
    assert (seen.rows.tolist(), seen.num_found) == ([[0, 0]] * 3, 0)
    assert client.apply_gradients("stray", [1, 2], [[1, 1]] * 2, 0.1) == (0, 2)
    assert [server.tables.all for server in servers.servers] == [[], []]


def test_undeclared_tables_are_limited_in_number(link: ServerLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_TOUCHED_TABLES", 2)
    answers = [
        link.call("Lookup", messages.LookupRequest(table_name=name, fids=[1], create_if_missing=True), 30)
        for name in ("a", "b", "c", "a")
    ]
    assert [answer.status_code for answer in answers] == [0, 0, 1, 0]
    assert "'c' is not declared" in answers[2].error_message


def test_a_declared_table_replaces_an_undeclared_one(
    serve: Callable[..., PsServers], client_of: Callable[..., PsClient], store_of: Callable[..., Any]
) -> None:
    servers = serve(1)
    client_of(servers).lookup("user", [1], 16)  # a stray call before the job starts
    store = store_of(servers)
    assert store.pull({"user": np.array([1])})["user"].shape == (1, 2)
    assert [table.dim for table in servers.servers[0].tables.all] == [3, 2]


def test_a_lookup_that_makes_no_rows_leaves_the_table_as_it_is(client: PsClient) -> None:
    client.lookup("t", [2], 2)
    seen = client.lookup_detailed("t", [1, 2, 3], 2, create_if_missing=False)
    assert seen.found.tolist() == [False, True, False]
    assert (seen.num_found, seen.num_initialized) == (1, 0)
    assert sum(stats.total_embeddings for stats in client.get_stats_all()) == 1


def test_results_are_in_the_callers_order_with_duplicates(client: PsClient) -> None:
    client.lookup("t", [1, 2], 1)
    client.apply_gradients("t", [1, 2], [[-1.0], [-2.0]], 1.0)
    seen = client.lookup_detailed("t", [1, 2, 1, 3, 2], 1)
    assert seen.rows.ravel().tolist() == [1, 2, 1, 0, 2]
    assert seen.found.tolist() == [True, True, True, False, True]
    assert (seen.num_found, seen.num_initialized) == (4, 1)


def test_first_values_are_those_of_the_declared_table(
    servers: PsServers, client: PsClient, store_of: Callable[..., Any]
) -> None:
    store_of(servers)
    assert client.lookup("item", [1, 2], 3).tolist() == [[0.5, 0.5, 0.5]] * 2
    assert client.lookup("item", [9], 3, create_if_missing=False).tolist() == [[0, 0, 0]]


def test_no_ids_need_no_server(servers: PsServers, client: PsClient) -> None:
    for server in servers.servers:
        server.stop(0)
    assert client.lookup("t", [], 3).shape == (0, 3)
    assert client.apply_gradients("t", [], np.empty((0, 3)), 1.0) == (0, 0)


def test_a_table_without_a_width_gets_the_servers_own(link: ServerLink) -> None:
    assert len(lookup(link, fids=[1], create_if_missing=True).embeddings) == 4
    assert len(lookup(link, fids=[1], dim_size=-1).embeddings) == 4


# --- update ---


def test_an_update_moves_rows_by_the_rate_and_each_id_once(client: PsClient) -> None:
    client.lookup("t", [0, 1, 3], 2)
    assert client.apply_gradients("t", [0, 1, 0, 3], [[0.1, 0.2]] * 4, 0.5) == (3, 0)
    assert np.allclose(client.lookup("t", [0, 1], 2), [[-0.1, -0.2], [-0.05, -0.1]])


def test_gradients_of_equal_ids_are_summed_before_the_step(
    servers: PsServers, client: PsClient, store_of: Callable[..., Any]
) -> None:
    adagrad = TableSpec("a", [SliceSpec(1, optimizer=Adagrad(1.0, initial_accumulator_value=0.0))])
    store_of(servers, [adagrad])
    client.lookup("a", [1], 1)
    client.apply_gradients("a", [1, 1], [[1.0], [1.0]], 1.0)
    assert client.lookup("a", [1], 1).ravel().tolist() == [-1.0]  # one step of gradient 2, not two of gradient 1


def test_ids_without_a_row_are_counted_and_not_made(client: PsClient) -> None:
    client.lookup("t", [1], 1)
    assert client.apply_gradients("t", [1, 5, 6], [[1.0]] * 3, 1.0) == (1, 2)
    assert not client.lookup_detailed("t", [5, 6], 1, create_if_missing=False).found.any()


def test_duplicates_sent_to_the_server_itself_are_applied_one_after_another(link: ServerLink) -> None:
    lookup(link, fids=[1], dim_size=1, create_if_missing=True)
    answer = apply(link, fids=[1, 1], gradients=[1, 2], dim_size=1, learning_rate=1)
    assert (answer.status_code, answer.num_updated) == (0, 2)
    assert lookup(link, fids=[1], dim_size=1).embeddings[0] == -3


# --- refusals ---


def test_gradients_of_the_wrong_length_change_nothing_and_are_counted(link: ServerLink) -> None:
    lookup(link, fids=[1, 2], dim_size=2, create_if_missing=True)
    answer = apply(link, fids=[1, 2], gradients=[1, 2, 3], dim_size=2, learning_rate=1)
    assert (answer.status_code, answer.error_message) == (1, "Gradient size mismatch: expected 4, got 3")
    assert set(lookup(link, fids=[1, 2], dim_size=2).embeddings) == {0}
    assert link.call("GetStats", messages.GetStatsRequest(), 30).apply_gradients_count == 1


def test_another_width_is_refused_by_lookup_and_update(link: ServerLink) -> None:
    lookup(link, fids=[1], dim_size=2, create_if_missing=True)
    for answer in (lookup(link, fids=[1], dim_size=3), apply(link, fids=[1], gradients=[1, 1, 1], dim_size=3)):
        assert answer.status_code == 1
        assert "Dimension mismatch: expected 2, got 3" in answer.error_message


def test_a_full_table_refuses_with_a_message(
    servers: PsServers, client: PsClient, store_of: Callable[..., Any]
) -> None:
    store_of(servers, [TableSpec("small", [SliceSpec(8, optimizer=Adagrad())], max_bytes=100_000)])
    with pytest.raises(ClusterError, match=r"RPC error: 127.*max_bytes"):
        client.lookup("small", np.arange(100_000), 8)


def test_ids_of_another_shard_are_refused(servers: PsServers) -> None:
    link = ServerLink(servers.addresses[1])
    answer = lookup(link, fids=[1, 2], dim_size=1)
    assert "id 2 belongs to shard 0 of 2, this is shard 1" in answer.error_message
    link.close()


@pytest.mark.parametrize("verb", ["Lookup", "ApplyGradients"])
def test_a_deadline_is_kept_by_a_slow_shard(serve: Callable[..., PsServers], verb: str) -> None:
    servers = serve(1)
    link = ServerLink(servers.addresses[0])
    lookup(link, fids=[1], dim_size=1, create_if_missing=True)
    single = servers.servers[0].service._single
    with single._locks["t"]:  # another call holds the table
        fields = {"create_if_missing": True} if verb == "Lookup" else {"gradients": [1], "learning_rate": 1}
        kind = messages.TRAINING_METHODS[verb][0]
        answer = link.call(verb, kind(table_name="t", fids=[1], dim_size=1, timeout_ms=20, **fields), 30)
    assert answer.status_code == 1
    assert "Timeout" in answer.error_message
    assert lookup(link, fids=[1], dim_size=1).embeddings[0] == 0
    link.close()


def test_a_negative_timeout_is_refused(link: ServerLink) -> None:
    with pytest.raises(ConfigError, match="timeout_ms is -1"):
        lookup(link, fids=[1], timeout_ms=-1)


def test_arguments_are_checked_before_any_call(client: PsClient) -> None:
    with pytest.raises(ConfigError, match="dim_size must be greater than zero"):
        client.lookup("t", [1], 0)
    with pytest.raises(DimensionMismatch, match="expected 2 rows of gradients"):
        client.apply_gradients("t", [1, 2], [[1.0]], 1.0)
    with pytest.raises(ConfigError, match="invalid shard index: 2"):
        client.health_check(2)
    with pytest.raises(ConfigError, match="invalid shard index: -1"):
        client.barrier_on_shard(-1, "b", 0, 1, 100)
    with pytest.raises(ConfigError, match="timeout_ms must be greater than zero"):
        client.barrier("b", 0, 1, 0)
    with pytest.raises(ConfigError, match="num_workers must be greater than zero"):
        client.barrier("b", 0, 0, 100)
    with pytest.raises(ConfigError, match="at least one PS address is required"):
        PsClient([])
    client.close()
    with pytest.raises(ConfigError, match="no PS clients configured"):
        client.lookup("t", [1], 1)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(ShardUnavailable, match=r"Connection failed to 127\.0\.0\.1:1: "):
        PsClient(["http://127.0.0.1:1"], timeout_s=5)
    with pytest.raises(ConfigError, match="host:port"):
        PsClient(["nonsense"])


def test_one_dead_server_fails_the_whole_call_by_its_address(servers: PsServers, client: PsClient) -> None:
    client.lookup("t", [0, 1], 1)
    servers.servers[1].stop(0)
    with pytest.raises(ShardUnavailable, match=servers.addresses[1]):
        client.lookup("t", [0, 1], 1)
    assert client.lookup("t", [0], 1).shape == (1, 1)


# --- batches ---


def test_a_bad_entry_of_a_batch_has_a_status_and_the_others_succeed_in_order(client: PsClient) -> None:
    client.lookup("a", [1], 2)
    looked_up = client.batch_lookup(
        [
            LookupEntry(table="a", fids=[1, 1, 4], dim_size=2),
            LookupEntry(table="a", fids=[1], dim_size=0),
            LookupEntry(table="a", fids=[2], dim_size=3),
            LookupEntry(table="b", fids=[], dim_size=2),
        ]
    )
    assert [one.status for one in looked_up] == [0, 1, 1, 0]
    assert looked_up[0].found.tolist() == [True, True, False]
    assert "dim_size must be greater than zero" in looked_up[1].message
    assert "Dimension mismatch: expected 2, got 3" in looked_up[2].message
    updated = client.batch_apply_gradients(
        [
            GradientEntry(table="a", fids=[1], gradients=[[1.0, 1.0, 1.0]], learning_rate=1.0),
            GradientEntry(table="a", fids=[1, 4, 9], gradients=[[1.0, 2.0]] * 3, learning_rate=1.0),
        ]
    )
    assert [one.status for one in updated] == [1, 0]
    assert (updated[1].num_updated, updated[1].num_not_found) == (2, 1)
    assert client.lookup("a", [1], 2).tolist() == [[-1, -2]]


# --- many threads ---


def test_updates_of_many_threads_are_never_lost(client: PsClient) -> None:
    client.lookup("t", [1, 2], 1)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: client.apply_gradients("t", [1, 2], [[-1.0], [-1.0]], 1.0), range(100)))
    assert client.lookup("t", [1, 2], 1).ravel().tolist() == [100, 100]


def test_rows_created_by_many_threads_are_counted_once(client: PsClient) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = pool.map(lambda _: client.lookup_detailed("t", np.arange(50), 1).num_initialized, range(8))
    assert sum(made) == 50


# --- barrier, health, statistics ---


def test_workers_meet_at_a_server_of_choice(client: PsClient) -> None:
    with ThreadPoolExecutor(3) as pool:
        for shard in (0, 1):
            arrived = pool.map(
                lambda worker, shard=shard: client.barrier_on_shard(shard, "b", worker, 3, 30_000), range(3)
            )
            assert list(arrived) == [3, 3, 3]


def test_a_failed_barrier_raises_by_class(client: PsClient) -> None:
    with pytest.raises(RpcTimeout, match=r"Barrier timeout.*Timeout after 5 ms"):
        client.barrier("b", 0, 2, 5)
    with pytest.raises(ConfigError, match="Barrier invalid configuration: worker_id 7 out of range"):
        client.barrier("b", 7, 2, 100)


def test_a_caller_that_is_cancelled_leaves_the_barrier(servers: PsServers) -> None:
    link = ServerLink(servers.addresses[0])
    barriers = servers.servers[0].service.barriers
    left = threading.Event()
    wait = barriers.wait

    def watched(*args: Any) -> Any:
        result = wait(*args)
        left.set()
        return result

    barriers.wait = watched  # type: ignore[method-assign]
    request = messages.BarrierRequest(barrier_id="b", worker_id=0, num_workers=2, timeout_ms=60_000)
    call = link.begin("Barrier", request, 60)
    eventually(lambda: len(barriers))
    call.cancel()
    assert left.wait(30)
    assert len(barriers) == 0
    link.close()


def test_health_and_statistics(servers: PsServers, client: PsClient) -> None:
    states = client.health_check_all()
    assert {state.status for state in states} == {messages.HealthCheckResponse.HEALTHY}
    assert {state.message for state in states} == {"OK"}
    assert all(state.uptime_seconds >= 0 for state in states)
    assert client.health_check(0, "nobody").status == messages.HealthCheckResponse.UNKNOWN
    assert client.get_stats().avg_lookup_latency_us == 0
    client.lookup("t", [0, 2, 4, 1], 2)
    client.apply_gradients("t", [0, 2], [[1.0, 1.0]] * 2, 1.0)
    plain, full = client.get_stats(), client.get_stats(include_table_stats=True)
    assert (plain.shard_id, plain.total_embeddings, plain.lookup_count, plain.apply_gradients_count) == (0, 3, 1, 1)
    assert plain.avg_lookup_latency_us >= 1
    assert plain.avg_apply_latency_us >= 1
    assert not plain.table_stats
    (table,) = full.table_stats
    assert (table.name, table.num_embeddings, table.dim_size) == ("t", 3, 2)
    assert table.memory_bytes == full.memory_bytes == servers.servers[0].tables.memory_bytes
    assert [stats.shard_id for stats in client.get_stats_all()] == [0, 1]

"""Life cycle of a server: services, health, refusals, shutdown."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.core.errors import CapacityExceeded, ClusterError, ConfigError, RpcTimeout, ShardUnavailable
from monolith.core.retry import RetryPolicy
from monolith.embedding import Adagrad, Adam, MultiTable, Sgd, SliceSpec, TableSpec
from monolith.ps import ParameterServer, PsClient, RemoteStore, ServerConfig, messages
from monolith.ps.cuts import PendingCut
from monolith.ps.fused import PushPart, encode_pull, encode_push
from monolith.ps.link import ServerLink
from monolith.ps.service import Drain
from monolith.ps.tables import ShardTables
from monolith.testing import FakeClock
from monolith.testing.eventually import eventually
from monolith.testing.processes.ps_servers import PsServers

ONE = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))])
IDS = np.array([1, 2])


def push(store: RemoteStore, ids: Any = IDS, value: float = 1.0) -> None:
    store.push({"t": np.asarray(ids)}, {"t": np.full((len(ids), 1), value, np.float32)})


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


# --- starting and stopping ---


def test_it_starts_without_anything_heavy() -> None:
    code = """
import sys
from monolith.ps import ParameterServer, ServerConfig
from monolith.testing.eventually import eventually
with ParameterServer(ServerConfig()) as server:
    heavy = {"torch", "tensorflow", "pandas", "pyarrow", "tensorboardX", "safetensors"} & set(sys.modules)
    assert server.address.startswith("127.0.0.1:"), server.address
    print(sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_a_taken_port_is_an_error(serve: Callable[..., PsServers]) -> None:
    port = int(serve(1).addresses[0].rpartition(":")[2])
    with pytest.raises(ClusterError, match=f"cannot listen on 127.0.0.1:{port}"):
        ParameterServer(ServerConfig(port=port)).start()


def test_a_server_whose_metrics_port_is_taken_leaves_its_other_port_free(serve: Callable[..., PsServers]) -> None:
    taken = int(serve(1).addresses[0].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    refused = ParameterServer(ServerConfig(port=port, metrics_port=taken))
    with pytest.raises(ClusterError, match=f"metrics cannot listen on 127.0.0.1:{taken}"):
        refused.start()
    assert refused.address == ""
    assert serve(1, port=port).addresses == [f"127.0.0.1:{port}"]


def test_a_server_whose_port_is_taken_leaves_its_metrics_port_free(serve: Callable[..., PsServers]) -> None:
    taken = int(serve(1).addresses[0].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    refused = ParameterServer(ServerConfig(port=taken, metrics_port=port))
    with pytest.raises(ClusterError, match=f"cannot listen on 127.0.0.1:{taken}"):
        refused.start()
    assert refused.metrics_address == ""
    assert serve(1, metrics_port=port).servers[0].metrics_address == f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"index": 2, "shards": 2}, "index is 2 of 2 servers"),
        ({"index": -1}, "index is -1"),
        ({"port": 65536}, "port is 65536"),
        ({"threads": 0}, "threads is 0"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes is 0"),
        ({"max_message_bytes": 1 << 31}, "less than 2 GiB"),
        ({"cut_lease_s": 0}, "cut_lease_s is 0"),
        ({"cut_lease_s": math.inf}, "cut_lease_s is inf, expected a number above 0 and at most"),
        ({"hold_lease_s": math.inf}, "hold_lease_s is inf"),
        ({"delta_interval_s": 1e10}, "delta_interval_s is 10000000000.0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerConfig(**settings)


def test_stopping_leaves_no_thread_socket_or_file() -> None:
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with PsServers(2, ServerConfig(metrics_port=0)) as servers, RemoteStore(servers.addresses, [ONE]) as store:
            push(store)
            folders = [server._data_plane._folder for server in servers.servers if server._data_plane]
        assert not any(folder.path.parent.exists() for folder in folders if folder)
    left = [thread for thread in threading.enumerate() if thread not in threads and thread.name.startswith("ps")]
    for thread in left:
        thread.join(30)  # workers of a stopped pool end by themselves
    assert not [thread for thread in left if thread.is_alive()]
    assert len(os.listdir("/proc/self/fd")) <= files + 4  # gRPC keeps a few open


def test_stopping_twice_is_harmless(serve: Callable[..., PsServers]) -> None:
    (server,) = serve(1).servers
    server.stop(0)
    server.stop(0)


def test_a_server_starts_once(serve: Callable[..., PsServers]) -> None:
    (server,) = serve(1).servers
    address, threads = server.address, len(server._threads)
    with pytest.raises(ClusterError, match=f"parameter server 0 serves at {address}, expected a new one"):
        server.start()
    assert (server.address, len(server._threads)) == (address, threads)
    with RemoteStore([address], [ONE]) as store:
        push(store)
    server.stop(0)
    with pytest.raises(ClusterError, match="parameter server 0 has been stopped, expected a new one"):
        server.start()


# --- recovering ---


@pytest.mark.parametrize("saved_shards", [None, 3])
def test_a_server_recovers_its_shard_before_a_client_connects(
    serve: Callable[..., PsServers], tmp_path: Path, saved_shards: int | None
) -> None:
    local = MultiTable([ONE])
    local.push({"t": np.arange(100)}, {"t": -np.arange(100, dtype=np.float32)[:, None]})
    local.save(tmp_path / "s", saved_shards)
    servers = serve(2, recover_from=tmp_path / "s")
    assert [server.tables.rows for server in servers.servers] == [50, 50]
    with RemoteStore(servers.addresses, [ONE]) as store:
        assert (store.pull({"t": np.arange(100)})["t"].ravel() == np.arange(100)).all()


def test_a_model_that_differs_from_the_snapshot_gets_the_rows_in_its_own_tables(
    serve: Callable[..., PsServers], tmp_path: Path
) -> None:
    local = MultiTable([ONE])
    local.push({"t": IDS}, {"t": np.full((2, 1), -5, np.float32)})
    local.save(tmp_path / "s")
    servers = serve(1, recover_from=tmp_path / "s")
    longer = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))], expire_days=7)
    more = TableSpec("u", [SliceSpec(1, optimizer=Adam())])
    with RemoteStore(servers.addresses, [longer, more]) as store:
        assert store.pull({"t": IDS})["t"].ravel().tolist() == [5, 5]
        assert servers.servers[0].tables["t"].spec.expire_days == 7


def test_nothing_sound_to_recover_from_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="holds no snapshot"):
        ParameterServer(ServerConfig(recover_from=tmp_path)).start()


# --- memory, health, metrics ---


def test_past_the_memory_limit_new_rows_are_refused_and_old_rows_are_updated(serve: Callable[..., PsServers]) -> None:
    wide = TableSpec("t", [SliceSpec(16, optimizer=Adagrad())])
    servers = serve(1, memory_limit_bytes=2_000_000)
    (server,) = servers.servers
    with RemoteStore(servers.addresses, [wide]) as store:
        assert server.health.of().status == "HEALTHY"

        def fill() -> None:
            for start in range(0, 1_000_000, 1000):
                store.push({"t": np.arange(start, start + 1000)}, {"t": np.ones((1000, 16), np.float32)})

        with pytest.raises(CapacityExceeded, match="max_bytes"):
            fill()
        assert server.tables.memory_bytes <= 2_000_000
        store.push({"t": np.arange(10)}, {"t": np.ones((10, 16), np.float32)})
        server.health.limit.limit_bytes = server.tables.memory_bytes
        server.health.check()
        assert server.health.of().status == "UNHEALTHY"
        assert "new rows are refused" in server.health.of().message
        server.health.limit.limit_bytes = server.tables.memory_bytes * 100 // 95
        assert server.health.of().status == "DEGRADED"
        server.health.limit.limit_bytes = 1 << 30
        server.health.check()
        store.push({"t": np.arange(10**6, 10**6 + 1000)}, {"t": np.ones((1000, 16), np.float32)})


def test_past_the_memory_limit_a_server_evicts_the_oldest_rows_on_request(serve: Callable[..., PsServers]) -> None:
    wide = TableSpec("t", [SliceSpec(16, optimizer=Adagrad())])
    servers = serve(1, memory_limit_bytes=4_000_000, when_full="evict_oldest", metrics_port=0)
    (server,) = servers.servers
    with RemoteStore(servers.addresses, [wide]) as store:
        for step in range(200):
            ids = np.arange(step * 500, (step + 1) * 500)
            store.push({"t": ids}, {"t": np.ones((500, 16), np.float32)}, time_s=1000 + step)
            assert server.tables.memory_bytes <= 4_000_000
        table = server.tables["t"]
        assert table.contains(np.arange(99_000, 100_000)).all()
        assert table.stats.rows_evicted_full == 100_000 - len(table)
        server.health.check()
        assert server.health.of().status == "HEALTHY"
        page = get(server.metrics_address, "/metrics")[1]
        assert f'monolith_table_full_evicted_rows_total{{table="t"}} {100_000 - len(table)}' in page


def test_a_server_refuses_an_unknown_reaction_of_full_tables() -> None:
    with pytest.raises(ConfigError, match="when_full is 'drop'"):
        ServerConfig(when_full="drop")  # type: ignore[typeddict-item]


def test_metrics_and_health_over_http(serve: Callable[..., PsServers]) -> None:
    servers = serve(1, metrics_port=0)
    (server,) = servers.servers
    assert "monolith_ps_up 1\n" in get(server.metrics_address, "/metrics")[1]
    with RemoteStore(servers.addresses, [ONE]) as store:
        push(store)
        store.pull({"t": IDS})
        # A server counts a call after its answer, which may reach the client first.
        last = 'monolith_ps_call_seconds_bucket{call="pull",le="+Inf"} 1\n'
        eventually(lambda: last in get(server.metrics_address, "/metrics")[1])
        status, text = get(server.metrics_address, "/metrics")
        assert status == 200
        for line in (
            'monolith_table_rows{table="t"} 2',
            'monolith_ps_ids_total{table="t",call="pull"} 2',
            'monolith_ps_ids_total{table="t",call="push"} 2',
            'monolith_ps_call_seconds_count{call="push"} 1',
            'monolith_ps_call_seconds_bucket{call="pull",le="+Inf"} 1',
            'monolith_ps_call_errors_total{call="Connect"} 0',
            "monolith_ps_repeated_pushes_total 0",
        ):
            assert f"{line}\n" in text
        assert get(server.metrics_address, "/healthz") == (200, "HEALTHY OK\n")
        store.drain()
        assert get(server.metrics_address, "/healthz") == (503, "UNHEALTHY the server is draining\n")
        assert get(server.metrics_address, "/else")[0] == 404


def test_statistics_count_fused_calls_too(serve: Callable[..., PsServers]) -> None:
    servers = serve(1)
    with RemoteStore(servers.addresses, [ONE], transport="grpc") as store, PsClient(servers.addresses) as client:
        push(store)
        store.pull({"t": IDS})
        stats = client.get_stats()
        assert (stats.lookup_count, stats.apply_gradients_count, stats.total_embeddings) == (1, 1, 2)
        assert servers.servers[0].service.calls()["push"]["buckets"]


# --- fused calls ---


@pytest.fixture
def connected(serve: Callable[..., PsServers]) -> Any:
    servers = serve(1)
    link = ServerLink(servers.addresses[0])
    request = messages.ConnectRequest(tables=[ONE.to_json()], shards=1)
    yield servers.servers[0], link, link.call("Connect", request, 30).instance
    link.close()


def test_a_late_fused_call_changes_nothing(connected: Any) -> None:
    server, link, instance = connected
    part = PushPart(0, IDS, np.ones((2, 1), np.float32), np.ones(2, np.uint32), np.ones(1, np.float32))
    payload = encode_push(1, 1, 0, 0, [part], half=False)
    with server.tables.shard.pause_pushes(), pytest.raises(RpcTimeout):
        link.call("FusedPush", messages.FusedRequest(payload=payload, instance=instance), 0.05)
    assert server.tables.rows == 0


@pytest.mark.parametrize("timeout_ms", [0, (1 << 63) - 1])
def test_a_fused_call_needs_no_deadline(connected: Any, timeout_ms: int) -> None:
    server, link, instance = connected
    part = PushPart(0, IDS, np.ones((2, 1), np.float32), np.ones(2, np.uint32), np.ones(1, np.float32))
    payload = encode_push(1, 1, 0, 0, [part], half=False)
    request = messages.FusedRequest(payload=payload, instance=instance, timeout_ms=timeout_ms)
    link.call("FusedPush", request, None)
    assert server.tables.rows == 2


@pytest.mark.parametrize("payload", [b"", b"x", b"\xff" * 64, encode_pull([(0, IDS)])[:-1], encode_pull([(7, IDS)])])
def test_garbage_is_refused_by_name_and_the_server_lives_on(connected: Any, payload: bytes) -> None:
    _, link, instance = connected
    for verb in ("FusedPull", "FusedPush"):
        with pytest.raises(ConfigError):
            link.call(verb, messages.FusedRequest(payload=payload, instance=instance), 30)
    answer = link.call("FusedPull", messages.FusedRequest(payload=encode_pull([(0, IDS)]), instance=instance), 30)
    assert answer.payload == bytes(8)


def test_a_fused_call_without_connecting_is_refused_as_one_to_retry(serve: Callable[..., PsServers]) -> None:
    link = ServerLink(serve(1).addresses[0])
    with pytest.raises(ShardUnavailable, match="has no tables yet"):
        link.call("FusedPull", messages.FusedRequest(payload=b""), 30)
    with pytest.raises(ShardUnavailable, match="has no tables yet"):
        link.call("Cut", messages.CutRequest(), 30)
    with pytest.raises(ConfigError, match=r"tables are \[\]"):
        link.call("Connect", messages.ConnectRequest(shards=1), 30)
    link.close()


def test_a_message_beyond_the_limit_is_refused(serve: Callable[..., PsServers]) -> None:
    servers = serve(1, max_message_bytes=10_000)
    with (
        RemoteStore(servers.addresses, [ONE], transport="grpc") as store,
        pytest.raises(ClusterError, match="RESOURCE_EXHAUSTED"),
    ):
        push(store, np.arange(10_000))


def test_rows_beyond_the_limit_are_refused_before_they_are_read(serve: Callable[..., PsServers]) -> None:
    servers = serve(1, max_message_bytes=100_000)
    wide = TableSpec("wide", [SliceSpec(512, optimizer=Sgd())])
    with RemoteStore(servers.addresses, [wide], transport="grpc") as store:
        with pytest.raises(ConfigError, match="the rows take 2048000 bytes, max_message_bytes is 100000"):
            store.pull({"wide": np.arange(1000)})
        assert store.pull({"wide": np.arange(40)})["wide"].shape == (40, 512)


def test_single_table_lookups_share_the_limit_of_an_answer(serve: Callable[..., PsServers]) -> None:
    link = ServerLink(serve(1, max_message_bytes=100_000, default_dim=512).addresses[0])
    one = messages.LookupRequest(table_name="t", fids=[7] * 60)
    refused = link.call("Lookup", one, 30)
    assert "the rows take 122880 bytes, max_message_bytes is 100000" in refused.error_message
    half = messages.LookupRequest(table_name="t", fids=[7] * 30)
    answers = link.call("BatchLookup", messages.BatchLookupRequest(requests=[half, half]), 30).responses
    assert [answer.error_message == "" for answer in answers] == [True, False]
    link.close()


def test_a_silent_connection_does_not_keep_the_server_from_stopping(serve: Callable[..., PsServers]) -> None:
    (server,) = serve(1).servers
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))):
        server.stop(0)


def test_a_client_that_connects_while_the_server_stops_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ParameterServer(ServerConfig())
    link = ServerLink(server.start())
    is_connecting, is_closed = threading.Event(), threading.Event()
    connect, close = server.tables.connect, server._data_plane.close  # type: ignore[union-attr]

    def slowly(*arguments: Any) -> Any:
        is_connecting.set()
        assert is_closed.wait(30)
        return connect(*arguments)

    def closing() -> None:
        close()
        is_closed.set()

    monkeypatch.setattr(server.tables, "connect", slowly)
    monkeypatch.setattr(server._data_plane, "close", closing)
    call = link.begin("Connect", messages.ConnectRequest(tables=[ONE.to_json()], shards=1), 30)
    assert is_connecting.wait(30)
    server.stop(30)
    with pytest.raises(ShardUnavailable, match="the server is stopping"):
        link.finish("Connect", call)
    assert server._data_plane._listeners == []  # type: ignore[union-attr]
    link.close()


# --- cuts and draining ---


def test_an_unsaved_cut_is_dropped_when_its_lease_ends() -> None:
    clock = FakeClock()
    tables = ShardTables(0, 1)
    tables.connect([ONE], 1)
    cut = PendingCut(tables, 60.0, clock)
    number = cut.take()
    clock.advance_s(59)
    cut.drop_expired()
    assert cut._cut is not None
    clock.advance_s(1)
    cut.drop_expired()
    with pytest.raises(ShardUnavailable, match=f"cut {number} is gone"):
        cut.save(number, Path("/nowhere"), 1)
    cut.drop(number)


def test_a_drained_server_refuses_every_call_that_reads_or_changes_rows(serve: Callable[..., PsServers]) -> None:
    once = RetryPolicy(attempts=1)
    with RemoteStore(serve(1).addresses, [ONE], transport="grpc", retries=once) as store:
        push(store)
        store.drain()
        with pytest.raises(ClusterError, match="draining"):
            store.pull({"t": IDS})
        with pytest.raises(ClusterError, match="draining"):
            push(store)


def test_draining_waits_for_calls_under_way() -> None:
    drain = Drain()
    has_drained = threading.Event()
    with drain.call():
        thread = threading.Thread(target=lambda: (drain.begin(), has_drained.set()))
        thread.start()
        eventually(lambda: drain.is_on)
        assert not has_drained.is_set()
        with pytest.raises(ShardUnavailable, match="draining"), drain.call():
            pass
    thread.join(30)
    assert has_drained.is_set()

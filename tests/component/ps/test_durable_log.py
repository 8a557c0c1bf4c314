"""Updates of a server survive its crash: the log that it writes, and its recovery."""

from __future__ import annotations

import errno
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.artifacts.delta_log import DeltaReader, DeltaWriter, writer
from monolith.core.errors import ArtifactError, ConfigError, DeltaLogBroken, MonolithError, ShardUnavailable
from monolith.embedding import Adagrad, MultiTable, RandomUniform, Sgd, SliceSpec, TableSpec
from monolith.embedding.snapshot import read_manifest
from monolith.ps import ParameterServer, RemoteStore, ServerConfig, messages
from monolith.ps.fused import PushPart, encode_push
from monolith.ps.link import ServerLink
from monolith.testing.eventually import eventually
from monolith.testing.processes.ps_servers import PsServers

TABLE = TableSpec(
    "t", [SliceSpec(4, optimizer=Adagrad(0.1), initializer=RandomUniform())], deterministic=True, expire_days=3
)
COUNTER = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))])
IDS = np.arange(40)
NEVER = 1e6
"""An interval that no test lives to see: tests write segments explicitly."""


def learn(store: Any, step: int) -> None:
    grads = np.random.default_rng(step).standard_normal((len(IDS), 4)).astype(np.float32)
    store.push({"t": IDS}, {"t": grads}, time_s=step, step=step)


def learnt(*steps: int) -> bytes:
    """The rows of local tables after these steps."""
    local = MultiTable([TABLE])
    for step in steps:
        learn(local, step)
    return rows(local)


def rows(store: Any) -> bytes:
    return bytes(store.pull({"t": IDS})["t"].tobytes())


def crash(servers: PsServers, index: int, **settings: Any) -> None:
    """Stop a server without a flush, and start another one in its place."""
    log = servers.servers[index]._log
    assert log is not None
    log.close()
    servers.restart(index, ServerConfig(delta_log=log.folder.parent, delta_interval_s=NEVER, **settings))


@pytest.fixture
def durable(serve: Callable[..., PsServers], tmp_path: Path) -> Callable[..., PsServers]:
    def start(count: int = 2, **settings: Any) -> PsServers:
        return serve(count, **{"delta_log": tmp_path / "log", "delta_interval_s": NEVER, **settings})

    return start


# --- from the log alone ---


@pytest.mark.parametrize("transport", ["grpc", "data_plane"])
def test_updates_in_the_log_are_recovered_and_training_continues_exactly(
    durable: Callable[..., PsServers], transport: Any
) -> None:
    servers = durable()
    with RemoteStore(servers.addresses, [TABLE], transport=transport) as store:
        learn(store, 0)
        learn(store, 1)
        assert store.flush_deltas() == (1, 1)
        for index in range(2):
            crash(servers, index)
        assert rows(store) == learnt(0, 1)
        learn(store, 2)
        assert rows(store) == learnt(0, 1, 2), "optimizer states came back too"


def test_updates_not_yet_in_the_log_are_lost_with_their_server_only(
    durable: Callable[..., PsServers],
) -> None:
    servers = durable()
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        store.flush_deltas()
        learn(store, 1)
        crash(servers, 1)
        found, kept, old = (
            np.frombuffer(one, np.float32).reshape(-1, 4) for one in (rows(store), learnt(0, 1), learnt(0))
        )
        assert (found[0::2] == kept[0::2]).all()
        assert (found[1::2] == old[1::2]).all()


def test_a_flush_of_all_servers_fails_after_an_unnoticed_restart(
    durable: Callable[..., PsServers],
) -> None:
    servers = durable()
    seen: list[int] = []
    with RemoteStore(servers.addresses, [TABLE], on_restart=lambda restart: seen.append(restart.index)) as store:
        learn(store, 0)
        store.flush_deltas()
        learn(store, 1)
        crash(servers, 1)
        with pytest.raises(ShardUnavailable, match="started"):
            store.flush_deltas()
        assert seen == [1], "the publisher learns of the restart"
        assert store.flush_deltas() == (2, 1)


def test_a_server_that_is_stopped_writes_its_last_segment(durable: Callable[..., PsServers]) -> None:
    servers = durable(1)
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        servers.restart(0)
        assert rows(store) == learnt(0)


def test_segments_are_written_once_per_interval(durable: Callable[..., PsServers], tmp_path: Path) -> None:
    servers = durable(1, delta_interval_s=0.01)
    reader = DeltaReader(tmp_path / "log" / "ps_0")
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        eventually(lambda: sum(segment.upserts for segment in reader.segments()) >= len(IDS))
        crash(servers, 0)
        assert rows(store) == learnt(0)


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_push_that_comes_again_is_applied_once_whether_or_not_the_log_had_it(
    durable: Callable[..., PsServers], is_durable: bool
) -> None:
    servers = durable(1)
    part = PushPart(0, np.array([1]), -np.ones((1, 1), np.float32), np.ones(1, np.uint32), np.ones(1, np.float32))
    payload = encode_push(7, 1, 0, 0, [part], half=False)
    request = messages.ConnectRequest(tables=[COUNTER.to_json()], shards=1)
    link = ServerLink(servers.addresses[0])

    def push() -> None:
        instance = link.call("Connect", request, 30).instance
        link.call("FusedPush", messages.FusedRequest(payload=payload, instance=instance), 30)

    push()
    if is_durable:
        link.call("FlushDeltas", messages.FlushDeltasRequest(), 30)
    crash(servers, 0)
    push()
    assert servers.servers[0].tables["t"].lookup([1]).tolist() == [[1.0]]
    link.close()


# --- from a checkpoint and the log ---


def test_a_snapshot_names_its_position_in_the_logs_and_later_segments_are_replayed(
    durable: Callable[..., PsServers], tmp_path: Path
) -> None:
    servers = durable()
    with RemoteStore(servers.addresses, [TABLE]) as store:
        for step in range(3):
            learn(store, step)
            store.flush_deltas()
        store.snapshot(tmp_path / "s")
        (saved,) = read_manifest(tmp_path / "s")
        assert [shard.log and shard.log["sequence"] for shard in saved.shards] == [3, 3]
        assert store.compact_deltas(tmp_path / "s") == 4
        learn(store, 3)
        assert store.flush_deltas() == (4, 4)
        assert [segment.sequence for segment in DeltaReader(tmp_path / "log" / "ps_1").segments()] == [3, 4]
        for _ in range(2):
            crash(servers, 1, recover_from=tmp_path / "s")
            assert servers.servers[1].tables.rows == 20, "before a client connects"
            assert rows(store) == learnt(0, 1, 2, 3)


def test_a_snapshot_without_later_segments_is_recovered_alone(
    durable: Callable[..., PsServers], tmp_path: Path
) -> None:
    servers = durable(1)
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        store.snapshot(tmp_path / "s")
        crash(servers, 0, recover_from=tmp_path / "s")
        assert rows(store) == learnt(0)


@pytest.mark.parametrize("was_saved_by", ["local tables", "three servers"])
def test_a_log_started_on_a_snapshot_that_names_no_log_belongs_to_it(
    durable: Callable[..., PsServers], serve: Callable[..., PsServers], tmp_path: Path, was_saved_by: str
) -> None:
    if was_saved_by == "local tables":
        local = MultiTable([TABLE])
        learn(local, 0)
        local.save(tmp_path / "s")
    else:
        three = serve(3, delta_log=tmp_path / "log", delta_interval_s=NEVER)
        with RemoteStore(three.addresses, [TABLE]) as store:
            learn(store, 0)
            store.snapshot(tmp_path / "s")
            learn(store, 5)
        for server in three.servers:
            server.stop(0)
    servers = durable(recover_from=tmp_path / "s")
    with RemoteStore(servers.addresses, [TABLE]) as store:
        assert rows(store) == learnt(0), "segments of other servers are not replayed"
        learn(store, 1)
        store.flush_deltas()
        crash(servers, 0, recover_from=tmp_path / "s")
        assert rows(store) == learnt(0, 1)


def test_the_log_of_another_run_than_the_snapshot_is_not_replayed(
    durable: Callable[..., PsServers], tmp_path: Path
) -> None:
    servers = durable(1)
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 5)
    servers.servers[0].stop(0)
    local = MultiTable([TABLE])
    learn(local, 0)
    local.save(tmp_path / "s")
    servers = durable(1, recover_from=tmp_path / "s")
    with RemoteStore(servers.addresses, [TABLE]) as store:
        assert rows(store) == learnt(0)


def test_a_changed_model_gets_the_rows_of_the_snapshot_and_a_new_log_which_is_recovered(
    durable: Callable[..., PsServers], tmp_path: Path
) -> None:
    servers = durable(1)
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        store.snapshot(tmp_path / "s")
        learn(store, 1)
    more = TableSpec("u", [SliceSpec(1, optimizer=Sgd(1.0))])
    servers.restart(0, ServerConfig(recover_from=tmp_path / "s", delta_log=tmp_path / "log", delta_interval_s=NEVER))
    with RemoteStore(servers.addresses, [TABLE, more]) as store:
        assert rows(store) == learnt(0), "the log was of other tables"
        learn(store, 2)
        store.push({"u": IDS}, {"u": -np.ones((len(IDS), 1), np.float32)})
        store.flush_deltas()
        crash(servers, 0, recover_from=tmp_path / "s")
        assert rows(store) == learnt(0, 2), "the log waits for the tables of its model"
        assert (store.pull({"u": IDS})["u"] == 1).all()


# --- replacing rows ---


def test_after_the_restore_of_an_older_snapshot_a_crash_recovers_the_restored_rows(
    durable: Callable[..., PsServers], tmp_path: Path
) -> None:
    servers = durable()
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        store.snapshot(tmp_path / "older")
        learn(store, 1)
        store.snapshot(tmp_path / "newest")
        store.restore(tmp_path / "older")
        for index in range(2):
            crash(servers, index, recover_from=tmp_path / "newest")
        assert rows(store) == learnt(0)
        learn(store, 2)
        store.flush_deltas()
        for index in range(2):
            crash(servers, index, recover_from=tmp_path / "newest")
        assert rows(store) == learnt(0, 2)


def test_updates_after_a_restore_are_durable_although_no_descriptor_was_free(
    durable: Callable[..., PsServers], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    servers = durable(1)
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        store.snapshot(tmp_path / "older")
        learn(store, 1)
        with monkeypatch.context() as full, suppress(MonolithError):

            def fail(*_: Any) -> int:
                raise OSError(errno.EMFILE, "Too many open files")

            full.setattr(writer, "_claim", fail)
            store.restore(tmp_path / "older")
        learn(store, 2)
        store.flush_deltas()
        crash(servers, 0)
        assert rows(store) == learnt(0, 2)


def test_rewind_rolls_back_updates_and_recovered_rows(durable: Callable[..., PsServers], tmp_path: Path) -> None:
    servers = durable(1)
    with RemoteStore(servers.addresses, [TABLE]) as store:
        assert not store.has_learnt()
        learn(store, 0)
        assert store.has_learnt()
        store.flush_deltas()
        store.snapshot(tmp_path / "s")
        learn(store, 1)
        store.flush_deltas()
        crash(servers, 0, recover_from=tmp_path / "s")
        assert rows(store) == learnt(0, 1)
        assert not store.has_learnt(), "recovering is not learning"
        store.rewind()
        assert rows(store) == learnt(0)
        crash(servers, 0, recover_from=tmp_path / "s")
        assert rows(store) == learnt(0)
    servers = durable(2, delta_log=tmp_path / "other")
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        store.rewind()
        assert [server.tables.rows for server in servers.servers] == [0, 0]


# --- foreign logs ---


def test_a_log_of_another_number_of_servers_is_refused_without_a_checkpoint(
    durable: Callable[..., PsServers], tmp_path: Path
) -> None:
    servers = durable(1)
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        store.flush_deltas()
    servers.servers[0].stop(0)
    folder = tmp_path / "log" / "ps_0"
    wrong = ServerConfig(index=0, shards=2, delta_log=folder)
    with pytest.raises(ConfigError, match=r"ps_0' is of 1 servers, this server is one of 2.*--discard-log"):
        ParameterServer(wrong).start()
    servers = durable(1)
    with RemoteStore(servers.addresses, [TABLE]) as store:
        assert rows(store) == learnt(0), "the wrong start has lost nothing"


def test_a_foreign_log_is_set_aside_and_works_again_when_it_is_moved_back(
    durable: Callable[..., PsServers], tmp_path: Path
) -> None:
    servers = durable(1)
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        store.flush_deltas()
    servers.servers[0].stop(0)
    folder = tmp_path / "log" / "ps_0"
    for count in (2, 1, 2):
        servers = durable(count, discard_log=True)
        with RemoteStore(servers.addresses, [TABLE]) as store:
            learn(store, 5)
            store.flush_deltas()
        for server in servers.servers:
            server.stop(0)
        aside = sorted(folder.glob("foreign-*"))
        assert 1 <= len(aside) <= 2, "the newest two are kept"
        if count == 2 and len(aside) == 1:
            (first,) = aside
            assert DeltaReader(first).replay(tables := MultiTable([TABLE])).segments == 1
            assert rows(tables) == learnt(0)


# --- damaged logs ---


def test_a_corrupt_log_raises_with_a_remedy(durable: Callable[..., PsServers], tmp_path: Path) -> None:
    servers = durable(1)
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        store.snapshot(tmp_path / "s")
        learn(store, 1)
        store.flush_deltas()
    servers.servers[0].stop(0)
    folder = tmp_path / "log" / "ps_0"
    segment = max(folder.glob("seg-*.delta"))
    content = bytearray(segment.read_bytes())
    content[-5] ^= 1
    segment.write_bytes(content)
    config = ServerConfig(recover_from=tmp_path / "s", delta_log=folder)
    with pytest.raises(DeltaLogBroken, match=r"checksum.*or move '.*ps_0' away"):
        ParameterServer(config).start()
    segment.unlink()
    server = ParameterServer(config)
    server.start()
    server.stop(0)


def test_a_log_whose_beginning_is_gone_is_not_taken_for_everything(
    durable: Callable[..., PsServers], tmp_path: Path
) -> None:
    servers = durable(1)
    with RemoteStore(servers.addresses, [TABLE]) as store:
        for step in range(2):
            learn(store, step)
            store.flush_deltas()
        min((tmp_path / "log" / "ps_0").glob("seg-*.delta")).unlink()
        crash(servers, 0)
        for _ in range(2):
            with pytest.raises(DeltaLogBroken, match="has a gap"):
                store.pull({"t": IDS})


def test_two_servers_do_not_share_a_log(durable: Callable[..., PsServers], tmp_path: Path) -> None:
    servers = durable(2)
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        store.flush_deltas()
        folder = tmp_path / "log" / "ps_1"
        local = MultiTable([TABLE])
        local.save(tmp_path / "s")
        stranger = ParameterServer(ServerConfig(recover_from=tmp_path / "s", delta_log=folder))
        with pytest.raises(ConfigError, match="is in use by another process"):
            stranger.start()
        for server in servers.servers:
            server.stop(0)
        with pytest.raises(ConfigError, match="is the durable log of shard 1, this is shard 0; give each server"):
            ParameterServer(ServerConfig(index=0, shards=2, recover_from=tmp_path / "s", delta_log=folder)).start()
        assert DeltaReader(folder).newest() == 1, "and it is left alone"


def test_any_failed_write_is_reported_and_loses_no_update(
    durable: Callable[..., PsServers], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = durable(1)
    (server,) = servers.servers
    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        with monkeypatch.context() as broken:

            def fail(*_: Any) -> None:
                raise MemoryError("bad allocation")

            broken.setattr(DeltaWriter, "_append", fail)
            server._write_log()
            with pytest.raises(ArtifactError, match="MemoryError: bad allocation"):
                store.flush_deltas()
            assert server.health.of().status == "DEGRADED"
            assert server.tables.log.failures == 2
            with pytest.raises(ShardUnavailable):  # a void cut does not count as a failure
                server.tables.flush("", lambda: False)
            assert server.tables.log.failures == 2
        assert store.flush_deltas() == (1,)
        assert server.health.of().status == "HEALTHY"
        crash(servers, 0)
        assert rows(store) == learnt(0)


def test_a_full_disk_is_reported_everywhere_and_loses_no_update(
    durable: Callable[..., PsServers], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    servers = durable(1, metrics_port=0)
    (server,) = servers.servers

    def metric(name: str) -> str:
        with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return str(next(line for line in lines if line.startswith(f"monolith_ps_delta_{name} ")).split()[1])

    with RemoteStore(servers.addresses, [TABLE]) as store:
        learn(store, 0)
        store.flush_deltas()
        with monkeypatch.context() as full:

            def fail(*_: Any) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            full.setattr(DeltaWriter, "_append", fail)
            learn(store, 1)
            server._write_log()
            with pytest.raises(ArtifactError, match="No space left on device; free some space"):
                store.flush_deltas()
            with pytest.raises(ArtifactError, match="cannot be written"):
                store.snapshot(tmp_path / "s")
            assert server.health.of().status == "DEGRADED"
            assert "No space left on device" in server.health.of().message
            assert int(metric("failures_total")) >= 3
            assert metric("sequence") == "1"
            learn(store, 2)
        assert store.flush_deltas() == (2,)
        assert server.health.of().status == "HEALTHY"
        assert metric("sequence") == "2"
        crash(servers, 0)
        assert rows(store) == learnt(0, 1, 2)

"""One cut over several servers: never half of a push, and never a blocked server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.artifacts.delta_log import DeltaReader, LogPosition
from monolith.core.clock import SystemClock
from monolith.core.errors import ConfigError, RpcTimeout, ShardUnavailable
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec
from monolith.ps import RemoteStore, messages
from monolith.ps.checkpoint import RemoteCut
from monolith.ps.fused import PushPart, encode_push
from monolith.ps.joint_cut import JointCut
from monolith.ps.link import ServerLink
from monolith.testing.eventually import eventually
from monolith.testing.processes.ps_servers import PsServers

COUNTER = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))])
PAIR = np.array([0, 1])
"""One id on either server."""


class Cluster:
    """Two servers, reached one by one."""

    def __init__(self, servers: PsServers, stack: ExitStack) -> None:
        self.servers = servers
        self.links = [ServerLink(address) for address in servers.addresses]
        for link in self.links:
            stack.callback(link.close)
        request = messages.ConnectRequest(tables=[COUNTER.to_json()], shards=2)
        self.instances = {i: link.call("Connect", request, 30).instance for i, link in enumerate(self.links)}

    def push(self, server: int, sequence: int, timeout_s: float = 60.0) -> None:
        """The part of a push that one server gets."""
        one = np.ones(1, np.float32)
        part = PushPart(0, PAIR[server : server + 1], -one[:, None], np.ones(1, np.uint32), one)
        payload = encode_push(5, sequence, 0, 0, [part], half=False)
        request = messages.FusedRequest(payload=payload, instance=self.instances[server])
        self.links[server].call("FusedPush", request, timeout_s)

    def hold(self, server: int, hold: int) -> None:
        self.links[server].call("Hold", messages.HoldRequest(instance=self.instances[server], hold=hold), 30)

    def cut(self, server: int, hold: int) -> Any:
        return self.links[server].call("Cut", messages.CutRequest(instance=self.instances[server], hold=hold), 30)

    def counters(self, cuts: dict[int, int], path: Path) -> list[float]:
        """Return the content of a cut."""
        RemoteCut(self.links, cuts, {"t": COUNTER}, 60).write(path)
        return [float(value) for value in MultiTable.load(path).lookup({"t": PAIR})["t"].ravel()]


@pytest.fixture
def two(serve: Callable[..., PsServers]) -> Iterator[Callable[..., Cluster]]:
    with ExitStack() as stack:
        yield lambda **settings: Cluster(serve(2, **settings), stack)


def joint(cluster: Cluster, **settings: Any) -> JointCut:
    return JointCut(cluster.links, SystemClock(), **settings)


def test_a_push_that_one_server_has_applied_is_waited_for_at_the_other_and_a_new_one_is_not_let_in(
    two: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = two()
    cluster.push(0, 1)
    held = threading.Event()
    shards = [server.tables.shard for server in cluster.servers.servers]

    class Noticed:
        """Tells when the servers are held."""

        def __init__(self, link: ServerLink) -> None:
            self._link = link

        def begin(self, verb: str, request: Any, timeout_s: float | None) -> Any:
            if verb == "Cut":
                held.set()
            return self._link.begin(verb, request, timeout_s)

        def finish(self, verb: str, call: Any) -> Any:
            return self._link.finish(verb, call)

    links: Any = [Noticed(link) for link in cluster.links]
    with ThreadPoolExecutor(3) as pool:
        cutting = pool.submit(JointCut(links, SystemClock(), settle_s=60).take, cluster.instances, 60)
        assert held.wait(60)
        newer = pool.submit(cluster.push, 1, 2)  # to server 1, which is not cut before push 1 is there
        with pytest.raises(RpcTimeout):
            cluster.push(1, 3, timeout_s=0.2)
        assert not newer.done()
        assert not cutting.done()
        cluster.push(1, 1)
        cuts = cutting.result(60)
        newer.result(60)
    assert cluster.counters(cuts, tmp_path / "s") == [1, 1]
    assert shards[1].stats()["push"]["count"] >= 2


def test_a_push_that_never_comes_is_given_up_and_not_waited_for_again(
    two: Callable[..., Cluster], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = two()
    cluster.push(0, 1)
    cut = joint(cluster, settle_s=0.01, patience_s=0.0)
    assert cluster.counters(cut.take(cluster.instances, 30), tmp_path / "s") == [1, 0]
    assert "abandoned incomplete pushes" in caplog.text
    caplog.clear()
    cluster.push(0, 2)
    cluster.push(1, 2)
    assert cluster.counters(cut.take(cluster.instances, 30), tmp_path / "s") == [2, 1]
    assert not caplog.text


def test_a_hold_ends_by_itself(two: Callable[..., Cluster]) -> None:
    cluster = two(hold_lease_s=0.05)
    cluster.hold(0, 1)
    cluster.push(0, 1)  # waits for the lease, not for ever
    with pytest.raises(ShardUnavailable, match="applied pushes before its cut"):
        cluster.cut(0, 1)
    cluster.cut(0, 0)


def test_a_hold_ends_with_its_release_and_with_another_hold(two: Callable[..., Cluster]) -> None:
    cluster = two(hold_lease_s=600)
    with pytest.raises(ConfigError, match="hold is 0"):
        cluster.hold(0, 0)
    cluster.hold(0, 1)
    with pytest.raises(RpcTimeout):
        cluster.push(0, 1, timeout_s=0.1)
    cluster.hold(0, 2)
    with pytest.raises(ShardUnavailable, match="applied pushes before"):
        cluster.cut(0, 1)
    with pytest.raises(RpcTimeout):
        cluster.push(0, 1, timeout_s=0.1)
    cluster.links[0].call("Release", messages.ReleaseRequest(hold=1), 30)  # over long since: nothing happens
    with pytest.raises(RpcTimeout):
        cluster.push(0, 1, timeout_s=0.1)
    cluster.links[0].call("Release", messages.ReleaseRequest(hold=2), 30)
    cluster.push(0, 1)


def test_when_one_server_is_lost_after_the_hold_the_others_resume_immediately(two: Callable[..., Cluster]) -> None:
    cluster = two(hold_lease_s=600)
    verbs: list[str] = []

    class Lost:
        """A link that stops its server when the servers are held."""

        def begin(self, verb: str, request: Any, timeout_s: float | None) -> Any:
            verbs.append(verb)
            if verb == "Cut":
                cluster.servers.servers[1].stop(0)
            return cluster.links[1].begin(verb, request, timeout_s)

        def finish(self, verb: str, call: Any) -> Any:
            return cluster.links[1].finish(verb, call)

    links: Any = [cluster.links[0], Lost()]
    with pytest.raises(ShardUnavailable):
        JointCut(links, SystemClock()).take(cluster.instances, 30)
    assert verbs[:3] == ["FlushDeltas", "Hold", "Cut"]
    cluster.hold(0, 7)  # server 0 has released its hold, by the cut; it takes another one
    cluster.links[0].call("Release", messages.ReleaseRequest(hold=7), 30)
    cluster.push(0, 1, timeout_s=30)


def test_a_cut_that_fails_before_any_server_takes_it_releases_all_servers(two: Callable[..., Cluster]) -> None:
    cluster = two(hold_lease_s=600)

    class Refusing:
        """A link that fails instead of the cut."""

        def __init__(self, link: ServerLink) -> None:
            self._link = link

        def begin(self, verb: str, request: Any, timeout_s: float | None) -> Any:
            if verb == "Cut":
                raise ShardUnavailable("lost between Hold and Cut")
            return self._link.begin(verb, request, timeout_s)

        def finish(self, verb: str, call: Any) -> Any:
            return self._link.finish(verb, call)

    links: Any = [Refusing(link) for link in cluster.links]
    with pytest.raises(ShardUnavailable, match="between Hold and Cut"):
        JointCut(links, SystemClock()).take(cluster.instances, 30)
    cluster.push(0, 1, timeout_s=30)  # a hold that stays would end after 600 s
    cluster.push(1, 1, timeout_s=30)


def test_a_server_that_is_stopped_lets_held_pushes_end(two: Callable[..., Cluster]) -> None:
    cluster = two(hold_lease_s=600)
    cluster.hold(0, 1)
    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(cluster.push, 0, 1)
        server = cluster.servers.servers[0]
        eventually(lambda: server._drain._under_way)
        server.stop(300)
        pushing.result(60)
    assert server.tables["t"].lookup([0]).tolist() == [[1.0]]


@pytest.mark.parametrize("transport", ["grpc", "data_plane"])
def test_no_cut_has_half_of_a_push(serve: Callable[..., PsServers], tmp_path: Path, transport: Any) -> None:
    servers = serve(2, delta_log=tmp_path / "log", delta_interval_s=0.05)
    ended = threading.Event()
    stores = [RemoteStore(servers.addresses, [COUNTER], transport=transport) for _ in range(3)]

    def push(store: RemoteStore) -> int:
        count = 0
        while not ended.is_set():
            store.push({"t": PAIR}, {"t": -np.ones((2, 1), np.float32)})
            count += 1
        return count

    found = []
    with ThreadPoolExecutor(2) as pool:
        pushing = [pool.submit(push, store) for store in stores[1:]]
        try:
            for _ in range(12):
                stores[0].snapshot(tmp_path / "s")
                found.append(MultiTable.load(tmp_path / "s").lookup({"t": PAIR})["t"].ravel().tolist())
        finally:
            ended.set()
        pushes = sum(one.result(60) for one in pushing)
    assert [pair for pair in found if pair[0] != pair[1]] == []
    assert found[-1] > found[0], "pushes went on in between"
    assert stores[0].pull({"t": PAIR})["t"].ravel().tolist() == [pushes, pushes]
    for store in stores:
        store.close()


def test_no_published_moment_has_half_of_a_push(serve: Callable[..., PsServers], tmp_path: Path) -> None:
    servers = serve(2, delta_log=tmp_path / "log", delta_interval_s=0.05)
    ended = threading.Event()
    stores = [RemoteStore(servers.addresses, [COUNTER]) for _ in range(3)]

    def push(store: RemoteStore) -> None:
        while not ended.is_set():
            store.push({"t": PAIR}, {"t": -np.ones((2, 1), np.float32)})

    def shown(positions: tuple[LogPosition, ...]) -> list[float]:
        replayed = MultiTable([COUNTER])
        for index, position in enumerate(positions):
            DeltaReader(tmp_path / "log" / f"ps_{index}").replay(replayed, until=position.sequence)
        return [float(value) for value in replayed.lookup({"t": PAIR})["t"].ravel()]

    found = []
    with ThreadPoolExecutor(2) as pool:
        pushing = [pool.submit(push, store) for store in stores[1:]]
        try:
            for _ in range(8):
                positions, ids, rows = stores[0].flush_jointly("t")
                found.append((shown(positions), rows.ravel()[np.argsort(ids)].tolist()))
        finally:
            ended.set()
        for one in pushing:
            one.result(60)
    for in_logs, in_tables in found:
        assert in_logs[0] == in_logs[1]
        assert in_logs == in_tables or in_tables == []
    assert found[-1][0] > found[0][0], "pushes went on in between"
    for store in stores:
        store.close()


def test_a_cut_that_waits_to_be_saved_outlives_a_publish(serve: Callable[..., PsServers], tmp_path: Path) -> None:
    servers = serve(2, delta_log=tmp_path / "log", delta_interval_s=60)
    with RemoteStore(servers.addresses, [COUNTER]) as store:
        one = {"t": -np.ones((2, 1), np.float32)}
        store.push({"t": PAIR}, one)
        cut = store.cut()
        store.push({"t": PAIR}, one)
        positions, ids, rows = store.flush_jointly("t")
        assert [position.sequence for position in positions] == [2, 2]
        assert sorted(zip(ids.tolist(), rows.ravel().tolist(), strict=True)) == [(0, 2.0), (1, 2.0)]
        cut.write(tmp_path / "s")
        assert MultiTable.load(tmp_path / "s").lookup({"t": PAIR})["t"].ravel().tolist() == [1, 1]
        with pytest.raises(ConfigError, match="no table 'u'"):
            store.flush_jointly("u")

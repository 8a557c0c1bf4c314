"""Every writable discovery passes one suite; then come the failures of each store."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from monolith.core.clock import SystemClock
from monolith.core.errors import AlreadyRegistered, ClusterError, ConnectionFailed, RetriesExhausted
from monolith.core.retry import RetryPolicy
from monolith.discovery import (
    ConsulAgent,
    ConsulDiscovery,
    ConsulEndpoint,
    DiscoveryGuard,
    FileDiscovery,
    LookupAgent,
    MemoryDiscovery,
    MemoryRegistry,
    Removed,
    ZooKeeperDiscovery,
    consul_agent,
    prepare_job,
)
from monolith.testing.eventually import eventually
from monolith.testing.fakes.clock import FakeClock
from monolith.testing.fakes.consul_server import ConsulServer
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper
from monolith.testing.suites.discovery_suite import DiscoverySuite, Peers, service, watching

SOON = RetryPolicy(attempts=5, initial_backoff_s=0.05)


class TestMemory(DiscoverySuite):
    replaces: ClassVar[bool] = False

    @pytest.fixture
    def peers(self) -> Peers:
        registry = MemoryRegistry()
        return lambda: MemoryDiscovery(registry)

    def test_a_heartbeat_restores_a_registration_that_the_store_lost(self) -> None:
        registry = MemoryRegistry()
        with DiscoveryGuard(MemoryDiscovery(registry)) as one, watching(one) as next_event:
            one.register(service(0))
            registry.clear()
            assert one.query("ps") == []
            one.heartbeat("ps-0")
            assert [type(next_event()).__name__ for _ in range(3)] == ["Added", "Removed", "Added"]


class TestFile(DiscoverySuite):
    @pytest.fixture
    def peers(self, tmp_path: Path) -> Peers:
        return lambda: FileDiscovery(tmp_path / "job", watch_interval_s=0.02)

    def test_a_heartbeat_restores_a_registration_that_the_store_lost(self, peers: Peers, tmp_path: Path) -> None:
        with DiscoveryGuard(peers()) as one:
            one.register(service(0))
            (tmp_path / "job" / "ps" / "0").unlink()
            one.heartbeat("ps-0")
            assert (tmp_path / "job" / "ps" / "0").read_text() == "127.0.0.1:2222"


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    if (reason := why_no_zookeeper()) is not None:
        pytest.skip(reason)
    pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'monolith[zookeeper]'")
    with ZooKeeperServer(tick_ms=500) as server:
        yield server


def zookeeper_peer(server: ZooKeeperServer, job: str, **options: object) -> ZooKeeperDiscovery:
    settings = {"session_timeout_s": 10.0, "timeout_s": 30.0, "retries": SOON, **options}
    return ZooKeeperDiscovery(server.address, job, **settings)  # type: ignore[arg-type]


class TestZooKeeper(DiscoverySuite):
    @pytest.fixture
    def peers(self, zookeeper: ZooKeeperServer) -> Peers:
        job = uuid.uuid4().hex
        return lambda: zookeeper_peer(zookeeper, job)

    def test_the_node_is_where_the_original_looks_for_it(self, zookeeper: ZooKeeperServer) -> None:
        job = uuid.uuid4().hex
        with DiscoveryGuard(zookeeper_peer(zookeeper, job)) as one:
            one.register(service(3))
            looker = zookeeper_peer(zookeeper, "looker")
            with DiscoveryGuard(looker):
                content, stat = looker.session.get(f"/monolith/{job}/ps.3")
                assert content == b"127.0.0.1:2522"
                assert stat.ephemeralOwner != 0

    def test_an_expired_session_is_renewed_with_its_services(self, zookeeper: ZooKeeperServer) -> None:
        job = uuid.uuid4().hex
        one = zookeeper_peer(zookeeper, job)
        with DiscoveryGuard(one), DiscoveryGuard(zookeeper_peer(zookeeper, job)) as other:
            one.register(service(0))
            with watching(other) as next_event:
                next_event()
                before = one.session.session_id
                expire(zookeeper, one)
                assert isinstance(next_event(), Removed)
                assert next_event().service.address == "127.0.0.1:2222"
            assert one.session.session_id != before

    def test_a_lost_place_stays_with_its_successor(
        self, zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = uuid.uuid4().hex
        one, two = zookeeper_peer(zookeeper, job), zookeeper_peer(zookeeper, job)
        with DiscoveryGuard(one), DiscoveryGuard(two):
            one.register(service(0))
            two.register(service(0, 4444))
            one.renew_all()
            assert "was taken over by 127.0.0.1:4444" in caplog.text
            with pytest.raises(AlreadyRegistered):
                one.heartbeat("ps-0")
            assert [found.address for found in one.query("ps")] == ["127.0.0.1:4444"]

    def test_a_service_in_the_place_of_a_dead_session_outlives_that_session(self, zookeeper: ZooKeeperServer) -> None:
        job = uuid.uuid4().hex
        dead, new = zookeeper_peer(zookeeper, job), zookeeper_peer(zookeeper, job)
        with DiscoveryGuard(dead), DiscoveryGuard(new):
            dead.register(service(0))
            new.register(service(0))
            dead.close()
            assert [found.address for found in new.query("ps")] == ["127.0.0.1:2222"]

    def test_a_removed_node_comes_back_with_the_renewal(self, zookeeper: ZooKeeperServer) -> None:
        job = uuid.uuid4().hex
        one = zookeeper_peer(zookeeper, job, renewal_period_s=0.05)
        with DiscoveryGuard(one), watching(one) as next_event:
            one.register(service(0))
            next_event()
            one.session.delete(f"/monolith/{job}/ps.0")
            eventually(lambda: len(one.query("ps")) == 1)

    def test_empty_and_invalid_nodes_are_skipped(
        self, zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = uuid.uuid4().hex
        one = zookeeper_peer(zookeeper, job)
        with DiscoveryGuard(one):
            for name, content in (("ps.0", b""), ("ps.1", b"nowhere"), ("ps.x", b"h:1"), ("other", b"h:2")):
                one.session.create(f"/monolith/{job}/{name}", content)
            (found,) = one.query("ps")
            assert (found.index, found.metadata["index"], found.address) == (None, "x", "h:1")
            assert "invalid address in discovery node name=ps.1" in caplog.text

    def test_a_protected_job_needs_the_digest(self, zookeeper: ZooKeeperServer) -> None:
        job = uuid.uuid4().hex
        protect(zookeeper, f"/monolith/{job}", "user:secret")
        stranger = zookeeper_peer(zookeeper, job)
        with DiscoveryGuard(stranger), pytest.raises(ClusterError, match="set ZK_AUTH=user:password"):
            stranger.register(service(0))
        with DiscoveryGuard(zookeeper_peer(zookeeper, job, auth="user:secret")) as member:
            member.register(service(0))
            assert len(member.query("ps")) == 1

    def test_an_unreachable_server_fails_promptly_and_leaves_nothing_open(self) -> None:
        with socket.socket() as taken:  # bound, without a listener
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            nobody = ZooKeeperDiscovery(address, "job", timeout_s=0.2)
            with pytest.raises(ConnectionFailed, match=f"no ZooKeeper at {address} within 0.2 s") as hit:
                nobody.connect()
        assert hit.value.retryable
        nobody.close()


def test_old_jobs_are_removed_and_a_job_starts_with_nothing(zookeeper: ZooKeeperServer) -> None:
    later = FakeClock(SystemClock().now_s() + 10 * 7 * 86400)
    root, old, live, job = f"/{uuid.uuid4().hex}", "old", "live", "job"
    watcher = zookeeper_peer(zookeeper, live, root=root)
    with DiscoveryGuard(watcher):
        watcher.register(service(0))
        watcher.session.ensure(f"{root}/{old}")
        prepare_job(zookeeper.address, job, root=root)
        assert sorted(watcher.session.children(root)) == [live, old]
        prepare_job(zookeeper.address, job, root=root, clock=later)
        assert watcher.session.children(root) == [live]
        with pytest.raises(ClusterError, match=r"job 'live' exists.*the processes .*--force"):
            prepare_job(zookeeper.address, live, root=root)
        prepare_job(zookeeper.address, live, root=root, is_forced=True)
        assert watcher.session.children(root) == []


def test_a_job_whose_processes_have_ended_may_start_again(zookeeper: ZooKeeperServer) -> None:
    root, job = f"/{uuid.uuid4().hex}", "job"
    with DiscoveryGuard(zookeeper_peer(zookeeper, job, root=root)) as guard:
        guard.register(service(0))
    prepare_job(zookeeper.address, job, root=root)


def test_the_command_that_prepares_a_job_refuses_a_running_one_unless_forced(zookeeper: ZooKeeperServer) -> None:
    from typer.testing import CliRunner

    from monolith.cli.main import app

    job = uuid.uuid4().hex
    command = ["launch", "prepare", "--zk-server", zookeeper.address, "--uuid", job]
    assert CliRunner().invoke(app, command).exit_code == 0
    peer = zookeeper_peer(zookeeper, job)
    with DiscoveryGuard(peer):
        peer.register(service(0))
        refused = CliRunner().invoke(app, command)
        assert f"job {job!r} exists" in str(refused.exception)
        assert CliRunner().invoke(app, [*command, "--force"]).exit_code == 0


def expire(server: ZooKeeperServer, discovery: ZooKeeperDiscovery) -> None:
    """End a session on the server: a second client takes it over and closes it."""
    from kazoo.client import KazooClient

    thief = KazooClient(server.address, client_id=discovery.session.credentials)
    thief.start(timeout=30)
    thief.stop()
    thief.close()


def protect(server: ZooKeeperServer, path: str, credential: str) -> None:
    from kazoo.client import KazooClient
    from kazoo.security import CREATOR_ALL_ACL

    owner = KazooClient(server.address, auth_data=[("digest", credential)])
    owner.start(timeout=30)
    owner.ensure_path(path.rpartition("/")[0])
    owner.create(path, acl=CREATOR_ALL_ACL)
    owner.stop()
    owner.close()


def test_services_outlive_a_killed_zookeeper_and_come_back_to_an_empty_one(zookeeper: ZooKeeperServer) -> None:
    with ZooKeeperServer(tick_ms=500) as server:
        one = zookeeper_peer(server, "job", session_timeout_s=1.5)
        other = zookeeper_peer(server, "job", session_timeout_s=1.5)
        with DiscoveryGuard(one), DiscoveryGuard(other):
            one.register(service(0))
            known = other.query("ps")
            assert len(known) == 1
            server.kill()
            assert other.query("ps") == known
            with pytest.raises(ClusterError):
                zookeeper_peer(server, "job", timeout_s=0.1).connect()
            server.start()
            eventually(lambda: not one.session.is_away and not other.session.is_away)
            eventually(lambda: other.query("ps") == known)

            # A server without state refuses the old sessions; the client opens new ones and registers again.
            before = one.session.session_id
            server.kill()
            server.forget()
            server.start()
            eventually(lambda: not one.session.is_away and one.session.session_id != before)
            eventually(lambda: not other.session.is_away and other.query("ps") == known)


@pytest.fixture
def consul() -> Iterator[ConsulServer]:
    with ConsulServer() as server:
        yield server


class Hasty(SystemClock):
    """Sleeps, but never for long: the pauses of Consul are seconds."""

    def sleep_s(self, seconds: float) -> None:
        super().sleep_s(min(seconds, 0.02))


class ConsulSuite(DiscoverySuite):
    """Tests of both dialects."""

    @pytest.fixture
    def peers(self, consul: ConsulServer) -> Peers:
        raise NotImplementedError

    def test_a_broken_connection_is_tried_again(self, peers: Peers, consul: ConsulServer) -> None:
        with DiscoveryGuard(peers()) as one:
            consul.fail_next(4)
            one.register(service(0))
            assert len(one.query("ps")) == 1
            consul.fail_next(5)
            with pytest.raises(RetriesExhausted, match=r"5 attempts.*Consul query at 127\.0\.0\.1"):
                one.query("ps")

    def test_a_heartbeat_restores_a_registration_that_the_agent_lost(self, peers: Peers, consul: ConsulServer) -> None:
        with DiscoveryGuard(peers()) as one:
            one.register(service(0))
            consul.forget()
            assert one.query("ps") == []
            one.heartbeat("ps-0")
            assert len(one.query("ps")) == 1


class TestConsul(ConsulSuite):
    @pytest.fixture
    def peers(self, consul: ConsulServer) -> Peers:
        agent = ConsulAgent(ConsulEndpoint.parse(consul.address), retries=SOON)
        return lambda: ConsulDiscovery(agent, "job", watch_interval_s=0.02, clock=Hasty())


class TestConsulOfTheOriginal(ConsulSuite):
    @pytest.fixture
    def peers(self, consul: ConsulServer) -> Peers:
        agent = LookupAgent(ConsulEndpoint.parse(consul.address), retries=SOON)
        return lambda: ConsulDiscovery(agent, "job", watch_interval_s=0.02, clock=Hasty())


if "CONSUL_HTTP_ADDR" in os.environ:

    class TestRealConsul(DiscoverySuite):
        @pytest.fixture
        def peers(self) -> Peers:
            job = f"monolith-test-{uuid.uuid4().hex}"
            return lambda: ConsulDiscovery(consul_agent(None, os.environ), job, watch_interval_s=0.1)

else:

    @pytest.mark.skip(reason="CONSUL_HTTP_ADDR names no real Consul agent")
    def test_a_real_consul_agent() -> None: ...

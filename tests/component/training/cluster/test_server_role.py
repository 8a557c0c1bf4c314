"""The end of a parameter server: by the shutdown call of the chief, or by a signal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from monolith.core.errors import AlreadyRegistered, ClusterError
from monolith.core.retry import RetryPolicy
from monolith.core.stop_signals import Endings
from monolith.discovery import FileDiscovery, MemoryDiscovery, MemoryRegistry
from monolith.ps import PsClient, Security
from monolith.testing.eventually import eventually
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster import DistributedConfig, run_role
from monolith.training.cluster.roles.server import serve, server_config, shut_down_servers

SOON_S = 60.0
ONCE = RetryPolicy(attempts=1)


class Server(threading.Thread):
    """The role in a thread, and where it is once it is registered."""

    def __init__(self, registry: MemoryRegistry, index: int = 0, num_ps: int = 1) -> None:
        super().__init__()
        self.endings: Endings = SimpleQueue()
        self._registry = registry
        self._process = DistributedConfig(role="ps", index=index, num_ps=num_ps)

    def run(self) -> None:
        told = server_config(self._process, Security(), "")
        run_role(MemoryDiscovery(self._registry), self._process, lambda session: serve(session, told, self.endings))


@contextmanager
def serving(count: int) -> Iterator[tuple[list[Server], list[str]]]:
    registry = MemoryRegistry()
    servers = [Server(registry, index, count) for index in range(count)]
    for server in servers:
        server.start()
    eventually(lambda: len(registry.read("ps")) >= count)
    try:
        yield servers, [one.address for one in sorted(registry.read("ps"), key=lambda one: one.index)]
    finally:
        for server in servers:
            server.endings.put("the test is over")
            server.join(SOON_S)


def test_one_shutdown_call_of_the_chief_ends_every_server() -> None:
    with serving(2) as (servers, addresses):
        shut_down_servers(addresses, Security(), ONCE)
        for server in servers:
            server.join(SOON_S)
            assert not server.is_alive()


def test_no_shutdown_call_is_missed_right_after_the_start() -> None:
    for _ in range(20):
        with serving(1) as ((server,), addresses):
            shut_down_servers(addresses, Security(), ONCE)
            server.join(SOON_S)
            assert not server.is_alive()


def test_a_repeated_shutdown_call_is_accepted() -> None:
    reasons: SimpleQueue[str] = SimpleQueue()
    with PsServers(1) as servers:
        servers.servers[0].service.on_shutdown = reasons.put
        for _ in range(2):
            shut_down_servers(servers.addresses, Security(), ONCE)
            assert "chief" in reasons.get(timeout=SOON_S)


def test_a_reason_from_this_process_ends_it_too() -> None:
    with serving(1) as ((server,), _):
        server.endings.put("SIGTERM")
        server.join(SOON_S)
        assert not server.is_alive()


def test_lost_and_foreign_servers_do_not_delay_the_shutdown_of_the_others() -> None:
    with PsServers(1) as own, serving(1) as ((server,), addresses):
        shut_down_servers(["127.0.0.1:1", *own.addresses, *addresses], Security(), ONCE)
        server.join(SOON_S)
        assert not server.is_alive()
        with PsClient(own.addresses) as client:
            assert client.health_check().message == "OK", "a server without a job continues"


def test_a_server_of_a_job_that_loses_its_place_stops_and_leaves_the_place_to_its_successor(tmp_path: Path) -> None:
    process = DistributedConfig(role="ps", index=0, num_ps=1, heartbeat_interval_s=0.05)
    errors: list[BaseException] = []
    endings: list[Endings] = [SimpleQueue(), SimpleQueue()]

    def run(number: int) -> None:
        told = server_config(process, Security(), "")
        try:
            run_role(FileDiscovery(tmp_path), process, lambda session: serve(session, told, endings[number]))
        except ClusterError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    observer = FileDiscovery(tmp_path)
    observer.connect()
    try:
        threads[0].start()
        eventually(lambda: len(observer.query("ps")) == 1)
        (first,) = observer.query("ps")
        threads[1].start()
        threads[0].join(SOON_S)
        assert not threads[0].is_alive()
        (second,) = observer.query("ps")
        assert second.address != first.address
        assert threads[1].is_alive()
    finally:
        for each in endings:
            each.put("the test is over")
        for thread in threads:
            thread.join(SOON_S)
        observer.close()
    assert [type(error) for error in errors] == [AlreadyRegistered]
    assert "was taken over by" in str(errors[0])

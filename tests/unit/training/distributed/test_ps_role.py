"""The end of a server: told by the chief whenever that comes, or by a signal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from monolith.core.retry import RetryPolicy
from monolith.core.stop_signals import Endings
from monolith.discovery import MemoryDiscovery, MemoryRegistry
from monolith.ps import PsClient, Security
from monolith.testing.eventually import eventually
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.distributed import DistributedConfig, run_role
from monolith.training.distributed.ps_role import _listening_for_end, end_servers, serve, server_config

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


def test_one_word_of_the_chief_is_enough_at_any_moment() -> None:
    with serving(2) as (servers, addresses):
        end_servers(addresses, Security(), ONCE)
        for server in servers:
            server.join(SOON_S)
            assert not server.is_alive()


def test_many_ends_one_after_the_other_none_is_missed() -> None:
    for _ in range(20):
        with serving(1) as ((server,), addresses):
            end_servers(addresses, Security(), ONCE)
            server.join(SOON_S)
            assert not server.is_alive()


def test_a_chief_that_asks_twice_is_heard_twice() -> None:
    endings: Endings = SimpleQueue()
    with PsServers(1) as servers, _listening_for_end(servers.servers[0], endings):
        for _ in range(2):
            end_servers(servers.addresses, Security(), ONCE)
            assert "chief" in endings.get(timeout=SOON_S)
    assert not any(thread.name == "end-of-job" for thread in threading.enumerate())


def test_a_reason_from_this_process_ends_it_too() -> None:
    with serving(1) as ((server,), _):
        server.endings.put("SIGTERM")
        server.join(SOON_S)
        assert not server.is_alive()


def test_servers_that_are_gone_or_not_of_a_job_do_not_keep_the_others_from_hearing_it() -> None:
    with PsServers(1) as own, serving(1) as ((server,), addresses):
        end_servers(["127.0.0.1:1", *own.addresses, *addresses], Security(), ONCE)
        server.join(SOON_S)
        assert not server.is_alive()
        with PsClient(own.addresses) as client:
            assert client.health_check().message == "OK", "it does not listen, and goes on"

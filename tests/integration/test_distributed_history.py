"""Servers are killed, held and cut off while clients push and look up: what they were told is what is there."""

from __future__ import annotations

import random
import sys
import threading
import traceback
from pathlib import Path

import pytest

from monolith.ps import store as store_module
from monolith.ps.store import TransportName
from monolith.testing.processes.faulty_servers import FAULTS, Fault, FaultyServers, tcp_addresses
from monolith.testing.suites.history import History
from monolith.testing.suites.history_clients import HistoryClients, read_numbers

KEYS = list(range(1, 41))
SOON_S = 120.0
LOG_INTERVAL_S = 0.2
"""Servers with a delta log lose no more than its interval."""
TRANSPORTS = pytest.mark.parametrize("transport", ["grpc", "data_plane"])

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of the loopback: 127.0.0.2")


@pytest.fixture(autouse=True)
def through_the_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "data_plane_addresses", tcp_addresses)


def state(servers: FaultyServers, clients: HistoryClients) -> str:
    """Abort all servers; return the stacks of all threads and the errors of the clients."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"--- thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join([*clients.failures, *stacks, servers.logs()])


@TRANSPORTS
def test_what_was_acknowledged_is_there_once_whatever_happens_to_the_servers(
    transport: TransportName, tmp_path: Path, seed: int
) -> None:
    history = History(clients=3, shards=2)
    plan: list[Fault] = [*FAULTS]
    random.Random(seed).shuffle(plan)
    pause = threading.Event()
    with FaultyServers(history, tmp_path, timeout_s=0.5, log_interval_s=LOG_INTERVAL_S) as servers:
        with HistoryClients(history, lambda: servers.open_store(transport), KEYS, seed=seed, pause_s=0.005) as clients:
            assert clients.wait_for(60, SOON_S), state(servers, clients)
            assert servers.connections(transport) >= history.shards
            for number, fault in enumerate(plan):
                if fault == "kill":
                    servers.save()
                    assert clients.wait_for(20, SOON_S), state(servers, clients)
                servers.inject(fault, number % 2, lambda: pause.wait(0.7))
                assert clients.wait_for(30, SOON_S), f"after {fault!r}:\n{state(servers, clients)}"
        with servers.open_store(transport) as store:
            assert store.transport == transport
            final = read_numbers(store, KEYS)
    assert clients.failures == []
    assert len(history.kills) == 1
    found = history.violations(final)
    assert not found, "\n".join([f"plan {plan}", *(f"{one.kind}: {one.text}" for one in found[:20])])

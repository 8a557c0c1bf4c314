"""The history of many clients over minutes in which servers are inject at random: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from monolith.core.clock import Deadline, SystemClock
from monolith.ps import store as store_module
from monolith.ps.store import TransportName
from monolith.testing.processes.faulty_servers import FaultyServers, tcp_addresses
from monolith.testing.suites.history import History
from monolith.testing.suites.history_clients import HistoryClients, read_numbers
from torture_counts import add_counts

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
KEYS = list(range(1, 201))
SOON_S = 180.0
LOGS = [None, 0.5]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of the loopback: 127.0.0.2")


@pytest.fixture(autouse=True)
def through_the_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "data_plane_addresses", tcp_addresses)


@pytest.mark.parametrize("log_interval_s", LOGS)
@pytest.mark.parametrize("transport", ["grpc", "data_plane"])
def test_no_acknowledged_push_is_lost_and_none_is_applied_twice(
    transport: TransportName, log_interval_s: float | None, tmp_path: Path, seed: int
) -> None:
    history = History(clients=6, shards=3)
    chance = random.Random(seed)
    done: list[tuple[str, int]] = []
    with FaultyServers(history, tmp_path, timeout_s=0.5, log_interval_s=log_interval_s) as servers:
        with HistoryClients(history, lambda: servers.open_store(transport), KEYS, seed=seed, pause_s=0.01) as clients:
            assert clients.wait_for(60, SOON_S), servers.logs()
            end = Deadline(SystemClock(), SECONDS)
            while len(done) < 3 or not end.is_past:
                done.append(servers.inject_at_random(chance, 3.0))
                assert clients.wait_for(30, SOON_S), f"after {done}:\n{servers.logs()}"
                print(f"{end.remaining_s():.0f} s to go: {done[-1]}", flush=True)
        with servers.open_store(transport) as store:
            final = read_numbers(store, KEYS)
    assert clients.failures == []
    found = history.violations(final)
    add_counts(operations=len(history.pushes) + len(history.lookups), faults=len(done))
    assert not found, "\n".join([f"inject {done}", *(f"{one.kind}: {one.text}" for one in found[:20])])

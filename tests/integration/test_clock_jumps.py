"""The wall clock of servers jumps by days, forward and back: no acknowledged push is lost or applied twice."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fault_layer import build_fault_layer, why_no_fault_layer
from monolith.testing.processes.faulty_servers import FaultyServers
from monolith.testing.suites.history import History
from monolith.testing.suites.history_clients import HistoryClients, read_numbers

KEYS = list(range(1, 41))
SOON_S = 120.0
DAY_S = 86_400
JUMPS_S = [40 * DAY_S, -2 * DAY_S]

pytestmark = [
    pytest.mark.skipif(bool(why_no_fault_layer()), reason=why_no_fault_layer()),
    pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of the loopback: 127.0.0.2"),
]


def test_servers_whose_clock_jumps_lose_and_double_no_push(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("<q", 0))
    monkeypatch.setenv("LD_PRELOAD", str(build_fault_layer()))
    monkeypatch.setenv("FAULT_LAYER_CLOCK", str(clock))
    history = History(clients=3, shards=2)
    with FaultyServers(history, tmp_path, timeout_s=1.0, log_interval_s=0.1) as servers:
        with HistoryClients(history, lambda: servers.open_store("grpc"), KEYS, seed=seed, pause_s=0.005) as clients:
            assert clients.wait_for(20, SOON_S), servers.logs()
            servers.save()
            for number, jump_s in enumerate(JUMPS_S):
                with clock.open("r+b") as file:
                    file.write(struct.pack("<q", jump_s))
                assert clients.wait_for(20, SOON_S), f"after a jump to {jump_s} s:\n{servers.logs()}"
                servers.inject("kill", number % 2, lambda: None)
                assert clients.wait_for(20, SOON_S), f"after a restart at {jump_s} s:\n{servers.logs()}"
        with servers.open_store("grpc") as store:
            final = read_numbers(store, KEYS)
    assert clients.failures == []
    found = history.violations(final)
    assert not found, "\n".join(f"{each.kind}: {each.text}" for each in found[:20])


def test_a_process_sees_the_jump(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("<q", -3 * DAY_S))
    environment = {**os.environ, "LD_PRELOAD": str(build_fault_layer()), "FAULT_LAYER_CLOCK": str(clock)}
    command = [sys.executable, "-c", "import time; print(time.time(), time.time_ns() / 1e9)"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    for text in done.stdout.split():
        assert abs(float(text) - (time.time() - 3 * DAY_S)) < SOON_S

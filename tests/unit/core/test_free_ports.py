from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from monolith.core import free_ports
from monolith.core.free_ports import free_port


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_ports_differ_and_are_below_those_of_outgoing_connections(host: str) -> None:
    ports = free_ports.free_ports(50, host)
    assert len(set(ports)) == 50
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port < lowest for port in ports)


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_server_may_listen_on_its_port_and_another_caller_does_not_get_it(host: str) -> None:
    port = free_port(host)
    for _ in range(2):  # the port stays reserved while a server restarts
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, port))
        with socket.create_server((host, port)):
            pass


def test_another_process_does_not_get_a_reserved_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lowest = random.randrange(15_000, 32_000)
    (tmp_path / "range").write_text(f"{lowest + 60} 65000")
    monkeypatch.setattr(free_ports, "_LOWEST", lowest)
    monkeypatch.setattr(free_ports, "_RANGE", tmp_path / "range")
    ports = free_ports.free_ports(20)
    program = (
        "import sys; from pathlib import Path; from monolith.core import free_ports as f;"
        "f._RANGE = Path(sys.argv[1]); f._LOWEST = int(sys.argv[2]); print(*f.free_ports(20))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "range"), str(lowest)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert not set(ports) & set(map(int, printed.split()))


def test_the_process_keeps_the_newest_reservations(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved: deque[int] = deque()
    monkeypatch.setattr(free_ports, "_reserved", reserved)
    monkeypatch.setattr(free_ports, "_MOST_RESERVED", 2)
    oldest, *newest = free_ports.free_ports(3)
    with socket.socket() as other:
        other.bind(("127.0.0.1", oldest))
    for port in newest:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
    for each in reserved:
        os.close(each)


def test_a_system_that_ignores_the_option_after_the_bind_gets_no_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_ports, "_may_listen_beside", lambda bound: False)
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port()))


@pytest.mark.parametrize("text", ["1024 65000", "", "x"])
def test_without_a_range_below_outgoing_ports_the_system_chooses(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(text)
    monkeypatch.setattr(free_ports, "_RANGE", tmp_path / "range")
    assert free_port() > 0

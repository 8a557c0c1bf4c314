from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from monolith.core import free_ports
from monolith.core.free_ports import free_port, reserve_port


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_ports_differ_and_are_below_those_of_outgoing_connections(host: str) -> None:
    ports = free_ports.free_ports(50, host)
    assert len(set(ports)) == 50
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port < lowest for port in ports)
    with socket.socket() as server:
        server.bind((host, ports[0]))


def test_a_reserved_port_is_taken_until_the_end_of_the_reservation() -> None:
    with ExitStack() as probes:
        port = reserve_port(probes)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


@pytest.mark.parametrize("text", ["1024 65000", "", "x"])
def test_without_a_range_below_outgoing_ports_the_system_chooses(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(text)
    monkeypatch.setattr(free_ports, "_RANGE", tmp_path / "range")
    assert free_port() > 0

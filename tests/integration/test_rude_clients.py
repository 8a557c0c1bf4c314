"""Servers with 256 descriptors meet clients that stall, talk nonsense, pipeline and never read: they recover."""

from __future__ import annotations

import json
import resource
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from commands import Shell
from monolith.core.errors import MonolithError
from monolith.core.retry import RetryPolicy
from monolith.discovery.address import split_address
from monolith.ps import RemoteStore
from monolith.testing.processes.ps_processes import PsProcess
from monolith.testing.suites.history import numbers_table
from served_model import ServedModel
from small_export import example, make_export

DESCRIPTORS = 256
RUDE = 290
SOON_S = 60.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit needs Linux")

WORDS = [
    b"",  # sends nothing
    b"GET / HTTP/1.1\r\nHost: x\r\n",  # stalls inside a head
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 20,  # pipelines and never reads
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 50,  # HTTP/2 without a request
    bytes(range(256)) * 16,  # nonsense
]


@contextmanager
def rude_clients(address: str) -> Iterator[list[socket.socket]]:
    """Hold as many connections as the server takes, each with another misbehaviour."""
    with ExitStack() as stack:
        clients = []
        for number in range(RUDE):
            client = stack.enter_context(socket.socket())
            client.settimeout(0.05)
            with suppress(OSError):
                client.connect(split_address(address))
                client.sendall(WORDS[number % len(WORDS)])
                clients.append(client)
        yield clients


def use_few_descriptors(pid: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def wait_until_it_works(work: Callable[[], object]) -> None:
    end_s = time.monotonic() + SOON_S
    while True:
        try:
            work()
            return
        except (MonolithError, OSError):
            if time.monotonic() > end_s:
                raise
            time.sleep(0.2)


@pytest.mark.parametrize("port", ["grpc", "data_plane"])
def test_a_parameter_server_serves_its_clients_through_rude_ones_and_takes_new_ones_afterwards(port: str) -> None:
    with PsProcess(0, 1) as server:
        assert server.pid is not None
        use_few_descriptors(server.pid)
        specs = [numbers_table(1)]
        with RemoteStore([server.address], specs, transport="grpc", timeout_s=5.0) as store:
            store.push({"numbers": [1]}, {"numbers": np.ones((1, 1), np.float32)})
            with rude_clients(server.address if port == "grpc" else f"127.0.0.1:{server.data_port}"):
                for _ in range(5):
                    store.push({"numbers": [1]}, {"numbers": np.ones((1, 1), np.float32)})
                once = RetryPolicy(attempts=1)
                with suppress(MonolithError):  # no descriptor is free: refused, or served
                    RemoteStore([server.address], specs, transport="grpc", timeout_s=1.0, retries=once).close()
            wait_until_it_works(lambda: RemoteStore([server.address], specs, timeout_s=2.0).close())
            assert float(np.asarray(store.pull({"numbers": [1]})["numbers"])[0, 0]) == -6.0
        assert server.pid is not None, server.log
        assert "Traceback" not in server.log, server.log


@pytest.mark.parametrize("port", ["rest", "grpc"])
def test_a_model_server_answers_again_after_rude_clients(port: str, tmp_path: Path) -> None:
    make_export(tmp_path / "exports" / "12")
    probe = [example([7], [9], 0.5).SerializeToString()]
    with ServedModel(Shell(tmp_path), tmp_path / "exports") as server:
        assert server.command.process.pid is not None
        use_few_descriptors(server.command.process.pid)
        rest = json.loads(server.command.out.read_text())["rest_address"]

        def is_ready() -> None:
            with urllib.request.urlopen(f"http://{rest}/healthz", timeout=5) as answer:
                assert answer.status == 200

        def scores() -> list[float]:
            return server.client.score(probe, "examples")["score"].tolist()

        assert scores() == [41.5]
        with rude_clients(rest if port == "rest" else server.address):
            assert scores() == [41.5], "an open connection is served"
        wait_until_it_works(is_ready)
        assert scores() == [41.5]
        assert "Traceback" not in server.said(), server.said()

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from monolith.serving.api.http_server import HttpLimits, Request
from monolith.telemetry import names
from native_http import NativeHttp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc needs Linux")

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
FREE = 2
WAITING = 6


def answer_hello(request: Request, reply: Callable[..., None]) -> None:
    reply(200, b"hello", "text/plain")


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Leave so many free descriptors to this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + count + 1, hard))
        try:
            while True:
                fillers.append(os.dup(0))
        except OSError:
            for _ in range(count):
                os.close(fillers.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


def count_pauses(server: NativeHttp) -> int:
    samples = {metric: values for metric, values in server.samples()}
    return int(samples[names.SERVING_ACCEPT_PAUSES_TOTAL][0][1])


def test_a_native_server_without_free_descriptors_pauses_accepting_and_does_not_spin() -> None:
    with ExitStack() as stack:
        server = NativeHttp(answer_hello, HttpLimits())
        stack.callback(server.close)
        clients = [stack.enter_context(socket.socket()) for _ in range(FREE + WAITING)]
        with free_descriptors(FREE):
            for client in clients:
                client.settimeout(10)
                client.connect(("127.0.0.1", server.port))
            end_s = time.monotonic() + 10
            while count_pauses(server) == 0:
                assert time.monotonic() < end_s, "the server counted no pause"
                time.sleep(0.01)
            pauses, used_s = count_pauses(server), time.process_time()
            time.sleep(0.6)
            assert time.process_time() - used_s < 0.3, "the server spins"
            assert count_pauses(server) - pauses <= 2
            assert server.connections <= FREE
        for client in clients:
            client.sendall(REQUEST)
            assert client.recv(4096).startswith(b"HTTP/1.1 200"), "the server accepts again"

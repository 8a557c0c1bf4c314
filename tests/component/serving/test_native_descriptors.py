from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monolith import _native
from monolith.serving.api.http_server import HttpLimits, Request
from monolith.telemetry import names
from native_http import NativeHttp
from raw_http2 import DATA, END_HEADERS, END_STREAM, HEADERS, RawHttp2, frame, headers, message

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


START = """
import resource
import sys
from pathlib import Path
from monolith import _native

def service(threads):
    return _native.ScoreService(threads=threads, max_rows=1, wait_s=0.0, max_queued_rows=1, max_queued_bytes=1,
                                bounds_us=[1], max_values=1)

def server(io_threads, most=1):
    limits = dict(max_body=most, max_pending=most, max_connections=9, idle_s=9.0, read_s=9.0, answer_s=9.0)
    limits |= dict.fromkeys(("token", "admin_token", "cert_file", "key_file", "ca_file"), "")
    return _native.ScoreServer(few, host="127.0.0.1", rest_port=0, grpc_port=0, io_threads=io_threads, **limits)

few = service(1)
part = sys.argv[1]
running = server(1, 1 << 30) if part == "message" else None
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (60 << 20), -1))  # stacks of few threads
if running is not None:
    print(running.grpc_port, flush=True)
    sys.stdin.read()
    running.close(0.0)
else:
    try:
        {"service": service, "server": server}[part](64)
    except Exception as error:
        print("refused", error)
"""


@pytest.mark.parametrize("part", ["service", "server"])
def test_a_start_that_gets_too_few_threads_is_an_error(part: str) -> None:
    done = subprocess.run([sys.executable, "-c", START, part], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused"), done.stdout


def test_a_message_that_needs_too_much_memory_ends_its_call_only() -> None:
    command = [sys.executable, "-c", START, "message"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        place = cast(Any, SimpleNamespace(address=f"127.0.0.1:{int(process.stdout.readline())}"))
        begin = message(b"")[:1] + (500 << 20).to_bytes(4, "big")
        with RawHttp2(place) as client:
            client.send(frame(HEADERS, END_HEADERS, 1, headers()), frame(DATA, 0, 1, begin))
            _, flags, stream, _ = client.first(HEADERS)
            assert (stream, flags & END_STREAM) == (1, END_STREAM)
        process.communicate("", timeout=60)
        assert process.returncode == 0


def test_a_start_that_gets_too_few_descriptors_keeps_none() -> None:
    service = _native.ScoreService(
        threads=1, max_rows=1, wait_s=0.0, max_queued_rows=1, max_queued_bytes=1, bounds_us=[1], max_values=1
    )
    limits = {"max_body": 1, "max_pending": 1, "max_connections": 1}
    times = {"idle_s": 1.0, "read_s": 1.0, "answer_s": 1.0}
    names = ("token", "admin_token", "cert_file", "key_file", "ca_file")
    settings: dict[str, Any] = {**limits, **times, **dict.fromkeys(names, "")}
    before = len(os.listdir("/proc/self/fd"))
    with free_descriptors(1), pytest.raises(OSError, match="epoll"):
        _native.ScoreServer(service, host="127.0.0.1", rest_port=0, grpc_port=None, io_threads=1, **settings)
    assert len(os.listdir("/proc/self/fd")) == before
    service.close(0.0)


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

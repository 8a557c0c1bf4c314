"""HTTP on the wire: valid requests, refusals, and bounds on slow or greedy clients."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from monolith.core.errors import ClusterError
from monolith.serving.api.http_server import HttpError, HttpLimits, HttpServer, Reply, Request, _Chunks
from monolith.serving.api.rest import error_body
from monolith.testing.eventually import eventually
from monolith.testing.processes.certificates import Authority
from native_http import NativeHttp


class Echo:
    """Echoes requests; ``/later`` from another thread, ``/held`` after the test sets ``held``."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.arrived = threading.Event()
        self.requests: list[Request] = []

    def __call__(self, request: Request, reply: Reply) -> None:
        self.requests.append(request)
        body = json.dumps([request.method, request.path, request.read_body().decode("latin-1")]).encode()
        if request.path == "/fail":
            raise RuntimeError("oops")
        if request.path == "/large":
            reply(200, b"x" * (8 << 20), "text/plain")
        elif request.path in ("/later", "/held"):

            def answer() -> None:
                if request.path == "/held":
                    self.arrived.set()
                    assert self.held.wait(60)
                reply(200, body)

            threading.Thread(target=answer, daemon=True).start()
        else:
            reply(200, body, headers={"X-Seen": "1"})


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture(params=["python", "native"])
def http(request: pytest.FixtureRequest, echo: Echo) -> Iterator[Callable[..., Any]]:
    with ExitStack() as stack:

        def start(**limits: Any) -> HttpServer | NativeHttp:
            bounds = HttpLimits(**limits)
            server: HttpServer | NativeHttp
            if request.param == "native":
                server = NativeHttp(echo, bounds)
            else:
                server = HttpServer(echo, error_body, "127.0.0.1", 0, bounds)
            stack.callback(server.close)
            return server

        yield start
        echo.held.set()


def talk(server: HttpServer, *sent: bytes, whole: bool = True) -> bytes:
    """Send, and read until the server ends the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        for part in sent:
            connection.sendall(part)
        if whole:
            connection.shutdown(socket.SHUT_WR)
        return received(connection)


def received(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {line.split(": ")[0]: line.split(": ")[1] for line in lines}, body


PYTHON_LOOP = pytest.mark.parametrize("http", ["python"], indirect=True)
"""For tests that run code in the loop of the Python server."""
NATIVE = pytest.mark.parametrize("http", ["native"], indirect=True)
CLOSE = b"Host: x\r\nConnection: close\r\n"


def test_a_request_is_answered_and_the_connection_kept(http: Callable[..., HttpServer]) -> None:
    server = http()
    answer = talk(
        server,
        b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\nPOST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        b"HEAD /h HTTP/1.1\r\n" + CLOSE + b"\r\n",
        whole=False,
    )
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert b'["GET", "/a", ""]' in answer
    assert b'["POST", "/later", "abc"]' in answer
    assert answer.endswith(b"\r\n\r\n")  # HEAD has no body
    assert b"X-Seen: 1" in answer


def test_an_old_client_is_answered_and_the_connection_ended(http: Callable[..., HttpServer]) -> None:
    status, headers, _ = split(talk(http(), b"GET / HTTP/1.0\r\n\r\n", whole=False))
    assert (status, headers["Connection"]) == (200, "close")


def test_a_request_may_come_a_byte_at_a_time_and_in_chunks(http: Callable[..., HttpServer]) -> None:
    server = http()
    text = (
        b"POST /c HTTP/1.1\r\n" + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n"
    )
    for parts in ([text], [text[index : index + 1] for index in range(len(text))]):
        assert split(talk(server, *parts, whole=False))[2] == b'["POST", "/c", "abc0123456789"]'


def test_a_body_may_be_gzip_but_not_a_bomb(http: Callable[..., HttpServer]) -> None:
    server = http(max_body=10_000)

    def post(body: bytes, coding: bytes = b"gzip") -> int:
        head = b"POST / HTTP/1.1\r\n" + CLOSE + b"Content-Encoding: %s\r\nContent-Length: %d\r\n\r\n"
        return split(talk(server, head % (coding, len(body)) + body, whole=False))[0]

    assert post(gzip.compress(b"hello")) == 200
    assert post(gzip.compress(b"x" * 10_000_000)) == 413
    assert post(b"hello") == 400
    assert post(gzip.compress(b"hello")[:-3]) == 400
    assert post(b"hello", b"br") == 415


def test_a_client_that_waits_for_permission_gets_it(http: Callable[..., HttpServer]) -> None:
    server = http()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\n" + CLOSE + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.sendall(b"ok")
        assert split(received(connection))[2] == b'["POST", "/", "ok"]'


REFUSED = {
    "no HTTP": (b"hello\r\n\r\n", 400),
    "two words": (b"GET /\r\n\r\n", 400),
    "bare newlines": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "a zero byte": (b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100, 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "HTTP/3.0": (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
    "a method with a colon": (b"G:T / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "another host's address": (b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a target with a space": (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a target beyond ASCII": (b"GET /\xc3\xa4 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    "a header without a colon": (b"GET / HTTP/1.1\r\nHost: x\r\nabc\r\n\r\n", 400),
    "a header with a space": (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    "a folded header": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
    "two lengths": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    "a length and chunks": (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "chunks in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "another coding": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "a negative length": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
    "a signed length": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na", 400),
    "a length in hex": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x1\r\n\r\na", 400),
    "a length without end": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n", 400),
    "a large body": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
    "a large chunk": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFF\r\n", 413),
    "a chunk of no size": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    "a chunk that is longer": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400),
    "a chunk line without end": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 300,
        400,
    ),
    "trailers": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n", 400),
    "a newline in a chunk extension": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;x\nabc\r\nabcde\r\n0\r\n\r\n",
        400,
    ),
    "a blank before a chunk size": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n 5\r\nabcde\r\n0\r\n\r\n",
        400,
    ),
    "a length with zeros before it": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 002\r\n\r\nab", 400),
    "another expectation": (b"POST / HTTP/1.1\r\nHost: x\r\nExpect: gold\r\n\r\n", 417),
    "a head without end": (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 40_000, 431),
    "too many headers": (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_request_is_refused_once_and_the_connection_closed(
    name: str, http: Callable[..., HttpServer]
) -> None:
    sent, expected = REFUSED[name]
    server = http(max_body=1 << 20)
    answer = talk(server, sent, whole=False)
    status, headers, body = split(answer)
    assert status == expected
    assert headers["Connection"] == "close"
    assert json.loads(body)["error"]
    assert answer.count(b"Content-Length: ") == 1
    assert split(talk(server, b"GET / HTTP/1.1\r\n" + CLOSE + b"\r\n"))[0] == 200


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_silent_client_is_disconnected(sent: bytes, http: Callable[..., HttpServer]) -> None:
    server = http(read_s=0.1, idle_s=0.1)
    answer = talk(server, sent, whole=False)  # returns only because the server ends the connection
    assert not answer or split(answer)[0] == 408


def test_a_client_that_does_not_read_its_response_is_disconnected(http: Callable[..., HttpServer]) -> None:
    server = http(read_s=0.2)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1) == b"H"
        eventually(lambda: not server.connections)


def test_slow_clients_do_not_keep_others_waiting(http: Callable[..., HttpServer]) -> None:
    server = http()
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(50)]
    for connection in slow:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Le")
    assert split(talk(server, b"GET / HTTP/1.1\r\n" + CLOSE + b"\r\n"))[0] == 200
    for connection in slow:
        connection.close()


def test_a_client_past_the_limit_of_connections_gets_503(http: Callable[..., HttpServer]) -> None:
    server = http(max_connections=1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as first:
        first.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert first.recv(1000).startswith(b"HTTP/1.1 200")
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as second:
            assert split(received(second))[0] == 503


def test_a_handler_that_fails_answers_500_and_no_more(
    http: Callable[..., HttpServer], caplog: pytest.LogCaptureFixture
) -> None:
    status, _, body = split(talk(http(), b"GET /fail HTTP/1.1\r\n" + CLOSE + b"\r\n"))
    assert status == 500
    assert b"oops" not in body
    assert "oops" in caplog.text


def test_requests_sent_ahead_are_held_back_while_one_is_answered(http: Callable[..., HttpServer], echo: Echo) -> None:
    server = http()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        assert echo.arrived.wait(60)
        ahead = b"GET /n HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 1000 + b"\r\n\r\n"
        sender = threading.Thread(target=connection.sendall, args=(ahead * 200,))
        sender.start()
        echo.held.set()
        seen = b""
        while seen.count(b'"/n"') < 200:
            part = connection.recv(1 << 16)
            assert part
            seen += part
        sender.join(60)


def test_a_stopping_server_answers_its_current_requests(http: Callable[..., HttpServer], echo: Echo) -> None:
    server = HttpServer(echo, error_body, "127.0.0.1", 0, HttpLimits())
    idle = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        assert echo.arrived.wait(60)
        closing = threading.Thread(target=server.close, args=(60.0,))
        closing.start()
        assert idle.recv(1) == b""  # an idle client is disconnected immediately
        echo.held.set()
        assert split(received(connection))[0] == 200
    closing.join(60)
    idle.close()
    assert not closing.is_alive()


def test_a_port_in_use_is_reported(http: Callable[..., HttpServer], echo: Echo) -> None:
    with pytest.raises(ClusterError, match="give a free port"):
        HttpServer(echo, error_body, "127.0.0.1", http().port, HttpLimits())


@PYTHON_LOOP
def test_answers_of_other_threads_all_arrive_in_the_servers_thread(http: Callable[..., HttpServer]) -> None:
    server = http()
    names: list[str] = []
    done = threading.Event()

    def note() -> None:
        names.append(threading.current_thread().name)
        if len(names) == 2000:
            done.set()

    def send() -> None:
        for _ in range(500):
            server.run_in_loop(note)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done.wait(60)
    assert set(names) == {"rest"}


class Collector:
    """Handler that keeps requests until the test replies; ``/now`` is answered immediately."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Request, Reply]] = []

    def __call__(self, request: Request, reply: Reply) -> None:
        if request.path == "/now":
            reply(200, b"now")
        else:
            self.waiting.append((request, reply))

    def wait_for(self, count: int) -> None:
        eventually(lambda: len(self.waiting) >= count)


def connect(server: HttpServer, path: bytes = b"/", timeout_s: float = 20.0) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s)
    connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    return connection


def round_trip(server: HttpServer) -> None:
    """Return after the loop has seen everything that clients did before."""
    with connect(server, b"/now") as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_client_that_leaves_before_its_response_does_not_take_the_responses_of_others_along() -> None:
    collector = Collector()
    server = HttpServer(collector, error_body, "127.0.0.1", 0, HttpLimits())
    clients = []
    for number in range(7):  # one by one, so that the order of replies is known
        clients.append(connect(server))
        collector.wait_for(number + 1)
    clients[0].close()
    round_trip(server)
    blocked, released = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        assert released.wait(60)

    server.run_in_loop(block)
    assert blocked.wait(60)
    for _, reply in collector.waiting:
        reply(200, b"score")
    released.set()
    for client in clients[1:]:
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.close()
    server.close()


def test_a_client_that_leaves_a_slow_request_does_not_switch_timeouts_off() -> None:
    server = HttpServer(Collector(), error_body, "127.0.0.1", 0, HttpLimits(answer_s=0.2, idle_s=0.4, read_s=0.4))
    connect(server).close()
    round_trip(server)
    eventually(lambda: not server.connections, 20)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as idle:
        assert idle.recv(1) == b"", "the idle connection must be closed"
    server.close()


def test_a_client_that_pipelines_without_reading_is_not_answered_further(
    http: Callable[..., HttpServer], echo: Echo
) -> None:
    server = http(read_s=0.5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        eventually(lambda: len(echo.requests) > 0)
        assert split(talk(server, b"GET / HTTP/1.1\r\n" + CLOSE + b"\r\n"))[0] == 200
        eventually(lambda: not server.connections)
    assert len([request for request in echo.requests if request.path == "/large"]) <= 2


@PYTHON_LOOP
def test_pipelined_requests_leave_turns_to_other_connections(http: Callable[..., HttpServer], echo: Echo) -> None:
    server = http()
    blocked, released = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        assert released.wait(60)

    with connect(server) as greedy, connect(server) as modest:
        assert greedy.recv(1000)
        assert modest.recv(1000)
        server.run_in_loop(block)
        assert blocked.wait(60)
        before = len(echo.requests)
        greedy.sendall(b"GET /g HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        modest.sendall(b"GET /m HTTP/1.1\r\nHost: x\r\n\r\n")
        released.set()
        eventually(lambda: any(request.path == "/m" for request in echo.requests))
        eventually(lambda: len(echo.requests) == before + 51)
    order = [request.path for request in echo.requests[before:]]
    assert order.index("/m") < 10, order


def test_a_request_is_refused_by_its_head_before_its_body_arrives(echo: Echo) -> None:
    def admit(method: str, path: str, headers: Mapping[str, str]) -> None:
        if headers.get("authorization") != "Bearer t":
            raise HttpError(401, "no token", {"WWW-Authenticate": "Bearer"})

    server = HttpServer(echo, error_body, "127.0.0.1", 0, HttpLimits(read_s=60), admit=admit)
    sent = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n"
    status, headers, _ = split(talk(server, sent, whole=False))
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert not echo.requests
    server.close()


def test_bodies_of_all_clients_together_are_bounded(http: Callable[..., HttpServer]) -> None:
    server = http(max_body=1 << 20, max_pending=1 << 20)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 700000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as first:
        first.sendall(head + b"x" * 1000)
        eventually(lambda: server.pending_bytes == 700_000)
        assert split(talk(server, head, whole=False))[0] == 503
        assert server.pending_bytes == 700_000
    eventually(lambda: server.pending_bytes == 0)
    assert split(talk(server, head + b"x" * 700_000))[0] == 200
    assert server.pending_bytes == 0


@NATIVE
def test_a_body_counts_until_its_request_is_answered_also_without_its_client(
    http: Callable[..., HttpServer], echo: Echo
) -> None:
    server = http(max_body=1 << 20, max_pending=1 << 20)
    head = b" HTTP/1.1\r\nHost: x\r\nContent-Length: 700000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as left:
        left.sendall(b"POST /held" + head + b"x" * 700_000)
        assert echo.arrived.wait(60)
        left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the client resets
    eventually(lambda: not server.connections)
    assert server.pending_bytes == 700_000, "the request still has its body"
    assert split(talk(server, b"POST /" + head, whole=False))[0] == 503
    echo.held.set()
    eventually(lambda: server.pending_bytes == 0)


@pytest.mark.parametrize("way", ["keep", "close", "half close", "stop"])
def test_a_client_gets_all_of_a_large_response_that_it_reads_slowly(way: str) -> None:
    size, per_s = 32 << 20, 10 << 20
    server = NativeHttp(lambda request, reply: reply(200, bytes(size), "text/plain"), HttpLimits(read_s=1.0))
    stopping = threading.Thread(target=server.close, args=(60.0,))
    try:
        with socket.socket() as connection:
            connection.settimeout(60)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(b"GET / HTTP/1.1\r\n" + (CLOSE if way == "close" else b"Host: x\r\n") + b"\r\n")
            head, _, rest = connection.recv(1 << 16).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            if way == "half close":
                connection.shutdown(socket.SHUT_WR)
            elif way == "stop":
                stopping.start()
            got, begun_s = len(rest), time.monotonic()
            while got < size and (part := connection.recv(1 << 16)):
                got += len(part)
                time.sleep(max(0.0, got / per_s - (time.monotonic() - begun_s)))
            assert got == size
    finally:
        if way == "stop":
            stopping.join(60)
        else:
            server.close()


def test_sockets_in_a_tls_handshake_count_as_connections_and_time_out(echo: Echo, authority: Authority) -> None:
    named = authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(named.cert_file, named.key_file)
    server = HttpServer(echo, error_body, "127.0.0.1", 0, HttpLimits(max_connections=4, read_s=1.0), context)
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(12)]
    closed = [connection for connection in silent[4:] if connection.recv(1) == b""]
    assert len(closed) == 8, "sockets above the limit must be closed immediately"
    assert all(connection.recv(1) == b"" for connection in silent[:4]), "a handshake must time out"
    eventually(lambda: server.handshakes == 0)
    client = ssl.create_default_context(cafile=authority.ca_file)
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    with client.wrap_socket(plain, server_hostname="localhost") as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    for connection in silent:
        connection.close()
    server.close()


def test_tiny_chunks_take_no_more_memory_than_their_content() -> None:
    sent = b"2\r\nab\r\n" * 200_000
    chunks = _Chunks(1 << 20)
    buffer = bytearray()
    tracemalloc.start()
    for at in range(0, len(sent), 1 << 16):
        buffer += sent[at : at + (1 << 16)]
        assert not chunks.take(buffer)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(chunks.body) == 400_000
    assert peak < 2_000_000


def test_a_draining_server_closes_a_connection_after_its_response(echo: Echo) -> None:
    server = HttpServer(echo, error_body, "127.0.0.1", 0, HttpLimits())
    with connect(server, b"/held") as connection:
        assert echo.arrived.wait(60)
        closing = threading.Thread(target=server.close, args=(60.0,))
        closing.start()
        eventually(lambda: server.is_draining)
        begun_s = time.monotonic()
        echo.held.set()
        status, headers, _ = split(received(connection))
        assert (status, headers.get("Connection")) == (200, "close")
    closing.join(60)
    assert not closing.is_alive()
    assert time.monotonic() - begun_s < 30, "the drain must not wait for a keep-alive client"

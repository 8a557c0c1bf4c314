"""HTTP/2 on the wire of the native server: invalid frames, and bounds on slow, greedy and resetting clients."""

from __future__ import annotations

import http.client
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from monolith import _native
from monolith.serving import ModelServer, ServingConfig, servable_loader
from monolith.serving.api import messages
from monolith.testing.eventually import eventually
from monolith.testing.processes.certificates import Authority
from raw_http2 import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    HEALTH,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawHttp2,
    frame,
    headers,
    message,
)

UNKNOWN = 0x20
"""A kind of frame that no server knows."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with _server(read_timeout_s=30.0, max_message_bytes=1 << 20) as started:
        yield started


def _server(**settings: Any) -> ModelServer:
    return ModelServer(ServingConfig(port=0, rest_port=None, native="on", **settings), servable_loader())


def assert_serves(server: ModelServer) -> None:
    """Check that another client is answered."""
    with grpc.insecure_channel(server.address) as channel:
        answer = channel.unary_unary(HEALTH)(b"", timeout=60)
    assert messages.HealthCheckResponse.FromString(answer).status in (1, 2)


def test_a_call_of_raw_frames_is_answered_with_trailers(server: ModelServer) -> None:
    with RawHttp2(server) as client:
        client.send(frame(HEADERS, END_HEADERS, 1, headers()), frame(DATA, END_STREAM, 1, message(b"")))
        kinds = []
        for kind, flags, stream, _ in client.frames():
            if stream == 1:
                kinds.append(kind)
                if flags & END_STREAM:
                    break
        assert kinds == [HEADERS, DATA, HEADERS]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        PREFACE + b"\xff" * 64,
        PREFACE + frame(SETTINGS, 0, 0) + frame(DATA, 0, 0, b"abc"),
        PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, 0, 0, b"12345"),
        PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 2, headers()),
        PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, b"\xff" * 20),
        PREFACE + frame(SETTINGS, 0, 0) + frame(CONTINUATION, END_HEADERS, 1, headers()),
        PREFACE + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\1" * 1000),
    ],
    ids=["http1", "garbage", "data of no stream", "cut settings", "even stream", "hpack", "continuation", "settings"],
)
def test_a_client_that_breaks_the_protocol_loses_its_connection_only(sent: bytes, server: ModelServer) -> None:
    with RawHttp2(server, sent) as client:
        assert all(kind in (SETTINGS, GOAWAY, 8) for kind, *_ in client.frames())
    assert_serves(server)


def test_a_client_that_resets_its_streams_again_and_again_is_disconnected(server: ModelServer) -> None:
    with RawHttp2(server) as client:
        for stream in range(1, 2001, 2):
            try:
                client.send(
                    frame(HEADERS, END_HEADERS, stream, headers()),
                    frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)),
                )
            except OSError:  # the server has closed the connection
                break
        last = [payload for kind, _, _, payload in client.frames() if kind == GOAWAY]
        if last:  # a reset of the connection may overtake the frame
            assert struct.unpack(">I", last[-1][4:8])[0] == ENHANCE_YOUR_CALM
    assert_serves(server)


def test_streams_above_the_limit_are_refused(server: ModelServer) -> None:
    with RawHttp2(server) as client:
        client.send(*(frame(HEADERS, END_HEADERS, 2 * number + 1, headers()) for number in range(257)))
        assert client.first(RST_STREAM)[2] == 2 * 256 + 1


def test_headers_above_the_limit_are_refused(server: ModelServer) -> None:
    with RawHttp2(server) as client:
        many = headers(x_long="a" * 8000, y_long="b" * 8000, z_long="c" * 8000)
        client.send(frame(HEADERS, 0, 1, many[:16000]), frame(CONTINUATION, END_HEADERS, 1, many[16000:]))
        assert client.first(RST_STREAM, GOAWAY, HEADERS)[0] in (RST_STREAM, GOAWAY)
    assert_serves(server)


@pytest.mark.parametrize(
    "sent",
    [message(b"")[:3], b"\2" + struct.pack(">I", 0), message(b"abc") + b"d", b"\0" + struct.pack(">I", 1 << 30)],
    ids=["cut", "flag", "long", "large"],
)
def test_a_message_that_does_not_fit_its_frame_ends_the_call(sent: bytes, server: ModelServer) -> None:
    with RawHttp2(server) as client:
        client.send(frame(HEADERS, END_HEADERS, 1, headers()), frame(DATA, END_STREAM, 1, sent))
        _, flags, stream, _ = client.first(HEADERS, DATA)
        assert (stream, flags & END_STREAM) == (1, END_STREAM), "an error has trailers only"
        client.send(frame(HEADERS, END_HEADERS, 3, headers()), frame(DATA, END_STREAM, 3, message(b"")))
        assert client.first(DATA)[2] == 3


def test_another_content_type_is_refused(server: ModelServer) -> None:
    with RawHttp2(server) as client:
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, headers(content_type="text/plain")))
        _, flags, _, _ = client.first(HEADERS)
        assert flags & END_STREAM


def test_silent_and_slow_clients_are_disconnected() -> None:
    with _server(read_timeout_s=0.2) as server:
        with RawHttp2(server, b"") as silent:
            assert {kind for kind, *_ in silent.frames()} <= {SETTINGS}  # returns only because the server closes
        with RawHttp2(server) as slow:
            slow.send(frame(HEADERS, END_HEADERS, 1, headers()), frame(DATA, 0, 1, b"\0"))
            _, _, stream, payload = slow.first(RST_STREAM)
            assert (stream, struct.unpack(">I", payload)[0]) == (1, CANCEL)
        front = server._native
        assert front is not None
        assert front._server is not None
        transport = front._server
        eventually(lambda: transport.connections == 0)


def native_server(stack: ExitStack, **settings: Any) -> tuple[_native.ScoreService, _native.ScoreServer]:
    """Start a server with one I/O thread, whose requests no thread takes."""
    service = _native.ScoreService(
        threads=1, max_rows=1, wait_s=0.0, max_queued_rows=1, max_queued_bytes=1, bounds_us=[1], max_values=1
    )
    stack.callback(service.close, 0.0)
    bounds = {"max_body": 1 << 20, "max_pending": 1 << 20, "max_connections": 10}
    times = {"idle_s": 60.0, "read_s": 30.0, "answer_s": 30.0}
    names = ("token", "admin_token", "cert_file", "key_file", "ca_file")
    common: dict[str, Any] = {**bounds, **times, **dict.fromkeys(names, ""), **settings}
    server = _native.ScoreServer(service, host="127.0.0.1", rest_port=0, grpc_port=0, io_threads=1, **common)
    stack.callback(server.close, 0.0)
    return service, server


def test_a_call_without_a_deadline_that_no_thread_takes_ends() -> None:
    with ExitStack() as stack:
        service, server = native_server(stack, answer_s=0.1, read_s=0.1)
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
        with pytest.raises(grpc.RpcError) as late:
            channel.unary_unary(HEALTH)(b"", timeout=30)
        assert "the request timed out" in (late.value.details() or "")
        call = service.next_call(10.0)
        assert call is not None
        assert not call.is_wanted


def test_a_client_gets_all_of_a_large_answer_that_it_reads_slowly() -> None:
    size, per_s, got = 1 << 20, 256 << 10, 0
    with ExitStack() as stack:
        service, server = native_server(stack, read_s=1.0)
        place = cast(Any, SimpleNamespace(address=f"127.0.0.1:{server.grpc_port}"))
        client = stack.enter_context(RawHttp2(place))
        client.send(frame(HEADERS, END_HEADERS, 1, headers()), frame(DATA, END_STREAM, 1, message(b"")))
        call = service.next_call(60.0)
        assert call is not None
        call.answer(200, bytes(size))
        for kind, flags, _, payload in client.frames():
            if kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
                break
            if kind == DATA and payload:
                got += len(payload)
                time.sleep(len(payload) / per_s)
                more = struct.pack(">I", len(payload))
                client.send(frame(WINDOW_UPDATE, 0, 0, more), frame(WINDOW_UPDATE, 0, 1, more))
    assert got == len(message(bytes(size)))


def test_a_client_that_floods_over_tls_leaves_turns_to_others(authority: Authority) -> None:
    named = authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")
    context = ssl.create_default_context(cafile=authority.ca_file)
    ignored = frame(UNKNOWN, 0, 0) * 100_000
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(received, sent, server_hostname="localhost")
    with ExitStack() as stack:
        files = {"cert_file": str(named.cert_file), "key_file": str(named.key_file)}
        service, server = native_server(stack, **files)
        raw = stack.enter_context(socket.create_connection(("127.0.0.1", server.grpc_port), timeout=60))
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(sent.read())
                received.write(raw.recv(1 << 16))
        client.write(PREFACE + frame(SETTINGS, 0, 0))
        flood = bytearray()
        for _ in range(200):
            client.write(ignored)
            flood += sent.read()  # encrypted before, so that the client sends faster than the server reads
        sender = threading.Thread(target=raw.sendall, args=(flood,))
        other = http.client.HTTPSConnection("127.0.0.1", server.rest_port, context=context, timeout=60)
        stack.callback(other.close)
        other.connect()
        sender.start()
        raw.settimeout(60)
        other.request("GET", "/")
        call = service.next_call(60.0)
        assert sender.is_alive(), "the other client waited for the end of the flood"
        assert call is not None
        call.answer(200, b"", "text/plain")
        assert other.getresponse().status == 200
        sender.join(60)


def test_a_token_is_checked_before_the_message(tmp_path: Path) -> None:
    from monolith.rpc.security import Security

    with _server(security=Security(token="secret")) as server:
        with RawHttp2(server) as client:
            client.send(frame(HEADERS, END_HEADERS, 1, headers()))  # no message follows
            _, flags, stream, _ = client.first(HEADERS)
            assert (stream, flags & END_STREAM) == (1, END_STREAM)
        with grpc.insecure_channel(server.address) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(HEALTH)(b"", timeout=60)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
            metadata = (("authorization", "Bearer secret"),)
            assert channel.unary_unary(HEALTH)(b"", timeout=60, metadata=metadata)

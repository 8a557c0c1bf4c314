"""HTTP/2 on the wire of the native server: invalid frames, and bounds on slow, greedy and resetting clients."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from monolith.serving import ModelServer, ServingConfig, servable_loader
from monolith.serving.api import messages
from monolith.testing.eventually import eventually
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
    RawHttp2,
    frame,
    headers,
    message,
)


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

"""Conformance of the native server with RFC 9113 (HTTP/2) and RFC 7541 (HPACK), by raw frames.

Each case names its section. A connection error is a GOAWAY with the right code before the end of the connection; a
stream error is an RST_STREAM, or a connection error with the same code. After every case another client is answered.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pytest

from monolith.serving import ModelServer, ServingConfig, servable_loader
from raw_http2 import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    HEALTH,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawHttp2,
    frame,
    headers,
    literal,
    message,
)

PROTOCOL, FLOW_CONTROL, STREAM_CLOSED, FRAME_SIZE, COMPRESSION = 1, 3, 5, 6, 9
LARGEST = (1 << 31) - 1
START = PREFACE + frame(SETTINGS, 0, 0)
OPEN = frame(HEADERS, END_HEADERS, 1, headers())
BODY = frame(DATA, END_STREAM, 1, message(b""))
NEXT = frame(HEADERS, END_HEADERS, 3, headers()) + frame(DATA, END_STREAM, 3, message(b""))


def setting(number: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HI", number, value))


def word(value: int) -> bytes:
    return struct.pack(">I", value)


def call(block: bytes, *more: bytes) -> bytes:
    """Return a call with these headers."""
    return b"".join((frame(HEADERS, END_HEADERS, 1, block), *more, BODY))


def without(name: str) -> bytes:
    pairs = {":method": "POST", ":scheme": "http", ":path": HEALTH, "content-type": "application/grpc"}
    return b"".join(literal(each, value) for each, value in pairs.items() if each != name)


CONNECTION_ERRORS = {
    "3.4 preface of another protocol": ((PROTOCOL,), b"GET / HTTP/1.1\r\n\r\n"),
    "4.2 headers above the largest frame": ((FRAME_SIZE,), frame(HEADERS, END_HEADERS, 1, bytes((1 << 24) - 1))),
    "4.3 invalid header block": ((COMPRESSION,), frame(HEADERS, END_HEADERS, 1, b"\xff" * 20)),
    "4.3 priority inside a header block": (
        (PROTOCOL,),
        frame(HEADERS, 0, 1, headers()) + frame(PRIORITY, 0, 1, word(0) + b"\1"),
    ),
    "4.3 headers of another stream inside a header block": ((PROTOCOL,), frame(HEADERS, 0, 1, headers()) + NEXT),
    "5.1 idle: data": ((PROTOCOL, STREAM_CLOSED), frame(DATA, END_STREAM, 1, b"")),
    "5.1 idle: reset": ((PROTOCOL,), frame(RST_STREAM, 0, 1, word(CANCEL))),
    "5.1 idle: window update": ((PROTOCOL,), frame(WINDOW_UPDATE, 0, 1, word(100))),
    "5.1 idle: continuation": ((PROTOCOL,), frame(CONTINUATION, END_HEADERS, 1, headers())),
    "5.1.1 even stream": ((PROTOCOL,), frame(HEADERS, END_HEADERS, 2, headers())),
    "5.5 unknown frame inside a header block": (
        (PROTOCOL,),
        frame(HEADERS, 0, 1, headers()) + frame(22, 0, 0, b"x"),
    ),
    "6.1 data of stream 0": ((PROTOCOL,), frame(DATA, 0, 0, b"x")),
    "6.1 padding longer than the frame": ((PROTOCOL,), OPEN + frame(DATA, PADDED | END_STREAM, 1, b"\x09ab")),
    "6.2 headers of stream 0": ((PROTOCOL,), frame(HEADERS, END_HEADERS, 0, headers())),
    "6.2 padding longer than the frame": ((PROTOCOL,), frame(HEADERS, PADDED | END_HEADERS, 1, b"\xffab")),
    "6.3 priority of stream 0": ((PROTOCOL,), frame(PRIORITY, 0, 0, word(0) + b"\1")),
    "6.4 reset of stream 0": ((PROTOCOL,), frame(RST_STREAM, 0, 0, word(CANCEL))),
    "6.4 reset of another length": ((FRAME_SIZE,), OPEN + frame(RST_STREAM, 0, 1, b"abc")),
    "6.5 acknowledgement with a payload": ((FRAME_SIZE,), frame(SETTINGS, ACK, 0, b"\0")),
    "6.5 settings of a stream": ((PROTOCOL,), frame(SETTINGS, 0, 1, b"")),
    "6.5 settings of another length": ((FRAME_SIZE,), frame(SETTINGS, 0, 0, b"\0\3\0")),
    "6.5.2 enable push": ((PROTOCOL,), setting(2, 2)),
    "6.5.2 initial window": ((FLOW_CONTROL,), setting(4, 1 << 31)),
    "6.5.2 largest frame too small": ((PROTOCOL,), setting(5, 16383)),
    "6.5.2 largest frame too large": ((PROTOCOL,), setting(5, 1 << 24)),
    "6.6 push promise of a client": ((PROTOCOL,), frame(PUSH_PROMISE, END_HEADERS, 1, word(2) + headers())),
    "6.7 ping of a stream": ((PROTOCOL,), frame(PING, 0, 1, bytes(8))),
    "6.7 ping of another length": ((FRAME_SIZE,), frame(PING, 0, 0, bytes(6))),
    "6.8 goaway of a stream": ((PROTOCOL,), frame(GOAWAY, 0, 1, bytes(8))),
    "6.9 window update of 0": ((PROTOCOL,), frame(WINDOW_UPDATE, 0, 0, word(0))),
    "6.9 window update of another length": ((FRAME_SIZE,), frame(WINDOW_UPDATE, 0, 0, b"abc")),
    "6.9.1 window above its largest size": ((FLOW_CONTROL,), frame(WINDOW_UPDATE, 0, 0, word(LARGEST)) * 2),
    "6.10 continuation of stream 0": ((PROTOCOL,), OPEN + frame(CONTINUATION, END_HEADERS, 0, b"")),
    "6.10 continuation after the end of headers": ((PROTOCOL,), OPEN + frame(CONTINUATION, END_HEADERS, 1, b"")),
    "6.10 data inside a header block": ((PROTOCOL,), frame(HEADERS, 0, 1, headers()) + BODY),
    "HPACK 2.3.3 index past the tables": ((COMPRESSION,), frame(HEADERS, END_HEADERS, 1, b"\xff\x80\x01")),
    "HPACK 4.2 table size after a header": ((COMPRESSION,), frame(HEADERS, END_HEADERS, 1, headers() + b"\x20")),
    "HPACK 5.2 padding of a Huffman text": ((COMPRESSION,), frame(HEADERS, END_HEADERS, 1, b"\0\x82\x1f\xff\1x")),
    "HPACK 5.2 end of string in a Huffman text": (
        (COMPRESSION,),
        frame(HEADERS, END_HEADERS, 1, b"\0\x84\xff\xff\xff\xff\1x"),
    ),
    "HPACK 6.1 index 0": ((COMPRESSION,), frame(HEADERS, END_HEADERS, 1, b"\x80")),
    "HPACK 6.3 table above the setting": ((COMPRESSION,), frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\xff\x03")),
}
STREAM_ERRORS = {
    "5.1 half-closed: data": ((STREAM_CLOSED,), OPEN + BODY + BODY),
    "5.1 half-closed: headers": ((STREAM_CLOSED,), OPEN + BODY + OPEN),
    "5.1 closed by a reset: headers": ((STREAM_CLOSED,), OPEN + frame(RST_STREAM, 0, 1, word(CANCEL)) + OPEN),
    "5.3.1 stream that depends on itself": (
        (PROTOCOL,),
        frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 1, word(1) + b"\xff" + headers()),
    ),
    "6.3 priority of another length": ((FRAME_SIZE,), OPEN + frame(PRIORITY, 0, 1, b"abcd")),
    "6.9 window update of 0": ((PROTOCOL,), OPEN + frame(WINDOW_UPDATE, 0, 1, word(0))),
    "6.9.1 window above its largest size": (
        (FLOW_CONTROL,),
        OPEN + frame(WINDOW_UPDATE, 0, 1, word((1 << 31) - 1)) * 2,
    ),
    "8.1 second headers without an end": ((PROTOCOL,), OPEN + frame(HEADERS, END_HEADERS, 1, literal("x", "y")) + BODY),
    "8.1 pseudo-header in trailers": (
        (PROTOCOL,),
        OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, literal(":path", "/")),
    ),
    "8.2.1 upper case": ((PROTOCOL,), call(headers() + literal("X-Test", "y"))),
    "8.2.2 connection": ((PROTOCOL,), call(headers() + literal("connection", "keep-alive"))),
    "8.2.2 te of another value": ((PROTOCOL,), call(headers(te="trailers, deflate"))),
    "8.3 unknown pseudo-header": ((PROTOCOL,), call(literal(":test", "y") + headers())),
    "8.3 pseudo-header of an answer": ((PROTOCOL,), call(literal(":status", "200") + headers())),
    "8.3 pseudo-header after another header": ((PROTOCOL,), call(literal("x", "y") + headers())),
    "8.3.1 empty path": ((PROTOCOL,), call(headers(path=""))),
    "8.3.1 no method": ((PROTOCOL,), call(without(":method"))),
    "8.3.1 no scheme": ((PROTOCOL,), call(without(":scheme"))),
    "8.3.1 no path": ((PROTOCOL,), call(without(":path"))),
    "8.3.1 two methods": ((PROTOCOL,), call(literal(":method", "POST") + headers())),
    "8.1.1 content-length above the data": ((PROTOCOL,), call(headers(content_length="6"))),
    "8.1.1 content-length below the data": ((PROTOCOL,), call(headers(content_length="4"))),
}
ANSWERED = {
    "4.1 unknown frame": frame(22, 0, 0, b"abc") + OPEN + BODY,
    "4.1 undefined flags": frame(HEADERS, END_HEADERS | 0x40, 1, headers())
    + frame(DATA, END_STREAM | 0x80, 1, message(b"")),
    "4.1 reserved bit": frame(HEADERS, END_HEADERS, 1 | 1 << 31, headers()) + BODY,
    "5.5 unknown setting": setting(0xFF, 1) + OPEN + BODY,
    "6.1 padding": OPEN + frame(DATA, END_STREAM | PADDED, 1, b"\2" + message(b"") + b"\0\0"),
    "6.2 padding and priority": frame(
        HEADERS, END_HEADERS | PADDED | PRIORITY_FLAG, 1, b"\1" + word(0) + b"\x10" + headers() + b"\0"
    )
    + BODY,
    "6.3 priority of an idle stream": frame(PRIORITY, 0, 5, word(0) + b"\1") + OPEN + BODY,
    "6.10 several continuations": frame(HEADERS, 0, 1, headers()[:9])
    + frame(CONTINUATION, 0, 1, headers()[9:20])
    + frame(CONTINUATION, 0, 1, b"")
    + frame(CONTINUATION, END_HEADERS, 1, headers()[20:])
    + BODY,
    "8.1 trailers": OPEN
    + frame(DATA, 0, 1, message(b""))
    + frame(HEADERS, END_HEADERS | END_STREAM, 1, literal("x", "y")),
    "8.1 data in several frames": OPEN + b"".join(frame(DATA, 0, 1, b"\0") for _ in range(5)) + frame(DATA, 1, 1, b""),
    "8.2.2 te": call(headers(te="trailers")),
    "8.1.1 content-length": call(headers(content_length="5")),
    "HPACK 4.2 table size before a header": call(b"\x20" + headers()),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    config = ServingConfig(port=0, rest_port=None, native="on", read_timeout_s=30.0, max_message_bytes=1 << 20)
    with ModelServer(config, servable_loader()) as started:
        yield started


def code_of(payload: bytes, at: int) -> int:
    return int(struct.unpack(">I", payload[at : at + 4])[0])


def assert_answers(client: RawHttp2, stream: int) -> None:
    """Check that a call gets headers, data and trailers."""
    kinds = []
    for kind, flags, id_, _ in client.frames():
        assert kind not in (GOAWAY, RST_STREAM)
        if id_ == stream:
            kinds.append(kind)
            if flags & END_STREAM:
                break
    assert kinds == [HEADERS, DATA, HEADERS]


def errors_of(client: RawHttp2) -> tuple[list[int], list[int]]:
    """Return the codes of connection errors and of stream errors until the connection ends, or the first error."""
    for kind, _, _, payload in client.frames():
        if kind == GOAWAY:
            return [code_of(payload, 4)], []
        if kind == RST_STREAM:
            return [], [code_of(payload, 0)]
    return [], []


def ends(client: RawHttp2) -> bool:
    """Return True when the server has ended the connection; a timeout raises."""
    for _ in client.frames():
        pass
    return True


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
def test_a_connection_error_ends_the_connection_with_its_code(name: str, server: ModelServer) -> None:
    codes, sent = CONNECTION_ERRORS[name]
    with RawHttp2(server, b"" if name.startswith("3.4") else START) as client:
        try:
            client.send(sent)
        except OSError:  # the server has closed while the client sent
            return
        connection, stream = errors_of(client)
        assert stream == []
        assert set(connection) <= set(codes)  # none where the end of the connection overtakes the frame
        assert ends(client)
    with RawHttp2(server) as other:
        other.send(OPEN, BODY)
        assert_answers(other, 1)


@pytest.mark.parametrize("name", STREAM_ERRORS)
def test_a_stream_error_resets_the_stream_with_its_code(name: str, server: ModelServer) -> None:
    codes, sent = STREAM_ERRORS[name]
    with RawHttp2(server) as client:
        client.send(sent)
        connection, stream = errors_of(client)
        assert (*connection, *stream) != ()
        assert set((*connection, *stream)) <= set(codes)
        if stream:  # other streams of the connection are not affected
            client.send(NEXT)
            assert_answers(client, 3)


@pytest.mark.parametrize("name", ANSWERED)
def test_a_valid_call_of_another_form_is_answered(name: str, server: ModelServer) -> None:
    with RawHttp2(server) as client:
        client.send(ANSWERED[name])
        assert_answers(client, 1)


def test_headers_of_a_stream_below_an_earlier_one_are_ignored(server: ModelServer) -> None:
    """RFC 9113, 5.1.1 asks for a connection error; nghttp2 forgives a client whose trailers cross a reset."""
    with RawHttp2(server) as client:
        client.send(NEXT, OPEN)
        assert_answers(client, 3)
        client.send(frame(PING, 0, 0, b"no call!"))
        assert client.first(HEADERS, DATA, RST_STREAM, GOAWAY, PING)[0] == PING


def test_settings_are_acknowledged_and_pings_are_echoed_once(server: ModelServer) -> None:
    with RawHttp2(server) as client:
        assert client.first(SETTINGS)[1] in (0, ACK)
        client.send(frame(PING, ACK, 0, b"ignored!"), frame(PING, 0x16, 1 << 31, b"12345678"))
        _, flags, stream, payload = client.first(PING)
        assert (flags, stream, payload) == (ACK, 0, b"12345678")
        client.send(setting(3, 10), frame(PING, 0, 0, b"87654321"))
        frames: Sequence[tuple[int, int, int, bytes]] = []
        for each in client.frames():
            frames = [*frames, each]
            if each[0] == PING:
                break
        assert [kind for kind, flags, *_ in frames if kind == SETTINGS and flags == ACK] != []
        assert frames[-1][3] == b"87654321"


def test_a_data_frame_of_16384_bytes_is_accepted_and_one_above_the_setting_is_not(server: ModelServer) -> None:
    with RawHttp2(server) as client:
        largest = 16384
        _, _, _, payload = client.first(SETTINGS)
        for at in range(0, len(payload), 6):
            number, value = struct.unpack(">HI", payload[at : at + 6])
            largest = value if number == 5 else largest
        client.send(OPEN, frame(DATA, END_STREAM, 1, message(bytes(16384 - 5))))
        assert client.first(HEADERS)[2] == 1
        try:
            client.send(
                frame(HEADERS, END_HEADERS, 3, headers()), frame(DATA, END_STREAM, 3, message(bytes(largest - 4)))
            )
            connection, stream = errors_of(client)
            assert set((*connection, *stream)) <= {FRAME_SIZE}
        except OSError:  # the server has closed while the client sent
            pass


def test_data_waits_for_the_window_of_its_stream(server: ModelServer) -> None:
    with RawHttp2(server, PREFACE + setting(4, 1)) as client:
        client.send(OPEN, BODY)
        _, flags, stream, first = client.first(DATA)
        assert (stream, len(first), flags & END_STREAM) == (1, 1, 0)
        client.send(frame(PING, 0, 0, b"no data."))
        assert client.first(DATA, PING)[0] == PING
        client.send(setting(4, 3))  # the settings move the windows of open streams
        assert len(client.first(DATA)[3]) == 2
        client.send(frame(WINDOW_UPDATE, 0, 1, word(1 << 16)))
        assert client.first(DATA)[2] == 1
        assert client.first(HEADERS)[1] & END_STREAM


def test_a_negative_window_is_respected(server: ModelServer) -> None:
    with RawHttp2(server, PREFACE + setting(4, 3)) as client:
        client.send(OPEN, BODY)
        assert len(client.first(DATA)[3]) == 3
        client.send(setting(4, 1), frame(WINDOW_UPDATE, 0, 1, word(2)), frame(PING, 0, 0, b"still no"))
        assert client.first(DATA, PING)[0] == PING
        client.send(frame(WINDOW_UPDATE, 0, 1, word(1)))
        assert len(client.first(DATA)[3]) == 1

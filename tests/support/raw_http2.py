"""A client of HTTP/2 over a raw socket: any frames, valid or not."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from monolith.serving import ModelServer

__all__ = [
    "ACK",
    "CANCEL",
    "CONTINUATION",
    "DATA",
    "END_HEADERS",
    "END_STREAM",
    "ENHANCE_YOUR_CALM",
    "GOAWAY",
    "HEADERS",
    "HEALTH",
    "PADDED",
    "PING",
    "PREFACE",
    "PRIORITY",
    "PRIORITY_FLAG",
    "PUSH_PROMISE",
    "RST_STREAM",
    "RawHttp2",
    "SETTINGS",
    "WINDOW_UPDATE",
    "frame",
    "headers",
    "literal",
    "message",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, PRIORITY_FLAG, ACK = 1, 4, 8, 32, 1
ENHANCE_YOUR_CALM, CANCEL = 11, 8
HEALTH = "/grpc.health.v1.Health/Check"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name: str, value: str) -> bytes:
    """Return a header without compression."""

    def text(part: str) -> bytes:
        size = len(part)
        if size < 127:
            return bytes((size,)) + part.encode()
        rest, head = size - 127, bytearray((127,))
        while rest > 127:
            head.append(rest & 127 | 128)
            rest >>= 7
        return bytes((*head, rest)) + part.encode()

    return b"\0" + text(name) + text(value)


def headers(path: str = HEALTH, **more: str) -> bytes:
    """Return the headers of a call, with further ones; ``_`` in a name stands for ``-``."""
    pairs = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "content-type": "application/grpc",
        "te": "trailers",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return b"".join(literal(name, value) for name, value in pairs.items())


def message(content: bytes) -> bytes:
    """Return a message of gRPC with its prefix."""
    return b"\0" + struct.pack(">I", len(content)) + content


class RawHttp2:
    """A client of HTTP/2 that sends any frames."""

    def __init__(self, server: ModelServer, preface: bytes = PREFACE + frame(SETTINGS, 0, 0)) -> None:
        host, _, port = server.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.socket.sendall(preface)
        self._buffer = b""

    def send(self, *frames: bytes) -> None:
        """Send frames together."""
        self.socket.sendall(b"".join(frames))

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield frames until the server ends the connection."""
        while True:
            while len(self._buffer) >= 9:
                size = int.from_bytes(self._buffer[:3], "big")
                if len(self._buffer) < 9 + size:
                    break
                kind, flags = self._buffer[3], self._buffer[4]
                stream = int.from_bytes(self._buffer[5:9], "big")
                payload, self._buffer = self._buffer[9 : 9 + size], self._buffer[9 + size :]
                yield kind, flags, stream, payload
            try:
                part = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return
            if not part:
                return
            self._buffer += part

    def first(self, *kinds: int) -> tuple[int, int, int, bytes]:
        """Return the first frame of these kinds."""
        return next(each for each in self.frames() if each[0] in kinds)

    def __enter__(self) -> RawHttp2:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

"""The load: a process of its own that keeps connections busy and tells how long every answer took.

Reads one JSON object per line from standard input and writes one per line. Plain sockets and one ``select``: a client
with a library would take more of the machine than some of the servers. HTTP/1.1 is spoken to REST servers, HTTP/2 with
gRPC's framing to ours. Imports nothing but the standard library, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["main", "offer"]

END_S = 20.0
"""How long answers may take after the last request was sent."""


class Broken(Exception):
    """The server did not answer as it should."""


# --- one connection ---


class Connection:
    """One client: sends a request, waits for its answer, and can be given the next."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=END_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.socket.setblocking(False)
        self.due_s = 0.0
        """When its request was to be sent."""
        self.out = b""
        """What the kernel has not taken yet."""
        self.buffer = bytearray()

    def fileno(self) -> int:
        """Return what select watches."""
        return self.socket.fileno()

    def send(self, data: bytes) -> None:
        """Send, or keep what cannot be sent now."""
        self.out = self.out + data if self.out else data
        self.flush()

    def flush(self) -> None:
        """Send what was kept."""
        with contextlib.suppress(BlockingIOError):
            self.out = self.out[self.socket.send(self.out) :]

    def receive(self) -> None:
        """Take in what has come."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise Broken("the server closed a connection")
        self.buffer += data

    def ask(self, request: bytes) -> None:
        """Send one request."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Read, and say whether the answer is here."""
        raise NotImplementedError


class HttpConnection(Connection):
    """HTTP/1.1 with keep-alive."""

    def __init__(self, host: str, port: int, path: str, content_type: str) -> None:
        super().__init__(host, port)
        self._head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: {content_type}\r\n".encode()

    def ask(self, request: bytes) -> None:
        self.send(self._head + b"Content-Length: %d\r\n\r\n" % len(request) + request)

    def answers(self) -> bool:
        self.receive()
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self.buffer[:end]).lower()
        if not head.startswith(b"http/1.1 200"):
            raise Broken(bytes(self.buffer[:300]).decode("latin-1"))
        size = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        if len(self.buffer) < end + 4 + size:
            return False
        self.buffer.clear()
        return True


_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_FRAME = 16_384
_WINDOW = (1 << 31) - 1


class GrpcConnection(Connection):
    """As much of HTTP/2 as one call at a time needs."""

    def __init__(self, host: str, port: int, path: str) -> None:
        super().__init__(host, port)
        self._headers = b"\x83\x86" + b"".join(  # :method POST and :scheme http are in HPACK's own table
            name + _text(value)
            for name, value in (
                (b"\x04", path),
                (b"\x01", f"{host}:{port}"),
                (b"\x0f\x10", "application/grpc"),
                (b"\x00" + _text("te"), "trailers"),
            )
        )
        self._stream = -1
        self._window = 65_535
        """Bytes that the server takes on this connection."""
        self._waiting = b""
        self._has_data = False
        settings = struct.pack("!HI", 4, _WINDOW)
        widen = struct.pack("!I", _WINDOW - 65_535)
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, settings))
        self.send(_frame(_WINDOW_UPDATE, 0, 0, widen))

    def ask(self, request: bytes) -> None:
        self._stream += 2
        self._has_data = False
        message = b"\0" + struct.pack("!I", len(request)) + request
        if len(message) > 65_535:
            raise Broken(f"a request of {len(message)} bytes does not fit the window of a new stream")
        self._waiting = message
        self.send(_frame(_HEADERS, _END_HEADERS, self._stream, self._headers))
        self._send_waiting()

    def _send_waiting(self) -> None:
        message = self._waiting
        if not message or len(message) > self._window:
            return
        self._waiting = b""
        self._window -= len(message)
        places = range(0, len(message), _FRAME)
        self.send(
            b"".join(
                _frame(_DATA, _END_STREAM if at == places[-1] else 0, self._stream, message[at : at + _FRAME])
                for at in places
            )
        )

    def answers(self) -> bool:
        self.receive()
        is_done = False
        for kind, flags, stream, body in self._frames():
            if kind == _DATA:
                self._has_data = self._has_data or len(body) > 5
            elif kind == _WINDOW_UPDATE and stream == 0:
                self._window += struct.unpack("!I", body)[0]
                self._send_waiting()
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                self.send(_frame(kind, _ACK, 0, body if kind == _PING else b""))
            elif kind in (_RST_STREAM, _GOAWAY):
                raise Broken(f"the server ended a call or a connection: {body[8:]!r}")
            if stream == self._stream and kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                if not self._has_data:  # a failed call has trailers only
                    raise Broken(f"a call failed: {body!r}")
                is_done = True
        return is_done

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        buffer, at = self.buffer, 0
        while len(buffer) - at >= 9:
            size = int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) - at < 9 + size:
                break
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            yield buffer[at + 3], buffer[at + 4], stream, bytes(buffer[at + 9 : at + 9 + size])
            at += 9 + size
        del buffer[:at]


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _text(value: str) -> bytes:
    assert len(value) < 127
    return bytes((len(value),)) + value.encode()


# --- all of them ---


def offer(
    connections: Sequence[Connection], requests: Sequence[bytes], seconds: float, settle_s: float, rate: float | None
) -> dict[str, Any]:
    """Keep the connections busy and return how it went.

    Args:
        connections: Clients that wait for nothing.
        requests: Sent in turn.
        seconds: How long answers are counted.
        settle_s: How long before that they are not.
        rate: Requests a second, whether or not earlier ones were answered; the wait of one counts from when it was
            due. None = every client sends its next as soon as it has an answer.

    Returns:
        ``per_s``, ``waits_ms`` in the order of the answers, and ``at_s`` when each came, from the begin.
    """
    now = time.perf_counter
    idle = deque(connections)
    busy: dict[Connection, None] = {}
    begin_s = now()
    end_s = begin_s + settle_s + seconds
    sent, waits, moments = 0, [], []
    while True:
        now_s = now()
        due_s = now_s if rate is None else begin_s + sent / rate
        while idle and due_s <= now_s < end_s:
            connection = idle.popleft()
            connection.due_s = due_s
            connection.ask(requests[sent % len(requests)])
            busy[connection] = None
            sent += 1
            now_s = now()
            due_s = now_s if rate is None else begin_s + sent / rate
        if now_s >= end_s and not busy:
            break
        if now_s > end_s + END_S:
            raise Broken(f"{len(busy)} answers did not come")
        pause_s = END_S if now_s >= end_s else (min(due_s, end_s) - now_s if idle else end_s - now_s)
        stuck = [connection for connection in busy if connection.out]
        readable, writable, _ = select.select(list(busy), stuck, [], max(0.0, pause_s))
        for connection in writable:
            connection.flush()
        for connection in readable:
            if connection.answers():
                answered_s = now()
                waits.append(1e3 * (answered_s - connection.due_s))
                moments.append(answered_s - begin_s)
                del busy[connection]
                idle.append(connection)
    counted = [place for place, at_s in enumerate(moments) if settle_s <= at_s < settle_s + seconds]
    return {
        "per_s": len(counted) / seconds,
        "waits_ms": [round(waits[place], 4) for place in counted],
        "at_s": [round(moments[place], 4) for place in counted],
        "begin_s": time.time() - (now() - begin_s),
    }


def _connect(order: dict[str, Any]) -> Iterator[Connection]:
    for _ in range(order["clients"]):
        if order["protocol"] == "grpc":
            yield GrpcConnection(order["host"], order["port"], order["path"])
        else:
            yield HttpConnection(order["host"], order["port"], order["path"], order["content_type"])


def _requests(path: str) -> list[bytes]:
    data, at, found = Path(path).read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def main() -> None:
    """Do what is ordered until the input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        connections: list[Connection] = []
        try:
            connections.extend(_connect(order))
            requests = _requests(order["requests"])
            answer = offer(connections, requests, order["seconds"], order["settle_s"], order.get("rate"))
        except (Broken, OSError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        for connection in connections:
            connection.socket.close()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

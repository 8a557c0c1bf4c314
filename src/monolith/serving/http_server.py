"""A small HTTP/1.1 server on asyncio, for short requests and short answers: what REST is served with.

Everything a client can hold is bounded: connections, the head, the body, and the time for each of silence, sending and
reading. A request that two servers could read differently (two lengths, folded headers, a length beside chunks) is
refused. Requests of one connection are answered one after the other. What a path means is not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import ssl
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from monolith.core.errors import ClusterError

__all__ = ["HttpLimits", "HttpServer", "Reply", "Request"]

logger = logging.getLogger(__name__)

_MAX_HEAD = 32 << 10
_MAX_HEADERS = 100
_MAX_CHUNK_LINE = 256
_SLOWEST_BYTES_PER_S = 64 << 10
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(rb"/[\x21-\x7e]*")
_HEX = re.compile(rb"[0-9A-Fa-f]{1,8}")
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    411: "Length Required",
    412: "Precondition Failed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    499: "Client Closed Request",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What a client may take."""

    max_body: int = 64 << 20
    max_connections: int = 1024
    idle_s: float = 60.0
    """Between two requests."""
    read_s: float = 10.0
    """From the first byte of a request to its last, plus a second for every 64 KiB; and for reading an answer."""
    answer_s: float = 60.0
    """For who answers; after that the client is told that it took too long."""


class Request:
    """One request, whole."""

    __slots__ = ("body", "headers", "is_wanted", "method", "path")

    def __init__(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, is_wanted: Callable[[], bool]
    ) -> None:
        self.method = method
        self.path = path
        """Without the query."""
        self.headers = headers
        """By name in lower case."""
        self.body = body
        self.is_wanted = is_wanted
        """Says whether the client is still there."""


Reply = Callable[..., None]
"""``reply(status, body, content_type="application/json", headers={})``, once, from any thread."""
Handler = Callable[[Request, Reply], None]
ErrorBody = Callable[[str], bytes]


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class HttpServer:
    """Serves until it is closed; a thread of its own does all of it.

    Args:
        handler: Answers requests, in the server's thread; it must not block.
        error_body: Makes the body of an answer to what is no request.
        host: Interface to listen on.
        port: Port; 0 lets the system choose.
        limits: What a client may take.
        tls: For https.

    Raises:
        ClusterError: The port is taken, or the interface is not this machine's.
    """

    def __init__(
        self,
        handler: Handler,
        error_body: ErrorBody,
        host: str,
        port: int,
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._handler = handler
        self._error_body = error_body
        self.limits = limits
        self.connections: set[_Connection] = set()
        self.is_draining = False
        self.loop = asyncio.new_event_loop()
        self._outbox: list[Callable[[], None]] = []
        self._outbox_lock = threading.Lock()
        self._server: asyncio.Server | None = None
        try:
            self._server = self.loop.run_until_complete(
                self.loop.create_server(
                    lambda: _Connection(self), host, port, backlog=1024, ssl=tls, reuse_address=True
                )
            )
        except OSError as error:
            self.loop.close()
            raise ClusterError(f"REST cannot listen on {host}:{port} ({error.strerror}); give a free port") from error
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="rest", daemon=True)
        self._thread.start()

    def close(self, drain_s: float = 0.0) -> None:
        """Accept no more, let requests under way be answered for ``drain_s``, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._drain(drain_s), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        sweeper = self.loop.create_task(self._sweep())
        self.loop.run_forever()
        sweeper.cancel()
        self.loop.run_until_complete(asyncio.gather(sweeper, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())

    async def _drain(self, drain_s: float) -> None:
        assert self._server is not None
        self.is_draining = True
        self._server.close()
        end_s = self.loop.time() + drain_s
        for connection in list(self.connections):
            connection.close_if_idle()
        while self.connections and self.loop.time() < end_s:
            await asyncio.sleep(0.01)
        for _ in range(3):  # one that was being accepted is among them a moment later
            for connection in list(self.connections):
                connection.abort()
            await asyncio.sleep(0)
        while self.connections:
            await asyncio.sleep(0)

    async def _sweep(self) -> None:
        pause_s = min(1.0, self.limits.read_s / 4, self.limits.idle_s / 4, self.limits.answer_s / 4)
        while True:
            await asyncio.sleep(pause_s)
            now_s = self.loop.time()
            for connection in list(self.connections):
                connection.check(now_s)

    def answer(self, request: Request, reply: Reply) -> None:
        """Hand a request on; what the handler raises is answered."""
        try:
            self._handler(request, reply)
        except Exception:
            logger.exception("a request failed path=%s", request.path)
            reply(500, self._error_body("the server failed to answer; its log says why"))

    def in_own_thread(self, act: Callable[[], None]) -> None:
        """Have ``act`` called in the server's thread: now, or soon. Answers that come together wake it once."""
        if threading.current_thread() is self._thread:
            act()
            return
        with self._outbox_lock:
            self._outbox.append(act)
            if len(self._outbox) > 1:  # who put the first one in woke it
                return
        with contextlib.suppress(RuntimeError):  # the server has stopped meanwhile, and its connections are gone
            self.loop.call_soon_threadsafe(self._empty_outbox)

    def _empty_outbox(self) -> None:
        with self._outbox_lock:
            acts, self._outbox = self._outbox, []
        for act in acts:
            act()

    def error_body(self, text: str) -> bytes:
        """Return the body of a refusal."""
        return self._error_body(text)


class _Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = server.loop
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._chunks: _Chunks | None = None
        self._begun_s = 0.0
        self._deadline_s = 0.0
        self._is_answering = False
        self._is_open = False
        self._is_closing = False
        self._is_paused = False
        self._is_stuck = False
        self._keeps_alive = True

    # --- what asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._is_open = True
        is_full = len(self._server.connections) >= self._server.limits.max_connections
        self._server.connections.add(self)
        if is_full or self._server.is_draining:
            text = "the server has too many connections; come back later, or ask another replica"
            self._is_closing = True
            self._send(503, self._server.error_body(text), "application/json", None, False, True)
            transport.close()
            return
        self._deadline_s = self._loop.time() + self._server.limits.idle_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        self._server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        if not self._buffer and self._head is None and not self._is_answering:
            self._begin()
        self._buffer += data
        if self._is_answering:
            # The next request waits where it is; a client that sends on and on is held back.
            if len(self._buffer) > _MAX_HEAD and not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()
            return
        self._go_on()

    def pause_writing(self) -> None:
        self._deadline_s = self._loop.time() + self._server.limits.read_s
        self._is_stuck = True

    def resume_writing(self) -> None:
        self._is_stuck = False
        if not self._is_answering:
            self._deadline_s = self._loop.time() + self._server.limits.idle_s

    # --- time ---

    def check(self, now_s: float) -> None:
        """End the connection when its time is up."""
        if now_s < self._deadline_s:
            return
        if self._is_answering and not self._is_stuck:
            self._refuse(504, "there was no answer in time; ask for fewer rows, or another replica")
            return
        if self._head is not None:  # it may take as long as its size allows
            received = self._chunks.size if self._chunks is not None else len(self._buffer)
            self._deadline_s = self._begun_s + self._server.limits.read_s + received / _SLOWEST_BYTES_PER_S
            if now_s < self._deadline_s:
                return
        if self._is_stuck or self._is_closing or not (self._buffer or self._head):
            self.abort()
        else:
            self._refuse(408, "the request did not come in time; send it at once")

    def _begin(self) -> None:
        self._begun_s = self._loop.time()
        self._deadline_s = self._begun_s + self._server.limits.read_s

    def close_if_idle(self) -> None:
        """End the connection, or have it end after the request that is being read or answered."""
        if not self._is_answering and self._head is None and not self._buffer:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    # --- reading ---

    def _go_on(self) -> None:
        try:
            while not self._is_answering and not self._is_closing:
                request = self._next_request()
                if request is None:
                    return
                self._is_answering = True
                self._deadline_s = self._loop.time() + self._server.limits.answer_s
                self._server.answer(request, self._reply_to(request))
        except _Refused as refused:
            self._refuse(refused.status, str(refused))

    def _next_request(self) -> Request | None:
        if self._head is None:
            while self._buffer[:2] == b"\r\n":  # some clients send an empty line after a body
                del self._buffer[:2]
            end = self._buffer.find(b"\r\n\r\n", 0, _MAX_HEAD)
            if end < 0:
                if len(self._buffer) >= _MAX_HEAD:
                    raise _Refused(431, f"the request's head has more than {_MAX_HEAD} bytes")
                if b"\n\n" in self._buffer or b"\0" in self._buffer:
                    raise _Refused(400, "the request's head is none of HTTP/1.1")
                return None
            self._head = _head_of(bytes(self._buffer[:end]), self._server.limits.max_body)
            del self._buffer[: end + 4]
            self._chunks = _Chunks(self._server.limits.max_body) if self._head.is_chunked else None
            if self._head.expects_continue:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        head = self._head
        if self._chunks is not None:
            if not self._chunks.take(self._buffer):
                return None
            body = b"".join(self._chunks.parts)
        elif len(self._buffer) < head.length:
            return None
        else:
            body = bytes(self._buffer[: head.length])
            del self._buffer[: head.length]
        self._head = self._chunks = None
        self._keeps_alive = head.keeps_alive
        return Request(
            head.method,
            head.path,
            head.headers,
            _unpacked(body, head.headers.get("content-encoding", ""), self._server.limits.max_body),
            lambda: self._is_open and not self._is_closing,
        )

    # --- writing ---

    def _reply_to(self, request: Request) -> Reply:
        is_head = request.method == "HEAD"

        def reply(
            status: int,
            body: bytes,
            content_type: str = "application/json",
            headers: Mapping[str, str] | None = None,
        ) -> None:
            self._server.in_own_thread(lambda: self._write(status, body, content_type, headers, is_head))

        return reply

    def _write(
        self, status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None, is_head: bool
    ) -> None:
        if not self._is_answering:
            return
        self._is_answering = False
        if not self._is_open:
            return
        is_last = not self._keeps_alive or self._server.is_draining
        self._send(status, body, content_type, headers, is_head, is_last)
        if is_last:
            self._end()
            return
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        if self._buffer:
            self._begin()
            self._loop.call_soon(self._go_on)
        elif not self._is_stuck:
            self._deadline_s = self._loop.time() + self._server.limits.idle_s

    def _send(
        self,
        status: int,
        body: bytes,
        content_type: str,
        headers: Mapping[str, str] | None,
        is_head: bool,
        is_last: bool,
    ) -> None:
        lines = [
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(body)}",
        ]
        if headers:
            lines.extend(f"{name}: {value}" for name, value in headers.items())
        if is_last:
            lines.append("Connection: close")
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        self._transport.write(head if is_head else head + body)

    def _refuse(self, status: int, text: str) -> None:
        """PredictResult what is no request, and end: where the next one would begin is not known."""
        self._is_answering = False
        self._buffer.clear()
        self._send(status, self._server.error_body(text), "application/json", None, False, True)
        self._end()

    def _end(self) -> None:
        # Closing while the client still sends would reset the connection under the answer; so it may send for a while,
        # to nobody.
        self._is_closing = True
        self._head = None
        self._buffer.clear()
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._deadline_s = self._loop.time() + min(1.0, self._server.limits.read_s)
        else:
            self._transport.close()

    def eof_received(self) -> bool:
        # A client that has sent everything may still wait for its answer. TLS has no such half.
        if self._is_answering and self._transport.can_write_eof():
            self._keeps_alive = False
            return True
        return False


class _Head:
    """The head of a request, checked. Immutable."""

    def __init__(self, text: bytes, max_body: int) -> None:
        first, *lines = text.split(b"\r\n")
        parts = first.split(b" ")
        if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]):
            raise _Refused(400, "the request line is none of HTTP/1.1")
        if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise _Refused(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        if not _TARGET.fullmatch(parts[1]):
            raise _Refused(400, "the request's target must be a path of printable ASCII")
        self.method = parts[0].decode()
        self.path = parts[1].decode().partition("?")[0]
        self.headers = _headers(lines)
        is_new = parts[2] == b"HTTP/1.1"
        if is_new and "host" not in self.headers:
            raise _Refused(400, "the header Host is missing")
        connection = {word.strip().lower() for word in self.headers.get("connection", "").split(",")}
        self.keeps_alive = "close" not in connection if is_new else "keep-alive" in connection
        self.is_chunked = self._has_chunks(is_new)
        self.length = self._length(max_body)
        expected = self.headers.get("expect", "").lower()
        if expected not in ("", "100-continue"):
            raise _Refused(417, "nothing but Expect: 100-continue is understood")
        self.expects_continue = bool(expected) and (self.is_chunked or self.length > 0)

    def _has_chunks(self, is_new: bool) -> bool:
        coding = self.headers.get("transfer-encoding")
        if coding is None:
            return False
        if "content-length" in self.headers or not is_new:
            raise _Refused(400, "Transfer-Encoding must stand alone, and needs HTTP/1.1")
        if coding.strip().lower() != "chunked":
            raise _Refused(501, "no Transfer-Encoding but chunked is understood")
        return True

    def _length(self, max_body: int) -> int:
        text = self.headers.get("content-length")
        if text is None:
            return 0
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            raise _Refused(400, "Content-Length is no number")
        if int(text) > max_body:
            raise _Refused(413, f"the body has {int(text)} bytes; at most {max_body} are taken")
        return int(text)


@functools.lru_cache(256)
def _head_of(text: bytes, max_body: int) -> _Head:
    """Return the head; a client's next request often has the same."""
    return _Head(text, max_body)


def _headers(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > _MAX_HEADERS:
        raise _Refused(431, f"the request has more than {_MAX_HEADERS} headers")
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or b"\0" in value or b"\r" in value or b"\n" in value:
            raise _Refused(400, "a header is none of HTTP/1.1")
        key, text = name.decode().lower(), value.strip(b" \t").decode("latin-1")
        if key in found:
            if key in ("content-length", "transfer-encoding", "host", "authorization"):
                raise _Refused(400, f"the header {key} came twice")
            text = f"{found[key]}, {text}"
        found[key] = text
    return found


class _Chunks:
    """Takes a body in chunks out of the buffer as they come."""

    def __init__(self, max_body: int) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self._max_body = max_body
        self._is_last = False

    def take(self, buffer: bytearray) -> bool:
        """Return whether the body is complete."""
        while True:
            end = buffer.find(b"\r\n", 0, _MAX_CHUNK_LINE)
            if end < 0:
                if len(buffer) >= _MAX_CHUNK_LINE:
                    raise _Refused(400, "a chunk's size is none of HTTP/1.1")
                return False
            if self._is_last:  # trailers, and an empty line after them
                if end:
                    raise _Refused(400, "trailers after the chunks are not taken")
                del buffer[:2]
                return True
            digits = bytes(buffer[:end]).partition(b";")[0].strip(b" \t")
            if not _HEX.fullmatch(digits):
                raise _Refused(400, "a chunk's size is none of HTTP/1.1")
            size = int(digits, 16)
            if self.size + size > self._max_body:
                raise _Refused(413, f"the body has more than {self._max_body} bytes")
            if not size:
                self._is_last = True
                del buffer[: end + 2]
                continue
            if len(buffer) < end + 2 + size + 2:
                return False
            if buffer[end + 2 + size : end + 4 + size] != b"\r\n":
                raise _Refused(400, "a chunk does not end where its size says")
            self.parts.append(bytes(buffer[end + 2 : end + 2 + size]))
            self.size += size
            del buffer[: end + 4 + size]


def _unpacked(body: bytes, coding: str, max_body: int) -> bytes:
    if coding in ("", "identity"):
        return body
    if coding.lower() != "gzip":
        raise _Refused(415, "no Content-Encoding but gzip is understood")
    unpacker: Any = zlib.decompressobj(wbits=31)
    try:
        found: bytes = unpacker.decompress(body, max_body + 1)
    except zlib.error as exc:
        raise _Refused(400, "the body is no gzip stream") from exc
    if len(found) > max_body:
        raise _Refused(413, f"the body has more than {max_body} bytes when unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise _Refused(400, "the body is no gzip stream")
    return found

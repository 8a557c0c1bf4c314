"""Small HTTP/1.1 server on asyncio for short requests and responses: the transport of REST.

``HttpServer`` runs one event loop in one thread and calls a ``Handler`` there. A handler must not block: it hands long
work to other threads and calls ``reply`` from them. Requests of one connection are answered in order, one per turn of
the loop.

Every resource of a client is bounded: connections (counted from accept, before a TLS handshake), the head, the body,
the bytes of all bodies together, and the time of silence, sending and reading. A client that does not read its
responses is not answered further. ``Admit`` sees the head before the body is read. The server refuses requests that two
HTTP implementations could read differently: two lengths, folded headers, a length beside chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from monolith.core.errors import ClusterError

__all__ = ["HttpError", "HttpLimits", "HttpServer", "Reply", "Request"]

logger = logging.getLogger(__name__)

_MAX_HEAD = 32 << 10
_MAX_HEADERS = 100
_MAX_CHUNK_LINE = 256
_SLOWEST_BYTES_PER_S = 64 << 10
_MAX_GZIP_RATIO = 200
_SMALL_BODY = 1 << 20  # the ratio of a smaller body does not matter
_ACCEPTS_PER_TURN = 64
_ACCEPT_PAUSE_S = 0.5
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(rb"/[\x21-\x7e]*")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t\x20-\x7e]*)?")
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
    """Bounds on the resources of clients."""

    max_body: int = 64 << 20
    """Bytes of a body, as sent and unpacked."""
    max_pending: int = 256 << 20
    """Bytes of all bodies whose requests are not answered yet; further bodies get 503."""
    max_connections: int = 1024
    """Connections, with those in a TLS handshake."""
    idle_s: float = 60.0
    """Time between two requests."""
    read_s: float = 10.0
    """Time to send a request, plus one second per 64 KiB; also for a TLS handshake and for reading a response."""
    answer_s: float = 60.0
    """Timeout of the handler; the client then gets 504."""


class HttpError(Exception):
    """A request that the server refuses.

    Args:
        status: HTTP status.
        text: Text for the client.
        headers: Further response headers.
    """

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


class Request:
    """One complete request."""

    __slots__ = ("_max_body", "body", "headers", "is_wanted", "method", "path")

    def __init__(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        is_wanted: Callable[[], bool],
        max_body: int = 64 << 20,
    ) -> None:
        self.method = method
        self.path = path
        """Path without the query."""
        self.headers = headers
        """Headers by lower-case name."""
        self.body = body
        """Body as sent, possibly compressed; see ``read_body``."""
        self.is_wanted = is_wanted
        """Returns whether the client still waits for the response."""
        self._max_body = max_body

    @property
    def is_compressed(self) -> bool:
        """Whether ``read_body`` has to unpack."""
        return bool(self.headers.get("content-encoding"))

    def read_body(self) -> bytes:
        """Return the body, unpacked. Takes a while for large compressed bodies; callable from any thread.

        Raises:
            HttpError: The body is invalid, or too large when unpacked.
        """
        return _unpack(self.body, self._max_body) if self.is_compressed else self.body


Reply = Callable[..., None]
"""``reply(status, body, content_type="application/json", headers={})``; call it once, from any thread."""
Handler = Callable[[Request, Reply], None]
Admit = Callable[[str, str, Mapping[str, str]], None]
"""Called with method, path and headers before the body is read; raises ``HttpError`` to refuse the request."""
ErrorBody = Callable[[str], bytes]


def _admit_all(method: str, path: str, headers: Mapping[str, str]) -> None:
    """Admit every request."""


class HttpServer:
    """Serves HTTP from construction to ``close``, in one background thread.

    Args:
        handler: Answers requests, in the server's thread; it must not block.
        error_body: Builds the body of an error response from its text.
        host: Interface to listen on.
        port: Port; 0 selects a free port.
        limits: Bounds on the resources of clients.
        tls: TLS context; None serves plain HTTP.
        admit: Checks the head of a request before the body is read.

    Raises:
        ClusterError: The port is in use, or the interface does not exist.
    """

    def __init__(
        self,
        handler: Handler,
        error_body: ErrorBody,
        host: str,
        port: int,
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
        admit: Admit = _admit_all,
    ) -> None:
        self._handler = handler
        self._error_body = error_body
        self._tls = tls
        self.admit = admit
        self.limits = limits
        self.connections: set[_Connection] = set()
        self.handshakes = 0
        """Accepted sockets that are not connections yet."""
        self.pending_bytes = 0
        """Bytes of bodies whose requests are not answered yet."""
        self.is_draining = False
        self._outbox: list[Callable[[], None]] = []
        self._outbox_lock = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = _listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="rest", daemon=True)
        self._thread.start()

    def close(self, drain_s: float = 0.0) -> None:
        """Stop accepting, drain current requests for ``drain_s``, and stop the thread."""
        asyncio.run_coroutine_threadsafe(self._drain(drain_s), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.add_reader(self._listener, self._accept)
        self._start_sweeper()
        self.loop.run_forever()
        for task in list(self._tasks):
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())

    # --- accepting ---

    def _accept(self) -> None:
        """Accept waiting sockets. Every accepted socket counts, so TLS handshakes cannot exceed the limit."""
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors left: give the others time to close
                logger.warning("accept failed, pausing error=%s", error)
                self.loop.remove_reader(self._listener)
                self.loop.call_later(_ACCEPT_PAUSE_S, self._resume_accepting)
                return
            accepted.setblocking(False)
            if self._tls is not None and self.is_full:  # a response would need a handshake
                accepted.close()
                continue
            with contextlib.suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.handshakes += 1
            self._start(self._open(accepted))

    def _resume_accepting(self) -> None:
        if not self.is_draining:
            self.loop.add_reader(self._listener, self._accept)

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(
                lambda: _Connection(self),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self.limits.read_s if self._tls is not None else None,
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError):  # the client left, or does not speak TLS
            accepted.close()
        finally:
            self.handshakes -= 1

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def is_full(self) -> bool:
        """Whether no further connection is allowed."""
        return len(self.connections) + self.handshakes >= self.limits.max_connections

    # --- time ---

    def _start_sweeper(self) -> None:
        def restart(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None and not self.is_draining:
                logger.error("sweeper failed, restarting", exc_info=task.exception())
                self._start_sweeper()

        self._start(self._sweep()).add_done_callback(restart)

    async def _sweep(self) -> None:
        pause_s = min(1.0, self.limits.read_s / 4, self.limits.idle_s / 4, self.limits.answer_s / 4)
        while True:
            await asyncio.sleep(pause_s)
            now_s = self.loop.time()
            for connection in list(self.connections):
                with connection.guarded():
                    connection.check(now_s)

    async def _drain(self, drain_s: float) -> None:
        self.is_draining = True
        self.loop.remove_reader(self._listener)
        self._listener.close()
        end_s = self.loop.time() + drain_s
        for connection in list(self.connections):
            connection.close_if_idle()
        while self.connections and self.loop.time() < end_s:
            await asyncio.sleep(0.01)
        for _ in range(3):  # an accepted socket becomes a connection a moment later
            for connection in list(self.connections):
                connection.abort()
            await asyncio.sleep(0)
        while self.connections:
            await asyncio.sleep(0)

    # --- answering ---

    def answer(self, request: Request, reply: Reply) -> None:
        """Call the handler; turn its exceptions into error responses."""
        try:
            self._handler(request, reply)
        except HttpError as error:
            reply(error.status, self._error_body(str(error)), headers=error.headers)
        except Exception:
            logger.exception("request failed path=%s", request.path)
            reply(500, self._error_body("internal error; see the log of the server"))

    def run_in_loop(self, act: Callable[[], None]) -> None:
        """Run ``act`` in the server's thread: immediately, or soon. Several calls wake the loop once."""
        if threading.current_thread() is self._thread:
            act()
            return
        with self._outbox_lock:
            self._outbox.append(act)
            if len(self._outbox) > 1:  # the first entry has woken the loop
                return
        with contextlib.suppress(RuntimeError):  # the loop has stopped, and all connections are closed
            self.loop.call_soon_threadsafe(self._empty_outbox)

    def _empty_outbox(self) -> None:
        with self._outbox_lock:
            acts, self._outbox = self._outbox, []
        for act in acts:
            try:
                act()
            except Exception:  # one connection must not lose the responses of the others
                logger.exception("response failed")

    def error_body(self, text: str) -> bytes:
        """Return the body of an error response."""
        return self._error_body(text)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address, family=family, backlog=1024)
    except OSError as error:
        raise ClusterError(f"REST cannot listen on {host}:{port} ({error.strerror}); give a free port") from error
    listener.setblocking(False)
    return listener


class _Connection(asyncio.Protocol):
    """One client. All methods run in the server's thread."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = server.loop
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._chunks: _Chunks | None = None
        self._begun_s = 0.0
        self._deadline_s = 0.0
        self._reserved = 0
        self._is_answering = False
        self._is_open = False
        self._is_closing = False
        self._is_paused = False
        self._is_stuck = False
        self._keeps_alive = True

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Close this connection on an unexpected error, instead of raising."""
        try:
            yield
        except Exception:
            logger.exception("connection failed, closing")
            self.abort()

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._is_open = True
        is_full = len(self._server.connections) >= self._server.limits.max_connections
        self._server.connections.add(self)
        if is_full or self._server.is_draining:
            text = "the server has too many connections; retry later, or use another replica"
            self._is_closing = True
            self._send(503, self._server.error_body(text), "application/json", None, False, True)
            transport.close()
            return
        self._deadline_s = self._loop.time() + self._server.limits.idle_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        self._release()
        self._server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        if not self._buffer and self._head is None and not self._is_busy:
            self._begin()
        self._buffer += data
        if self._is_busy:
            # The next request waits in the buffer; a client that sends further is paused.
            if len(self._buffer) > _MAX_HEAD and not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()
            return
        self._advance()

    def pause_writing(self) -> None:
        self._deadline_s = self._loop.time() + self._server.limits.read_s
        self._is_stuck = True

    def resume_writing(self) -> None:
        self._is_stuck = False
        if not self._is_answering and not self._is_closing:
            self._expect_next()

    def eof_received(self) -> bool:
        # A client that has sent its request may close its sending half and wait. TLS has no half-close.
        if self._is_answering and self._transport.can_write_eof():
            self._keeps_alive = False
            return True
        return False

    # --- time ---

    @property
    def _is_busy(self) -> bool:
        """Whether the next request must wait: a request is being answered, or the client does not read."""
        return self._is_answering or self._is_stuck

    def check(self, now_s: float) -> None:
        """Close the connection, or refuse its request, after the deadline."""
        if now_s < self._deadline_s:
            return
        if self._is_answering and not self._is_stuck:
            self._refuse(HttpError(504, "the request timed out; send fewer rows, or use another replica"))
            return
        if self._head is not None and not self._is_stuck:  # the time grows with the size of the body
            received = len(self._chunks.body) if self._chunks is not None else len(self._buffer)
            self._deadline_s = self._begun_s + self._server.limits.read_s + received / _SLOWEST_BYTES_PER_S
            if now_s < self._deadline_s:
                return
        if self._is_stuck or self._is_closing or not (self._buffer or self._head):
            self.abort()
        else:
            self._refuse(HttpError(408, "the client sent the request too slowly; send it without pauses"))

    def _begin(self) -> None:
        self._begun_s = self._loop.time()
        self._deadline_s = self._begun_s + self._server.limits.read_s

    def close_if_idle(self) -> None:
        """Close an idle connection. Others close after their current request."""
        if not self._is_answering and self._head is None and not self._buffer:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._transport.abort()

    # --- reading ---

    def _advance(self) -> None:
        """Answer at most one request of the buffer, so that other connections get their turn."""
        if self._is_busy or self._is_closing or not self._is_open:
            return
        with self.guarded():
            try:
                request = self._next_request()
            except HttpError as error:
                self._refuse(error)
                return
            if request is None:
                return
            self._is_answering = True
            self._deadline_s = self._loop.time() + self._server.limits.answer_s
            self._server.answer(request, self._reply_to(request))

    def _expect_next(self) -> None:
        """Continue with the next request after a response."""
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        if self._buffer:
            self._begin()
            self._loop.call_soon(self._advance)
        else:
            self._deadline_s = self._loop.time() + self._server.limits.idle_s

    def _next_request(self) -> Request | None:
        if self._head is None and not self._read_head():
            return None
        head = self._head
        assert head is not None
        if self._chunks is not None:
            is_complete = self._chunks.take(self._buffer)
            self._reserve(len(self._chunks.body))
            if not is_complete:
                return None
            body = bytes(self._chunks.body)
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
            body,
            lambda: self._is_open and not self._is_closing,
            self._server.limits.max_body,
        )

    def _read_head(self) -> bool:
        while self._buffer[:2] == b"\r\n":  # some clients send an empty line after a body
            del self._buffer[:2]
        end = self._buffer.find(b"\r\n\r\n", 0, _MAX_HEAD)
        if end < 0:
            if len(self._buffer) >= _MAX_HEAD:
                raise HttpError(431, f"the head has more than {_MAX_HEAD} bytes")
            if b"\n\n" in self._buffer or b"\0" in self._buffer:
                raise HttpError(400, "the head is invalid, expected HTTP/1.1")
            return False
        head = _head_of(bytes(self._buffer[:end]), self._server.limits.max_body)
        self._server.admit(head.method, head.path, head.headers)
        self._reserve(head.length)
        self._head = head
        del self._buffer[: end + 4]
        self._chunks = _Chunks(self._server.limits.max_body) if head.is_chunked else None
        if head.expects_continue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _reserve(self, size: int) -> None:
        """Count the body against the bytes of all clients."""
        grown = size - self._reserved
        if grown <= 0:
            return
        if self._server.pending_bytes + grown > max(self._server.limits.max_pending, grown):
            raise HttpError(503, "the server has too many requests; retry later", {"Retry-After": "1"})
        self._reserved = size
        self._server.pending_bytes += grown

    def _release(self) -> None:
        self._server.pending_bytes -= self._reserved
        self._reserved = 0

    # --- writing ---

    def _reply_to(self, request: Request) -> Reply:
        is_head = request.method == "HEAD"

        def reply(
            status: int,
            body: bytes,
            content_type: str = "application/json",
            headers: Mapping[str, str] | None = None,
        ) -> None:
            self._server.run_in_loop(lambda: self._write(status, body, content_type, headers, is_head))

        return reply

    def _write(
        self, status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None, is_head: bool
    ) -> None:
        if not self._is_answering:
            return
        self._is_answering = False
        self._release()
        if not self._is_open:
            return
        with self.guarded():
            is_last = not self._keeps_alive or self._server.is_draining
            self._send(status, body, content_type, headers, is_head, is_last)
            if is_last:
                self._end()
            elif not self._is_stuck:  # otherwise ``resume_writing`` continues
                self._expect_next()

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

    def _refuse(self, error: HttpError) -> None:
        """Send an error and close: the start of the next request is unknown."""
        self._is_answering = False
        self._buffer.clear()
        self._release()
        body = self._server.error_body(str(error))
        self._send(error.status, body, "application/json", error.headers, False, True)
        self._end()

    def _end(self) -> None:
        # Closing while the client still sends would reset the connection before it reads the response. So the client
        # may send for a while; the bytes are dropped.
        self._is_closing = True
        self._head = self._chunks = None
        self._buffer.clear()
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client has closed or reset the connection
            self.abort()
            return
        self._deadline_s = self._loop.time() + min(1.0, self._server.limits.read_s)


class _Chunks:
    """Decoder of a chunked body. Moves content from the buffer to ``body`` as it arrives."""

    def __init__(self, max_body: int) -> None:
        self.body = bytearray()
        self._max_body = max_body
        self._left = 0
        self._needs_end = False
        self._is_last = False

    def take(self, buffer: bytearray) -> bool:
        """Decode the buffer; return whether the body is complete."""
        while True:
            if self._left:
                piece = buffer[: self._left]
                del buffer[: len(piece)]
                self.body += piece
                self._left -= len(piece)
                if self._left:
                    return False
                self._needs_end = True
            if self._needs_end:
                if len(buffer) < 2:
                    return False
                if buffer[:2] != b"\r\n":
                    raise HttpError(400, "a chunk is longer than its size")
                del buffer[:2]
                self._needs_end = False
            end = buffer.find(b"\r\n", 0, _MAX_CHUNK_LINE)
            if end < 0:
                if len(buffer) >= _MAX_CHUNK_LINE:
                    raise HttpError(400, "the size of a chunk is invalid")
                return False
            line = bytes(buffer[:end])
            del buffer[: end + 2]
            if self._is_last:
                if line:
                    raise HttpError(400, "trailers after the chunks are not supported")
                return True
            self._left = self._size_of(line)
            self._is_last = not self._left

    def _size_of(self, line: bytes) -> int:
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise HttpError(400, "the size of a chunk is invalid")
        size = int(match[1], 16)
        if len(self.body) + size > self._max_body:
            raise HttpError(413, f"the body has more than {self._max_body} bytes")
        return size


class _Head:
    """Checked head of a request. Immutable."""

    def __init__(self, text: bytes, max_body: int) -> None:
        first, *lines = text.split(b"\r\n")
        parts = first.split(b" ")
        if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]):
            raise HttpError(400, "the request line is invalid, expected HTTP/1.1")
        if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise HttpError(505, "the HTTP version is not supported, expected HTTP/1.1 or HTTP/1.0")
        if not _TARGET.fullmatch(parts[1]):
            raise HttpError(400, "the target is invalid, expected a path of printable ASCII")
        self.method = parts[0].decode()
        self.path = parts[1].decode().partition("?")[0]
        self.headers = _headers(lines)
        is_new = parts[2] == b"HTTP/1.1"
        if is_new and "host" not in self.headers:
            raise HttpError(400, "the header Host is missing")
        connection = {word.strip().lower() for word in self.headers.get("connection", "").split(",")}
        self.keeps_alive = "close" not in connection if is_new else "keep-alive" in connection
        self.is_chunked = self._has_chunks(is_new)
        self.length = self._length(max_body)
        expected = self.headers.get("expect", "").lower()
        if expected not in ("", "100-continue"):
            raise HttpError(417, "the expectation is not supported, expected 100-continue")
        self.expects_continue = bool(expected) and (self.is_chunked or self.length > 0)
        coding = self.headers.get("content-encoding", "").lower()
        if coding not in ("", "identity", "gzip"):
            raise HttpError(415, "the content encoding is not supported, expected gzip")
        if coding in ("", "identity"):
            self.headers.pop("content-encoding", None)

    def _has_chunks(self, is_new: bool) -> bool:
        coding = self.headers.get("transfer-encoding")
        if coding is None:
            return False
        if "content-length" in self.headers or not is_new:
            raise HttpError(400, "Transfer-Encoding needs HTTP/1.1 without Content-Length")
        if coding.strip().lower() != "chunked":
            raise HttpError(501, "the transfer encoding is not supported, expected chunked")
        return True

    def _length(self, max_body: int) -> int:
        text = self.headers.get("content-length")
        if text is None:
            return 0
        if not (text.isascii() and text.isdigit()) or len(text) > 18 or text != str(int(text)):
            raise HttpError(400, "Content-Length is invalid, expected a decimal number")
        if int(text) > max_body:
            raise HttpError(413, f"the body has {int(text)} bytes, expected at most {max_body}")
        return int(text)


@functools.lru_cache(256)
def _head_of(text: bytes, max_body: int) -> _Head:
    """Return the head; consecutive requests of a client often have equal heads."""
    return _Head(text, max_body)


def _headers(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > _MAX_HEADERS:
        raise HttpError(431, f"the request has more than {_MAX_HEADERS} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or b"\0" in value or b"\r" in value or b"\n" in value:
            raise HttpError(400, "a header is invalid, expected HTTP/1.1")
        key, text = name.decode().lower(), value.strip(b" \t").decode("latin-1")
        if key in headers:
            if key in ("content-length", "transfer-encoding", "host", "authorization"):
                raise HttpError(400, f"the header {key} appears twice")
            text = f"{headers[key]}, {text}"
        headers[key] = text
    return headers


def _unpack(body: bytes, max_body: int) -> bytes:
    # A high ratio means a bomb: JSON of numbers or base64 shrinks by less than 20.
    limit = min(max_body, max(_SMALL_BODY, _MAX_GZIP_RATIO * len(body)))
    unpacker: Any = zlib.decompressobj(wbits=31)
    try:
        unpacked: bytes = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise HttpError(400, "the body is invalid, expected a gzip stream") from error
    if len(unpacked) > limit:
        raise HttpError(413, f"the unpacked body has more than {limit} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise HttpError(400, "the body is invalid, expected one gzip stream")
    return unpacked

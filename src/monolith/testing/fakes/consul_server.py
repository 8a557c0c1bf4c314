"""``ConsulServer``: a fake Consul agent with the HTTP endpoints that discovery uses, and the real agent's checks.

One agent and one node. Services are listed while their TTL check passes; the time is an argument. It implements both
dialects of ``monolith.discovery.consul_agent``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from monolith.core.clock import Clock, SystemClock

__all__ = ["ConsulServer"]


@dataclass(slots=True)
class _Instance:
    id: str
    name: str
    address: str
    port: int
    tags: list[str]
    ttl_s: float
    passed_s: float | None = field(default=None)
    """When its check last passed; critical until the first time, as in the real agent."""


class ConsulServer:
    """The agent; also a context manager.

    Attributes:
        requests: Method and path of every request so far.
        is_blacklisting: Registrations are accepted and never listed.
        is_stubborn: Withdrawals are accepted and not executed.
        token: Token that requests must carry, or None.

    Args:
        clock: Clock by which checks expire.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._instances: dict[str, _Instance] = {}
        self._failures = 0
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.is_blacklisting = False
        self.is_stubborn = False
        self.token: str | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Port at 127.0.0.1."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.port}"

    def forget(self) -> None:
        """Forget all services, like an agent without state after a restart."""
        with self._lock:
            self._instances.clear()

    def fail_next(self, count: int) -> None:
        """Break the connections of the next requests."""
        with self._lock:
            self._failures = count

    def close(self) -> None:
        """Stop the server. A second call does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def __enter__(self) -> ConsulServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- requests ---

    def answer(self, method: str, target: str, body: bytes, token: str | None) -> tuple[int, str] | None:
        """Return status and text of the answer; None breaks the connection."""
        parts = urlsplit(target)
        with self._lock:
            self.requests.append((method, target))
            if self._failures > 0:
                self._failures -= 1
                return None
            if self.token is not None and token != self.token:
                return 403, "Permission denied"
            path, query = parts.path, parse_qs(parts.query)
            for prefix, verbs, act in self._routes():
                if path.startswith(prefix):
                    if method not in verbs:
                        return 405, f"method {method} not allowed"
                    try:
                        return act(unquote(path.removeprefix(prefix)), query, body)
                    except (KeyError, ValueError, TypeError) as error:
                        return 400, f"Request decode failed: {error!r}"
            return 404, ""

    def _routes(self) -> list[tuple[str, str, Callable[[str, dict[str, list[str]], bytes], tuple[int, str]]]]:
        return [
            ("/v1/agent/service/register", "PUT", self._register),
            ("/v1/agent/service/deregister/", "PUT", self._deregister),
            ("/v1/agent/service/", "GET", self._one),
            ("/v1/agent/check/pass/service:", "PUT GET", self._pass),
            ("/v1/catalog/deregister", "PUT", self._catalog_deregister),
            ("/v1/health/service/", "GET", self._health),
            ("/v1/lookup/name", "GET", self._lookup),
        ]

    def _register(self, _: str, __: dict[str, list[str]], body: bytes) -> tuple[int, str]:
        asked = json.loads(body)
        self.bodies.append(asked)
        fields = {key.lower(): value for key, value in asked.items()}
        check = {key.lower(): value for key, value in fields["check"].items()}
        if not check["ttl"].endswith("s"):
            raise ValueError(f"time: missing unit in duration {check['ttl']!r}")
        instance = _Instance(
            id=fields["id"],
            name=fields["name"],
            address=fields.get("address", ""),
            port=int(fields["port"]),
            tags=list(fields.get("tags", [])),
            ttl_s=float(check["ttl"][:-1]),
        )
        self._instances[instance.id] = instance
        return 200, ""

    def _deregister(self, service_id: str, _: dict[str, list[str]], __: bytes) -> tuple[int, str]:
        if service_id not in self._instances:
            return 404, f'Unknown service ID "{service_id}". Ensure that the service ID is passed'
        if not self.is_stubborn:
            del self._instances[service_id]
        return 200, ""

    def _catalog_deregister(self, _: str, __: dict[str, list[str]], body: bytes) -> tuple[int, str]:
        asked = json.loads(body)
        if not asked["Node"]:
            return 400, "Missing node"
        if not self.is_stubborn:
            self._instances.pop(asked["ServiceID"], None)
        return 200, "true"

    def _one(self, service_id: str, _: dict[str, list[str]], __: bytes) -> tuple[int, str]:
        instance = self._instances.get(service_id)
        if instance is None:
            return 404, f"unknown service ID: {service_id}"
        return 200, json.dumps(_describe(instance))

    def _pass(self, service_id: str, _: dict[str, list[str]], __: bytes) -> tuple[int, str]:
        instance = self._instances.get(service_id)
        if instance is None:
            return 404, f'Unknown check ID "service:{service_id}". Ensure that the check ID is passed'
        instance.passed_s = self._clock.monotonic_s()
        return 200, ""

    def _health(self, name: str, query: dict[str, list[str]], _: bytes) -> tuple[int, str]:
        node = {"Node": "double", "Address": "127.0.0.1"}
        return 200, json.dumps(
            [{"Node": node, "Service": _describe(one)} for one in self._list(name, "passing" in query)]
        )

    def _lookup(self, _: str, query: dict[str, list[str]], __: bytes) -> tuple[int, str]:
        return 200, json.dumps(
            [
                {"Host": "127.0.0.1", "Port": one.port, "Tags": dict(tag.split(":", 1) for tag in one.tags)}
                for one in self._list(query["name"][0], True)
            ]
        )

    def _list(self, name: str, is_passing: bool) -> list[_Instance]:
        if self.is_blacklisting:
            return []
        now_s = self._clock.monotonic_s()
        return [
            one
            for one in self._instances.values()
            if one.name == name and (not is_passing or (one.passed_s is not None and now_s - one.passed_s < one.ttl_s))
        ]


def _describe(instance: _Instance) -> dict[str, Any]:
    return {
        "ID": instance.id,
        "Service": instance.name,
        "Address": instance.address,
        "Port": instance.port,
        "Tags": instance.tags,
    }


def _handler(server: ConsulServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = server.answer(self.command, self.path, body, self.headers.get("X-Consul-Token"))
            if answer is None:
                self.close_connection = True
                return
            status, text = answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = _serve
        do_PUT = _serve

        def log_message(self, *arguments: object) -> None:
            """Log nothing: tests read ``requests``."""

    return Handler

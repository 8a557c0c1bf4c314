"""``DashboardServer``: the page, its files and its JSON over HTTP.

The server reads only the given targets. It listens on loopback by default and has no login: every client that
reaches the port sees the metrics, and can predict and explain ids.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from http.server import BaseHTTPRequestHandler
from importlib import resources
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

from typing_extensions import override

from monolith.core.errors import ClusterError
from monolith.dashboard.boxes import Explainer, Predictor
from monolith.dashboard.scraper import Scraper
from monolith.telemetry.http_server import BoundedHttpServer

__all__ = ["DashboardServer"]

logger = logging.getLogger(__name__)

_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "vendor/uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "vendor/uPlot.min.css": "text/css; charset=utf-8",
}
_MAX_BODY_BYTES = 1 << 20
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class DashboardServer:
    """Serves the page until ``close``.

    Args:
        scraper: Reads the targets.
        predictor: Answers the predict box; None hides it.
        explainer: Answers the explain box; None hides it.
        host: Interface to listen on.
        port: Port; 0 = any free port.

    Raises:
        ClusterError: The port is taken, or the machine lacks the interface.
    """

    def __init__(
        self,
        scraper: Scraper,
        *,
        predictor: Predictor | None = None,
        explainer: Explainer | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        handler = _handler(_Answers(scraper, predictor, explainer))
        try:
            self._server = BoundedHttpServer((host, port), handler, 16, 20.0, name="dashboard")
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ClusterError(f"dashboard cannot listen on {host}:{port} ({reason}); give a free port") from error
        self.port: int = self._server.server_address[1]
        """Port that the page listens on."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="dashboard", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Answers:
    """Status, content type and body of each path."""

    def __init__(self, scraper: Scraper, predictor: Predictor | None, explainer: Explainer | None) -> None:
        self._scraper = scraper
        self._predictor = predictor
        self._explainer = explainer

    def get(self, target: str) -> tuple[int, str, bytes]:
        path, _, text = target.partition("?")
        query = {name: values[-1] for name, values in parse_qs(text).items()}
        if path == "/api/state":
            return self._state(query.get("since", "0"))
        if path == "/api/explain":
            return self._explain(query)
        return _read_file("/static/index.html" if path == "/" else path)

    def post(self, target: str, body: bytes) -> tuple[int, str, bytes]:
        if target.partition("?")[0] != "/api/predict":
            return _json(404, {"error": "paths are /, /api/state, /api/predict and /api/explain"})
        if self._predictor is None:
            return _json(404, {"error": "no model server is given; start the dashboard with --server HOST:PORT"})
        try:
            request = json.loads(body)
            model, content = request["model"], request["body"]
        except (ValueError, KeyError, TypeError):
            return _json(400, {"error": 'body is invalid, expected {"model": NAME, "body": {...}}'})
        return _json(*self._predictor.predict(model, content))

    def _state(self, since: str) -> tuple[int, str, bytes]:
        try:
            since_s = float(since)
        except ValueError:
            since_s = math.nan
        if not math.isfinite(since_s):
            return _json(400, {"error": f"since is {since!r}, expected unix seconds"})
        boxes = {"can_predict": self._predictor is not None, "can_explain": self._explainer is not None}
        return _json(200, self._scraper.state(since_s) | boxes)

    def _explain(self, query: dict[str, str]) -> tuple[int, str, bytes]:
        if self._explainer is None:
            return _json(404, {"error": "no parameter server is given; start the dashboard with --ps HOST:PORT"})
        return _json(*self._explainer.explain(query.get("id", ""), self._scraper.tables()))


def _json(status: int, body: Any) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(body).encode()


def _read_file(path: str) -> tuple[int, str, bytes]:
    """Return a file of the page; only files of the list exist."""
    name = path.removeprefix("/static/")
    if name == path or name not in _TYPES:
        return _json(404, {"error": "paths are /, /api/state, /api/predict and /api/explain"})
    file = resources.files("monolith.dashboard") / "static" / name
    if not file.is_file():  # the chart library is fetched when the package is built
        return _json(404, {"error": f"{name} is not in this package; run `make dashboard-assets`"})
    return 200, _TYPES[name], file.read_bytes()


def _handler(answers: _Answers) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(lambda: answers.get(self.path))

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
                self._send(*_json(413, {"error": f"Content-Length is {length!r}, expected at most {_MAX_BODY_BYTES}"}))
                return
            body = self.rfile.read(int(length))
            self._answer(lambda: answers.post(self.path, body))

        def _answer(self, compute: Any) -> None:
            try:
                status, content_type, body = compute()
            except Exception:
                logger.exception("dashboard failed path=%s", self.path)
                status, content_type, body = _json(500, {"error": "internal error; see the log of the dashboard"})
            self._send(status, content_type, body)

        def _send(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: one line per poll floods the log."""

    return Handler

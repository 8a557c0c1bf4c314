"""TensorFlow Serving's REST paths, and the paths of health, metrics and OpenAPI.

``Rest`` is the handler of :mod:`monolith.serving.api.http_server`. :mod:`monolith.serving.api.rest_json` parses the
JSON: small bodies in the server's thread, large or compressed ones in a small pool, so that other clients do not wait.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

from monolith.core.errors import InvalidRequest
from monolith.rpc.status import Code, client_text, code_of, http_status, text_of
from monolith.serving.api.access import Access
from monolith.serving.api.http_server import HttpError, Reply, Request
from monolith.serving.api.impression_log import REQUEST_KEY
from monolith.serving.api.metadata import metadata_json, models_json, status_json
from monolith.serving.api.openapi import description
from monolith.serving.api.rest_json import encode_answer, parse_body
from monolith.serving.requests.request_router import PredictRequest, PredictResult, RequestRouter
from monolith.serving.versions.loaded_model import DEGRADED

__all__ = ["Rest", "error_body"]

logger = logging.getLogger(__name__)

_MODEL = re.compile(
    r"/v1/models/(?P<name>[^/]+?)"
    r"(?:/versions/(?P<version>[0-9]{1,18})|/labels/(?P<label>[^/:]+))?"
    r"(?::(?P<verb>predict|classify|regress)|(?P<metadata>/metadata))?"
)
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_HEALTH = ("/healthz", "/readyz")
_MODELS = "/v1/models"
_INLINE_BYTES = 64 << 10
_PARSE_THREADS = 2


def error_body(text: str) -> bytes:
    """Return an error body in TensorFlow Serving's form."""
    return json.dumps({"error": text}).encode()


class Rest:
    """Handler of HTTP requests.

    Args:
        router: Answers predict requests.
        metrics: Returns the Prometheus page.
        metrics_path: Path of that page, besides /metrics.
        is_ready: Whether the server is ready.
        access: Tokens and rights of callers. Health needs no token.
        timeout_s: Timeout of a request.
        max_values: Largest number of JSON values in a body.
    """

    def __init__(
        self,
        router: RequestRouter,
        metrics: Callable[[], str],
        metrics_path: str,
        is_ready: Callable[[], bool],
        access: Access,
        timeout_s: float,
        max_values: int = 1 << 20,
    ) -> None:
        self._router = router
        self._metrics = metrics
        self._metrics_paths = {"/metrics", metrics_path}
        self._is_ready = is_ready
        self._access = access
        self._timeout_s = timeout_s
        self._max_values = max_values
        self._description = b""
        self._pool = ThreadPoolExecutor(_PARSE_THREADS, thread_name_prefix="rest-parse")

    def close(self) -> None:
        """Stop the threads; requests that wait for them get no reply."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def admit(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Check the token, before the body is read.

        Raises:
            HttpError: The token is missing or wrong.
        """
        if path not in _HEALTH and not self._access.may_call(headers.get("authorization", "")):
            text = "bearer token is missing or wrong, expected the server's token"
            raise HttpError(401, text, {"WWW-Authenticate": "Bearer"})

    def __call__(self, request: Request, reply: Reply) -> None:
        """Handle one request. The reply may follow later, from another thread."""
        if request.path in _HEALTH:
            self._health(request, reply)
            return
        found = _MODEL.fullmatch(request.path)
        if found is not None:
            self._model(request, reply, found)
        elif request.path in self._metrics_paths or request.path in (_MODELS, "/openapi.json"):
            if request.method not in ("GET", "HEAD"):
                _refuse_method(reply, request.method, "GET")
            elif request.path == _MODELS:
                self._guard(reply, lambda: self._list_models(reply))
            elif request.path == "/openapi.json":
                self._description = self._description or json.dumps(description()).encode()
                reply(200, self._description)
            else:
                self._pool.submit(self._guard, reply, lambda: reply(200, self._metrics().encode(), _TEXT))
        else:
            text = f"path is {request.path}, expected /v1/models/NAME or a path of /openapi.json"
            reply(404, error_body(text))

    def _health(self, request: Request, reply: Reply) -> None:
        if request.method not in ("GET", "HEAD"):
            _refuse_method(reply, request.method, "GET")
        elif request.path == "/healthz" or self._is_ready():
            reply(200, b'{"status":"ok"}')
        else:
            reply(503, error_body("the server is not ready: a model has no served version, or the server is stopping"))

    def _list_models(self, reply: Reply) -> None:
        models = self._router.models
        found = {name: models.statuses(name) for name in models.names()}
        reply(200, json.dumps(models_json(found), indent=1).encode())

    def _model(self, request: Request, reply: Reply, found: re.Match[str]) -> None:
        name = unquote(found["name"], errors="replace")
        version = None if found["version"] is None else int(found["version"])
        label = unquote(found["label"] or "", errors="replace")
        expected = "POST" if found["verb"] else "GET"
        if request.method != expected and not (expected == "GET" and request.method == "HEAD"):
            _refuse_method(reply, request.method, expected)
            return
        try:
            if found["verb"] == "predict":
                if len(request.body) <= _INLINE_BYTES and not request.is_compressed:
                    self._predict(request, reply, name, version, label)
                else:
                    self._pool.submit(self._guard, reply, lambda: self._predict(request, reply, name, version, label))
            elif found["verb"]:
                text = f"{found['verb']} is not supported; use predict"
                reply(http_status(Code.UNIMPLEMENTED), error_body(text))
            elif found["metadata"]:
                with self._router.models.acquire(name, version, label) as hosted:
                    reply(200, json.dumps(metadata_json(hosted), indent=1).encode())
            else:
                statuses = self._router.models.status(name, version, label)
                reply(200, json.dumps(status_json(statuses), indent=1).encode())
        except Exception as error:
            _fail(reply, error)

    def _guard(self, reply: Reply, act: Callable[[], None]) -> None:
        """Run ``act``; turn its exceptions into error responses."""
        try:
            act()
        except HttpError as error:
            reply(error.status, error_body(str(error)), headers=error.headers)
        except Exception as error:
            _fail(reply, error)

    def _predict(self, request: Request, reply: Reply, name: str, version: int | None, label: str) -> None:
        if not request.is_wanted():  # the client left while the request waited for a thread
            return
        body = parse_body(request.read_body(), self._max_values)

        def on_result(result: PredictResult) -> None:
            if result.error is not None:
                _fail(reply, result.error)
                return
            try:
                encoded = encode_answer(result.outputs, body.is_by_row)
            except InvalidRequest as error:
                _fail(reply, error)
                return
            headers = {DEGRADED: result.missing} if result.missing else {}
            reply(200, encoded, headers={**headers, REQUEST_KEY: key.decode()} if key else headers)

        impressions = self._router.impressions
        key = b"" if impressions is None else impressions.make_key(request.headers.get(REQUEST_KEY.lower(), ""))
        may_assign = self._access.may_assign(request.headers.get("authorization", ""))
        parsed = PredictRequest(
            name, body.inputs, version, label, body.signature, may_assign=may_assign, request_key=key
        )
        self._router.submit(parsed, "rest", on_result, timeout_s=self._timeout_s, is_wanted=request.is_wanted)


def _refuse_method(reply: Reply, method: str, expected: str) -> None:
    reply(405, error_body(f"method is {method}, expected {expected}"), headers={"Allow": expected})


def _fail(reply: Reply, error: BaseException) -> None:
    code = code_of(error)
    if code == Code.INTERNAL:
        logger.error("request failed error=%s", text_of(error))
    headers = {"Retry-After": "1"} if code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE) else None
    reply(http_status(code), error_body(client_text(error)), headers=headers)

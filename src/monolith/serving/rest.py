"""TensorFlow Serving's REST paths, and those for health and metrics.

Finds what a path means and who answers it. The JSON is read in :mod:`monolith.serving.rest_json`, HTTP in
:mod:`monolith.serving.http_server`.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from monolith.artifacts.export_manifest import RECORD_INPUTS, SERVING_DEFAULT
from monolith.core.errors import InvalidRequest
from monolith.rpc.status import Code, code_of, http_status, text_of
from monolith.serving.http_server import Reply, Request
from monolith.serving.loaded_model import DEGRADED
from monolith.serving.metadata import metadata_json, status_json
from monolith.serving.openapi import description
from monolith.serving.rest_json import encode_answer, only_input, parse_body
from monolith.serving.scoring import Answer, Question, Scoring

__all__ = ["Rest", "error_body"]

logger = logging.getLogger(__name__)

_MODEL = re.compile(
    r"/v1/models/(?P<name>[^/]+?)"
    r"(?:/versions/(?P<version>[0-9]{1,18})|/labels/(?P<label>[^/:]+))?"
    r"(?::(?P<verb>predict|classify|regress)|(?P<metadata>/metadata))?"
)
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def error_body(text: str) -> bytes:
    """Return TensorFlow Serving's form of an error."""
    return json.dumps({"error": text}).encode()


class Rest:
    """Answers requests of HTTP.

    Args:
        scoring: Answers for the models.
        metrics: Gives the page for Prometheus.
        metrics_path: Where that is, besides /metrics.
        is_ready: Whether the server can be sent requests.
        token: What callers must know; empty = nothing. Health is told to everybody.
        timeout_s: Longest time for a request.
    """

    def __init__(
        self,
        scoring: Scoring,
        metrics: Callable[[], str],
        metrics_path: str,
        is_ready: Callable[[], bool],
        token: str,
        timeout_s: float,
    ) -> None:
        self._scoring = scoring
        self._metrics = metrics
        self._metrics_paths = {"/metrics", metrics_path}
        self._is_ready = is_ready
        self._expected = f"Bearer {token}".encode() if token else b""
        self._timeout_s = timeout_s

    def __call__(self, request: Request, reply: Reply) -> None:
        """Answer one request; the reply may come later."""
        if request.path in ("/healthz", "/readyz"):
            self._health(request, reply)
            return
        if self._expected:
            given = request.headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, self._expected):
                text = "the bearer token is missing or wrong; give the server's token"
                reply(401, error_body(text), headers={"WWW-Authenticate": "Bearer"})
                return
        found = _MODEL.fullmatch(request.path)
        if found is not None:
            self._model(request, reply, found)
        elif request.path in self._metrics_paths or request.path == "/openapi.json":
            if request.method not in ("GET", "HEAD"):
                _refuse_method(reply, request.method, "GET")
            elif request.path == "/openapi.json":
                reply(200, json.dumps(description()).encode())
            else:
                reply(200, self._metrics().encode(), _TEXT)
        else:
            text = f"there is nothing at {request.path}; models are at /v1/models/NAME, the rest at /openapi.json"
            reply(404, error_body(text))

    def _health(self, request: Request, reply: Reply) -> None:
        if request.method not in ("GET", "HEAD"):
            _refuse_method(reply, request.method, "GET")
        elif request.path == "/healthz" or self._is_ready():
            reply(200, b'{"status":"ok"}')
        else:
            reply(503, error_body("the server is not ready: a model has no version that answers, or it is stopping"))

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
                self._predict(request, reply, name, version, label)
            elif found["verb"]:
                text = f"{found['verb']} is not served: models here are asked with predict"
                reply(http_status(Code.UNIMPLEMENTED), error_body(text))
            elif found["metadata"]:
                with self._scoring.models.acquire(name, version, label) as hosted:
                    reply(200, json.dumps(metadata_json(hosted), indent=1).encode())
            else:
                statuses = self._scoring.models.status(name, version, label)
                reply(200, json.dumps(status_json(statuses), indent=1).encode())
        except Exception as error:
            _fail(reply, error)

    def _predict(self, request: Request, reply: Reply, name: str, version: int | None, label: str) -> None:
        body = parse_body(request.body)
        inputs = body.inputs
        if "" in inputs:
            inputs = {self._only_input(name, version, label, body.signature): inputs[""]}

        def then(answer: Answer) -> None:
            if answer.error is not None:
                _fail(reply, answer.error)
                return
            try:
                encoded = encode_answer(answer.outputs, body.is_by_row)
            except InvalidRequest as error:
                _fail(reply, error)
                return
            reply(200, encoded, headers={DEGRADED: answer.missing} if answer.missing else {})

        question = Question(name, inputs, version, label, body.signature)
        self._scoring.ask(question, "rest", then, timeout_s=self._timeout_s, is_wanted=request.is_wanted)

    def _only_input(self, name: str, version: int | None, label: str, signature: str) -> str:
        with self._scoring.models.acquire(name, version, label) as hosted:
            declared: Any = hosted.model.signatures.get(signature or SERVING_DEFAULT)
            names = [] if declared is None else list(declared.inputs)
        records = [each for each in names if each in RECORD_INPUTS]
        return only_input(records if len(records) == 1 else names) if names else ""


def _refuse_method(reply: Reply, method: str, expected: str) -> None:
    reply(405, error_body(f"{method} is not taken here; use {expected}"), headers={"Allow": expected})


def _fail(reply: Reply, error: BaseException) -> None:
    code = code_of(error)
    if code == Code.INTERNAL:
        logger.error("a request failed error=%s", text_of(error))
    headers = {"Retry-After": "1"} if code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE) else None
    reply(http_status(code), error_body(text_of(error)), headers=headers)

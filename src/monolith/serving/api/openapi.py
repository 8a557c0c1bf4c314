"""OpenAPI 3.1 description of the REST API, with every path and status."""

from __future__ import annotations

from typing import Any

import monolith
from monolith.serving.versions.loaded_model import DEGRADED

__all__ = ["description"]

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "minLength": 1}},
    "additionalProperties": False,
}
_REASONS = {
    "400": "The request is invalid",
    "401": "The bearer token is missing or wrong",
    "404": "The model, version or label does not exist",
    "405": "The method is not allowed",
    "408": "The client sent the request too slowly",
    "413": "The body is too large",
    "415": "The content encoding is not supported",
    "417": "The expectation is not supported",
    "431": "The headers are too large or too many",
    "500": "Internal error; see the log of the server",
    "501": "Not implemented",
    "503": "The server is overloaded, or the model is not loaded; retry later",
    "504": "The request timed out",
    "505": "The HTTP version is not supported",
}
_HEADERS = {
    "401": {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}},
    "405": {"Allow": {"required": True, "schema": {"type": "string"}}},
    "503": {"Retry-After": {"schema": {"type": "integer"}}},
}
_EVERYWHERE = set(_REASONS) - {"401", "404"}
_RECORD = {
    "type": "object",
    "required": ["b64"],
    "properties": {"b64": {"type": "string", "contentEncoding": "base64"}},
    "additionalProperties": False,
}
_ROWS = {"type": "array", "items": {"type": "object", "minProperties": 1}, "minItems": 1}
_VALUES = {"type": "array", "items": {"anyOf": [{"not": {"type": "object"}}, _RECORD]}, "minItems": 1}
_PREDICT_BODY = {
    "oneOf": [
        {
            "type": "object",
            "description": "By row: an object with a value per input, or the value of a single input.",
            "required": ["instances"],
            "properties": {"signature_name": {"type": "string"}, "instances": {"anyOf": [_ROWS, _VALUES]}},
            "additionalProperties": False,
        },
        {
            "type": "object",
            "description": "By column: a list per input, or the list of a single input.",
            "required": ["inputs"],
            "properties": {"signature_name": {"type": "string"}, "inputs": {"type": ["object", "array"]}},
            "additionalProperties": False,
        },
    ]
}
_PREDICTIONS = {
    "oneOf": [
        {
            "type": "object",
            "required": ["predictions"],
            "properties": {"predictions": {"type": "array"}},
            "additionalProperties": False,
        },
        {"type": "object", "required": ["outputs"], "properties": {"outputs": {}}, "additionalProperties": False},
    ]
}
_STATUS = {
    "type": "object",
    "required": ["model_version_status"],
    "properties": {
        "model_version_status": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["version", "state", "status"],
                "properties": {
                    "version": {"type": "string", "pattern": "^[0-9]+$"},
                    "state": {"enum": ["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]},
                    "status": {
                        "type": "object",
                        "required": ["error_code", "error_message"],
                        "properties": {"error_code": {"type": "string"}, "error_message": {"type": "string"}},
                    },
                },
            },
        }
    },
}
_MODELS = {
    "type": "object",
    "required": ["models"],
    "properties": {
        "models": {
            "type": "array",
            "items": {**_STATUS, "required": ["name", "model_version_status"]},
        }
    },
}
_METADATA = {
    "type": "object",
    "required": ["model_spec", "metadata"],
    "properties": {"model_spec": {"type": "object"}, "metadata": {"type": "object", "required": ["signature_def"]}},
}
_HEALTH = {"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}}
_CHOICES = {
    "": ([], "the newest version"),
    "/versions/{version}": (
        [{"name": "version", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}}],
        "one version",
    ),
    "/labels/{label}": (
        [{"name": "label", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}],
        "the version with a label",
    ),
}
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def description() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Monolith model server", "version": monolith.__version__},
        "paths": {**_model_paths(), **_other_paths()},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {status: _refusal(status) for status in _REASONS},
        },
        "security": [{}, {"token": []}],
    }


def _model_paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for choice, (parameters, words) in _CHOICES.items():
        base = f"/v1/models/{{name}}{choice}"
        shared = {"parameters": [_NAME, *parameters]}
        predict = _operation(f"Scores of {words}", _json(_PREDICTIONS), {"401", "404"})
        predict["requestBody"] = {"required": True, "content": _json(_PREDICT_BODY)}
        predict["responses"]["200"]["headers"] = {DEGRADED: {"schema": {"type": "string"}}}
        status = _operation(f"Status of {words}", _json(_STATUS), {"401", "404"})
        metadata = _operation(f"Signatures of {words}", _json(_METADATA), {"401", "404"})
        paths[base] = {"get": status, **shared}
        paths[f"{base}/metadata"] = {"get": metadata, **shared}
        paths[f"{base}:predict"] = {"post": predict, **shared}
    return paths


def _other_paths() -> dict[str, Any]:
    health = {
        "/healthz": _operation("Liveness", _json(_HEALTH), set()),
        "/readyz": _operation("Readiness", _json(_HEALTH), set()),
    }
    others = {
        "/metrics": _operation("Prometheus metrics", {"text/plain": {}}, {"401"}),
        "/v1/models": _operation("Models and the status of their versions", _json(_MODELS), {"401"}),
        "/openapi.json": _operation("OpenAPI document", _json({"type": "object"}), {"401"}),
    }
    open_to_all = {path: {"get": {**operation, "security": [{}]}} for path, operation in health.items()}
    return {**open_to_all, **{path: {"get": operation} for path, operation in others.items()}}


def _operation(summary: str, content: dict[str, Any], more: set[str]) -> dict[str, Any]:
    answers: dict[str, Any] = {"200": {"description": summary, "content": content}}
    answers |= {status: {"$ref": f"#/components/responses/{status}"} for status in sorted(_EVERYWHERE | more)}
    return {"summary": summary, "responses": answers}


def _refusal(status: str) -> dict[str, Any]:
    found: dict[str, Any] = {"description": _REASONS[status], "content": _json(_ERROR)}
    return {**found, "headers": _HEADERS[status]} if status in _HEADERS else found


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}

"""The REST API described for machines: OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

import monolith

__all__ = ["description"]

_ERROR = {
    "description": "What was wrong, and what to do",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {"error": {"type": "string"}},
                "additionalProperties": False,
            }
        }
    },
}
_STATUSES = ("400", "401", "404", "405", "408", "413", "415", "431", "500", "501", "503", "504")
_ANY_LIST = {"type": "array", "items": {}, "minItems": 1}
_PREDICT_BODY = {
    "oneOf": [
        {
            "type": "object",
            "description": "By row: one object, or one value, per row.",
            "required": ["instances"],
            "properties": {"signature_name": {"type": "string"}, "instances": _ANY_LIST},
            "additionalProperties": False,
        },
        {
            "type": "object",
            "description": "By column: one list per input.",
            "required": ["inputs"],
            "properties": {"signature_name": {"type": "string"}, "inputs": {"type": ["object", "array"]}},
            "additionalProperties": False,
        },
    ]
}
_PREDICTIONS = {
    "oneOf": [
        {"type": "object", "required": ["predictions"], "properties": {"predictions": {"type": "array"}}},
        {"type": "object", "required": ["outputs"], "properties": {"outputs": {}}},
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
                    "version": {"type": "string"},
                    "state": {"enum": ["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]},
                    "status": {
                        "type": "object",
                        "properties": {"error_code": {"type": "string"}, "error_message": {"type": "string"}},
                    },
                },
            },
        }
    },
}
_METADATA = {
    "type": "object",
    "required": ["model_spec", "metadata"],
    "properties": {"model_spec": {"type": "object"}, "metadata": {"type": "object"}},
}
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
    """Return the description of every path."""
    paths: dict[str, Any] = {}
    for choice, (parameters, words) in _CHOICES.items():
        base = f"/v1/models/{{name}}{choice}"
        every = [_NAME, *parameters]
        paths[base] = {"get": _operation(f"Status of {words}", _STATUS, every)}
        paths[f"{base}/metadata"] = {"get": _operation(f"Signatures of {words}", _METADATA, every)}
        predict = _operation(f"Scores of {words}", _PREDICTIONS, every)
        predict["requestBody"] = {"required": True, "content": {"application/json": {"schema": _PREDICT_BODY}}}
        paths[f"{base}:predict"] = {"post": predict}
    paths["/healthz"] = {"get": _operation("Whether the process lives", {"type": "object"}, [])}
    paths["/readyz"] = {"get": _operation("Whether it can be sent requests", {"type": "object"}, [])}
    paths["/metrics"] = {"get": _operation("Numbers for Prometheus", None, [])}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Monolith model server", "version": monolith.__version__},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _operation(summary: str, schema: dict[str, Any] | None, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    content = {"text/plain": {}} if schema is None else {"application/json": {"schema": schema}}
    answers: dict[str, Any] = {"200": {"description": summary, "content": content}}
    answers.update(dict.fromkeys(_STATUSES, _ERROR))
    return {"summary": summary, "parameters": parameters, "responses": answers}

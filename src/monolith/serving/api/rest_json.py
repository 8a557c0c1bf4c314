"""TensorFlow Serving's JSON: requests by row or by column, byte strings as ``{"b64": ...}``, and responses.

==========  ==========================================  =====================================================
            request                                     response
==========  ==========================================  =====================================================
by row      ``{"instances": [row, ...]}``               ``{"predictions": [row, ...]}``
by column   ``{"inputs": {"name": [...], ...}}``        ``{"outputs": {"name": [...], ...}}``
==========  ==========================================  =====================================================

A row is an object with a value per input. For a signature with a single input, a row is the value itself. A signature
with a single output returns values, not objects.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith import _native
from monolith.core.errors import InvalidRequest
from monolith.serving.versions.loaded_model import Outputs

__all__ = ["ParsedBody", "encode_answer", "parse_body"]

_KEYS = {"signature_name", "instances", "inputs"}


class ParsedBody:
    """Parsed body of a predict request."""

    __slots__ = ("inputs", "is_by_row", "signature")

    def __init__(self, signature: str, inputs: Mapping[str, Any], is_by_row: bool) -> None:
        self.signature = signature
        self.inputs = inputs
        """Inputs by name; the empty name stands for the only input of the signature."""
        self.is_by_row = is_by_row


def parse_body(body: bytes, max_values: int = 1 << 20) -> ParsedBody:
    """Parse the body of a predict request.

    Args:
        body: JSON text.
        max_values: Largest number of values. Parsing takes time and memory per value, at most a few bytes of text each.

    Raises:
        InvalidRequest: The body is invalid, or has too many values.
    """
    _check_values(body, max_values)
    found, records = _loaded(body)
    if not isinstance(found, dict):
        raise InvalidRequest('the body is invalid, expected a JSON object {"instances": [...]} or {"inputs": {...}}')
    signature = found.get("signature_name", "")
    if not isinstance(signature, str):
        raise InvalidRequest(f"signature_name is {signature!r}, expected a string")
    if unknown := sorted(set(found) - _KEYS):
        raise InvalidRequest(f"the body has {unknown[0]!r}, expected signature_name, and instances or inputs")
    if ("instances" in found) == ("inputs" in found):
        raise InvalidRequest(
            "the body has both or neither of instances and inputs, expected instances (by row) or inputs (by column)"
        )
    try:
        if "instances" in found:
            return ParsedBody(signature, _by_row(found["instances"], records), True)
        return ParsedBody(signature, _by_column(found["inputs"], records), False)
    except RecursionError as exc:
        raise InvalidRequest("the body is nested too deeply; flatten it") from exc


def _check_values(body: bytes, max_values: int) -> None:
    # Every value but the first follows one of these signs; signs within strings only raise the count.
    count = 1 + sum(body.count(sign) for sign in (b",", b"[", b"{"))
    if count > max_values:
        raise InvalidRequest(
            f"the body has about {count} values, expected at most {max_values}; send fewer rows, or use gRPC"
        )


def _loaded(body: bytes) -> tuple[Any, Sequence[bytes]]:
    """Return the value of the body, and the records of its base64 objects.

    With records, each base64 object holds the index of its record. Without, the value is plain JSON.
    """
    lifted = _native.lift_records(body)
    if lifted is not None:
        with contextlib.suppress(ValueError, RecursionError):  # parse the whole body below for the error text
            return json.loads(lifted[0]), lifted[1]
    try:
        return json.loads(body), ()
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"the body is invalid JSON ({_short(exc)})") from exc


def _by_row(rows: Any, records: Sequence[bytes]) -> dict[str, Any]:
    if not isinstance(rows, list) or not rows:
        raise InvalidRequest("instances must be a list with at least one row")
    if not _is_object(rows[0]):
        if any(_is_object(row) for row in rows):
            raise InvalidRequest("instances mixes objects and plain values, expected one form for all rows")
        return {"": [_decoded(row, records) for row in rows]}
    names: dict[str, None] = {}
    for index, row in enumerate(rows):
        if not _is_object(row):
            raise InvalidRequest(f"row {index} of instances is a plain value, expected an object like row 0")
        names.update(dict.fromkeys(row))
    # A row may lack a feature, like a record.
    return {name: [_decoded(row.get(name, []), records) for row in rows] for name in names}


def _by_column(columns: Any, records: Sequence[bytes]) -> dict[str, Any]:
    if _is_object(columns):
        return {name: _decoded(values, records) for name, values in columns.items()}
    return {"": _decoded(columns, records)}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not (len(value) == 1 and "b64" in value)


def _decoded(value: Any, records: Sequence[bytes]) -> Any:
    if isinstance(value, list):
        is_nested = any(isinstance(each, list | dict) for each in value)
        return [_decoded(each, records) for each in value] if is_nested else value
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or "b64" not in value:
        return value  # the model checks other objects
    if records:  # all base64 objects were lifted, or none
        return records[value["b64"]]
    if not isinstance(value["b64"], str):
        raise InvalidRequest('the value of "b64" must be a string')
    found = _native.decode_base64(value["b64"])
    if found is not None:
        return found
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(f"a b64 value is invalid base64 ({_short(exc)})") from exc


def encode_answer(outputs: Outputs, is_by_row: bool) -> bytes:
    """Return the body of a response.

    Raises:
        InvalidRequest: The request is by row, and the outputs differ in their number of rows.
    """
    if not is_by_row:
        return b'{"outputs":' + _columns(outputs) + b"}"
    sizes = {len(array) if array.ndim else -1 for array in outputs.values()}
    if len(sizes) != 1 or -1 in sizes:
        raise InvalidRequest(
            "the outputs differ in their number of rows; request by column, with inputs instead of instances"
        )
    if len(outputs) == 1:
        return b'{"predictions":' + _columns(outputs) + b"}"
    lists = {name: _plain(array, name) for name, array in outputs.items()}
    return _dumped({"predictions": [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]})


def _columns(outputs: Outputs) -> bytes:
    values = {name: _column(array, name) for name, array in outputs.items()}
    if len(values) == 1:
        return next(iter(values.values()))
    return b"{" + b",".join(_dumped(name) + b":" + value for name, value in values.items()) + b"}"


def _column(array: NDArray[Any], name: str) -> bytes:
    if array.dtype == np.float32:
        return _native.encode_floats(np.ascontiguousarray(array))
    return _dumped(_plain(array, name))


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _plain(array: NDArray[Any], name: str) -> Any:
    if array.dtype.kind not in "SOU":
        return array.tolist()
    return _texts(array.tolist(), name.endswith("_bytes"))


def _texts(value: Any, is_binary: bool) -> Any:
    if isinstance(value, list):
        return [_texts(each, is_binary) for each in value]
    if not isinstance(value, bytes):
        return str(value)
    if not is_binary:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return {"b64": base64.b64encode(value).decode()}


def _short(error: BaseException) -> str:
    return str(error)[:120]

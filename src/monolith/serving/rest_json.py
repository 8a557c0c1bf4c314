"""TensorFlow Serving's JSON: requests by row or by column, byte strings as ``{"b64": ...}``, and their answers.

==========  ==========================================  =====================================================
            request                                     answer
==========  ==========================================  =====================================================
by row      ``{"instances": [row, ...]}``               ``{"predictions": [row, ...]}``
by column   ``{"inputs": {"name": [...], ...}}``        ``{"outputs": {"name": [...], ...}}``
==========  ==========================================  =====================================================

A row is an object with a value per input, or the value itself where the signature has a single input; likewise a
signature with a single output answers with values, not objects.
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
from monolith.serving.loaded_model import Outputs

__all__ = ["ParsedBody", "encode_answer", "only_input", "parse_body"]

_KEYS = {"signature_name", "instances", "inputs"}


class ParsedBody:
    """What a body asks for."""

    __slots__ = ("inputs", "is_by_row", "signature")

    def __init__(self, signature: str, inputs: Mapping[str, Any], is_by_row: bool) -> None:
        self.signature = signature
        self.inputs = inputs
        """By name; the one with the empty name is the signature's only input."""
        self.is_by_row = is_by_row


def parse_body(body: bytes) -> ParsedBody:
    """Return what the body of a predict request asks for.

    Raises:
        InvalidRequest: It is no such JSON.
    """
    found, records = _loaded(body)
    if not isinstance(found, dict):
        raise InvalidRequest('the body is no JSON object; send {"instances": [...]} or {"inputs": {...}}')
    signature = found.get("signature_name", "")
    if not isinstance(signature, str):
        raise InvalidRequest("signature_name is no string")
    if unknown := sorted(set(found) - _KEYS):
        raise InvalidRequest(f"the body has {unknown[0]!r}; there are signature_name, and instances or inputs")
    if ("instances" in found) == ("inputs" in found):
        raise InvalidRequest("the body must have either instances (by row) or inputs (by column)")
    try:
        if "instances" in found:
            return ParsedBody(signature, _by_row(found["instances"], records), True)
        return ParsedBody(signature, _by_column(found["inputs"], records), False)
    except RecursionError as exc:
        raise InvalidRequest("the body is nested too deeply") from exc


def _loaded(body: bytes) -> tuple[Any, Sequence[bytes]]:
    """Return the body's value, and the records of its base64 objects, which hold numbers of them; or plain JSON."""
    lifted = _native.lift_records(body)
    if lifted is not None:
        with contextlib.suppress(ValueError, RecursionError):  # what is wrong with it is said of the whole body
            return json.loads(lifted[0]), lifted[1]
    try:
        return json.loads(body), ()
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"the body is no JSON ({_short(exc)})") from exc


def _by_row(rows: Any, records: Sequence[bytes]) -> dict[str, Any]:
    if not isinstance(rows, list) or not rows:
        raise InvalidRequest("instances must be a list with at least one row")
    if not _is_object(rows[0]):
        if any(_is_object(row) for row in rows):
            raise InvalidRequest("instances mixes objects and plain values; give every row the same form")
        return {"": [_decoded(row, records) for row in rows]}
    names: dict[str, None] = {}
    for index, row in enumerate(rows):
        if not _is_object(row):
            raise InvalidRequest(f"row {index} of instances is no object, row 0 is; give every row the same form")
        names.update(dict.fromkeys(row))
    # A row may lack a feature, as a record may.
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
        return value  # the model says which objects it takes
    if records:  # every base64 object was lifted, or none
        return records[value["b64"]]
    if not isinstance(value["b64"], str):
        raise InvalidRequest('the value of "b64" is no string')
    found = _native.decode_base64(value["b64"])
    if found is not None:
        return found
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(f"a b64 value is no base64 ({_short(exc)})") from exc


def encode_answer(outputs: Outputs, is_by_row: bool) -> bytes:
    """Return the body of an answer.

    Raises:
        InvalidRequest: The outputs have no rows in common, and an answer by row was asked for.
    """
    if not is_by_row:
        return b'{"outputs":' + _columns(outputs) + b"}"
    sizes = {len(array) if array.ndim else -1 for array in outputs.values()}
    if len(sizes) != 1 or -1 in sizes:
        raise InvalidRequest("the outputs have no rows in common; ask by column, with inputs instead of instances")
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


def only_input(names: Sequence[str]) -> str:
    """Return the name of a signature's only input.

    Raises:
        InvalidRequest: It has several.
    """
    if len(names) != 1:
        raise InvalidRequest(f"the signature takes {', '.join(names)}; name each input")
    return names[0]

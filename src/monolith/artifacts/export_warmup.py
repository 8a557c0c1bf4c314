"""Encode and parse warm-up requests: ``PredictionLog`` messages with a ``PredictRequest`` of one string input.

The fields are read and written by hand, so that no protobuf classes are needed. The caller does the TFRecord framing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from monolith.core.errors import RecordCorrupt

__all__ = ["WarmupRequest", "decode_warmup", "encode_warmup"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PREDICT_LOG, _REQUEST = 6, 1
_MODEL_SPEC, _INPUTS, _OUTPUT_FILTER = 1, 2, 3
_SPEC_NAME, _SPEC_SIGNATURE = 1, 3
_DTYPE, _SHAPE, _STRINGS = 1, 2, 8
_DT_STRING = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupRequest:
    """One warm-up request."""

    model: str
    signature: str
    input: str
    """Name of the input; see ``RECORD_INPUTS``."""
    records: tuple[bytes, ...]
    output_filter: tuple[str, ...] = ()


def encode_warmup(request: WarmupRequest) -> bytes:
    """Return the ``PredictionLog`` of a request."""
    spec = _field(_SPEC_NAME, request.model.encode()) + _field(_SPEC_SIGNATURE, request.signature.encode())
    dim = _number(1, len(request.records))
    tensor = _number(_DTYPE, _DT_STRING) + _field(_SHAPE, _field(2, dim))
    tensor += b"".join(_field(_STRINGS, record) for record in request.records)
    inputs = _field(1, request.input.encode()) + _field(2, tensor)
    body = _field(_MODEL_SPEC, spec) + _field(_INPUTS, inputs)
    body += b"".join(_field(_OUTPUT_FILTER, name.encode()) for name in request.output_filter)
    return _field(_PREDICT_LOG, _field(_REQUEST, body))


def decode_warmup(log: bytes) -> WarmupRequest:
    """Return the request of a ``PredictionLog``.

    Raises:
        RecordCorrupt: The message is invalid, or its input has no strings.
    """
    try:
        request = _only(_only(log, _PREDICT_LOG), _REQUEST)
        spec = _only(request, _MODEL_SPEC, b"")
        entry = _only(request, _INPUTS)
        tensor = list(_fields(_only(entry, 2)))
        if [value for number, value in tensor if number == _DTYPE and isinstance(value, int)][-1:] != [_DT_STRING]:
            raise ValueError("its input has no strings")
        return WarmupRequest(
            model=_only(spec, _SPEC_NAME, b"").decode(),
            signature=_only(spec, _SPEC_SIGNATURE, b"serving_default").decode(),
            input=_only(entry, 1).decode(),
            records=tuple(value for number, value in tensor if number == _STRINGS and type(value) is bytes),
            output_filter=tuple(
                value.decode()
                for number, value in _fields(request)
                if number == _OUTPUT_FILTER and type(value) is bytes
            ),
        )
    except (ValueError, IndexError, LookupError) as error:
        raise RecordCorrupt(
            f"a warm-up record is invalid ({error}), expected a PredictionLog with a request of strings; record one "
            "with TensorFlow Serving, or let the export generate some"
        ) from error


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has too many bytes")


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(content):
        key, at = _read_varint(content, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(content, at)
            yield key >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, at = _read_varint(content, at)
        if size is None:
            raise ValueError(f"wire type of a field is {kind}")
        if at + size > len(content):
            raise ValueError("a field is truncated")
        yield key >> 3, content[at : at + size]
        at += size


def _only(content: bytes, number: int, default: bytes | None = None) -> bytes:
    found = [value for each, value in _fields(content) if each == number and isinstance(value, bytes)]
    if found:
        return found[-1]
    if default is None:
        raise ValueError(f"field {number} is missing")
    return default

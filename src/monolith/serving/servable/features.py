"""Encode examples given by feature name, as in JSON, as serialized records."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from monolith.core.errors import InvalidRequest
from monolith.data import DenseFeature
from monolith.data.records.messages import Example
from monolith.features import Declaration, EmbeddingFeature
from monolith.serving.versions.loaded_model import FeatureInfo

__all__ = ["describe_features", "records_of_features"]

_LONGEST_NAME = 200
_FIDS = "fids"
_MOST_FLOAT = 2**53


_DTYPES = {"text": "string", "bucket": "float32"}


def describe_features(declaration: Declaration) -> tuple[FeatureInfo, ...]:
    """Return the features of a model, for metadata."""
    sparse = (
        FeatureInfo(
            name=name,
            kind="sparse",
            value_type=each.value_type or "unknown",
            dtype=_DTYPES.get(each.value_type or "", "int64"),
            shape=(-1, -1),
        )
        for name, each in declaration.inputs.items()
    )
    dense = (
        FeatureInfo(
            name=each.name,
            kind="dense",
            value_type=each.dtype,
            dtype="string" if each.dtype == "bytes" else each.dtype,
            shape=(-1, each.width),
        )
        for each in declaration.dense.values()
    )
    return (*sparse, *dense)


def records_of_features(
    declaration: Declaration, features: Mapping[str, Any] | Sequence[Mapping[str, Any]]
) -> list[bytes]:
    """Return one serialized Example per example; see ``Servable.predict_features``.

    Raises:
        InvalidRequest: A feature is unknown, a value is invalid, or columns differ in length.
    """
    rows = _rows(features)
    return [_record(declaration, row, number) for number, row in enumerate(rows)]


def _rows(features: Any) -> list[Mapping[str, Any]]:
    if isinstance(features, Mapping):
        lengths = {name: len(values) if _is_list(values) else None for name, values in features.items()}
        if len(set(lengths.values())) > 1 or None in lengths.values():
            shown = ", ".join(f"{name}: {'not a list' if size is None else size}" for name, size in lengths.items())
            raise InvalidRequest(
                f"lengths of features are {shown}, expected a list with one value per example for each"
            )
        count = next(iter(lengths.values()), 0) or 0
        return [{name: values[row] for name, values in features.items()} for row in range(count)]
    if not _is_list(features) or not all(isinstance(row, Mapping) for row in features):
        raise InvalidRequest(
            f"examples are a {type(features).__name__}, expected a list of objects with a value per feature, or an "
            "object with a list per feature"
        )
    return list(features)


def _record(declaration: Declaration, row: Mapping[str, Any], number: int) -> bytes:
    example = Example()
    for name, value in row.items():
        sparse, dense = declaration.inputs.get(name), declaration.dense.get(name)
        where = f"example {number}, feature {name!r}"
        if sparse is not None:
            _put_sparse(example.named_feature.add(name=sparse.column or name).feature, sparse, value, where)
        elif dense is not None:
            if value is not None:  # a missing value, as in files
                _put_dense(example.named_feature.add(name=dense.column or name).feature, dense, value, where)
        else:
            raise InvalidRequest(
                f"feature of example {number} is {name!r}, expected a feature of the model; {_near(name, declaration)}"
            )
    content: bytes = example.SerializeToString()
    return content


def _put_sparse(target: Any, feature: EmbeddingFeature, value: Any, where: str) -> None:
    """Put values into the arm of their type; the parser then makes ids of them, as of the values of files."""
    value_type = feature.value_type or "fid"
    if isinstance(value, Mapping):
        _put_fids(target, value_type, value, where)
        return
    values = [each for each in _as_list(value) if each is not None]
    if all(isinstance(each, str | bytes) for each in values):
        target.bytes_list.value.extend(_bytes(each, where) for each in values)
    elif not all(isinstance(each, int | float) for each in values):
        raise InvalidRequest(
            f"{where} is {value!r}, expected a value or a flat list of values of one type, {_expected(value_type)}"
        )
    elif value_type == "bucket":
        target.double_list.value.extend(_real(each, where) for each in values)
    elif value_type == "slot48" and any(isinstance(each, float) for each in values):
        target.float_list.value.extend(_real(each, where) for each in values)
    elif value_type == "slot48" and feature.slot is None:  # without a slot the number is the id
        target.fid_v2_list.value.extend(_whole(each, where) % 2**64 for each in values)
    else:
        target.int64_list.value.extend(_signed(_integer(each, where, value_type)) for each in values)


def _put_fids(target: Any, value_type: str, value: Mapping[str, Any], where: str) -> None:
    if set(value) != {_FIDS}:
        raise InvalidRequest(
            f"{where} is an object with {', '.join(map(str, value)) or 'no keys'}, expected {{'fids': [...]}}"
        )
    fids = [_whole(each, where) for each in _as_list(value[_FIDS])]
    if value_type in ("fid", "slot48"):
        target.fid_v2_list.value.extend(each % 2**64 for each in fids)
    elif value_type == "integer":  # an integer is its own id
        target.int64_list.value.extend(_signed(each) for each in fids)
    else:
        raise InvalidRequest(f"{where} holds fids, expected {_expected(value_type)}")


def _integer(value: int | float, where: str, value_type: str) -> int:
    """Return the integer of a JSON number: ``25.0`` is 25, like a whole float of a file."""
    if isinstance(value, float):
        if not value.is_integer() or abs(value) > _MOST_FLOAT:
            raise InvalidRequest(
                f"{where} is {value!r} of type float, expected {_expected(value_type)}; floats must be whole numbers "
                "of at most 2^53"
            )
        value = int(value)
    return _whole(int(value), where)


def _expected(value_type: str) -> str:
    return {"text": "text", "bucket": "numbers"}.get(value_type, "integers or text")


def _put_dense(target: Any, feature: DenseFeature, value: Any, where: str) -> None:
    values = _as_list(value)
    if feature.dtype == "bytes":
        if not all(isinstance(each, str | bytes) for each in values):
            raise InvalidRequest(f"{where} is {value!r}, expected text")
        target.bytes_list.value.extend(_bytes(each, where) for each in values)
    elif feature.dtype == "int64":
        target.int64_list.value.extend(_signed(_whole(each, where)) for each in values)
    else:
        target.float_list.value.extend(_real(each, where) for each in values)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _as_list(value: Any) -> list[Any]:
    return list(value) if _is_list(value) else [value]


def _bytes(value: str | bytes, where: str) -> bytes:
    try:
        return value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError as exc:  # JSON can encode a lone surrogate
        raise InvalidRequest(f"{where} is {value!r}, expected valid Unicode text") from exc


def _whole(value: Any, where: str) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise InvalidRequest(f"{where} is {value!r}, expected 64-bit integers")
    return value


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _real(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 3.4e38 or math.isnan(value):
        raise InvalidRequest(f"{where} is {value!r}, expected finite numbers")
    return float(value)


def _near(name: Any, declaration: Declaration) -> str:
    known = [*declaration.inputs, *declaration.dense]
    # Comparing a very long name would cost more than the request.
    near = difflib.get_close_matches(str(name), known, n=1) if len(str(name)) <= _LONGEST_NAME else []
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"

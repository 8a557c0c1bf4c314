"""Turn the inputs of a request into work for a model thread, for gRPC and REST alike.

An input named in ``RECORD_INPUTS`` holds serialized records; such requests for one version and signature form batches.
Any other input is a feature, or belongs to a signature that reads or sets rows.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from monolith.artifacts.export_manifest import RECORD_INPUTS, SERVING_DEFAULT
from monolith.core.errors import ClusterError, InvalidRequest, MonolithError
from monolith.data.sources.base import RecordKind
from monolith.serving.requests.row_counts import row_count
from monolith.serving.versions.hosted_version import HostedVersion
from monolith.serving.versions.loaded_model import ROW_LENGTHS, DegradedOutputs, Outputs

__all__ = ["PredictWork", "make_work"]

logger = logging.getLogger(__name__)


class PredictWork:
    """Computation of one request for one version.

    Args:
        hosted: The version. The caller has entered it, and leaves it after the work.
        key: Equal for works that can form a batch; None means alone.
        rows: Number of rows.
        nbytes: Bytes of the inputs.
        alone: Computes this request.
        records: Records of this request, if it can join a batch.
        kind: Message type of the records.
        is_score: Whether the request asks for scores, and not for rows of tables.
        together: Computes the records of several works.
    """

    __slots__ = ("_alone", "_together", "hosted", "is_score", "key", "kind", "nbytes", "records", "rows")

    def __init__(
        self,
        hosted: HostedVersion,
        *,
        key: Hashable,
        rows: int,
        nbytes: int,
        alone: Callable[[], Outputs],
        records: Sequence[bytes] = (),
        kind: RecordKind | None = None,
        is_score: bool = True,
        together: Callable[[Sequence[bytes]], Outputs] | None = None,
    ) -> None:
        self.hosted = hosted
        self.key = key
        self.rows = rows
        self.nbytes = nbytes
        self.records = records
        self.kind = kind
        self.is_score = is_score
        self._alone = alone
        self._together = together

    def do(self, works: Sequence[PredictWork]) -> Sequence[Outputs | Exception]:
        """Return the outputs or the error of each work."""
        if len(works) == 1 or self._together is None:
            return [work._answer() for work in works]
        try:
            outputs = self._together([record for work in works for record in work.records])
        except ClusterError as error:  # a remote part is missing; one by one would only take longer
            return [error] * len(works)
        except Exception:  # one request is invalid; find it by computing one by one
            return [work._answer() for work in works]
        rows = sum(work.rows for work in works)
        if any(not array.ndim or len(array) != rows for array in outputs.values()):
            return [work._answer() for work in works]
        answers: list[Outputs | Exception] = []
        begin = 0
        for work in works:
            end = begin + work.rows
            part = {name: array[begin:end] for name, array in outputs.items()}
            answers.append(DegradedOutputs(part, outputs.missing) if isinstance(outputs, DegradedOutputs) else part)
            begin = end
        return answers

    def _answer(self) -> Outputs | Exception:
        try:
            return self._alone()
        except MonolithError as error:
            return error
        except Exception as error:
            logger.exception("prediction failed model=%s version=%d", self.hosted.name, self.hosted.version)
            return error


def make_work(
    hosted: HostedVersion, signature: str, inputs: Mapping[str, Any], wanted: Sequence[str] = ()
) -> PredictWork:
    """Return the work of a request.

    Args:
        hosted: The version to use.
        signature: Name of the signature; empty means the default.
        inputs: Arrays by name; the empty name stands for the only input of the signature. A feature may also be a list
            with one list of values per row.
        wanted: Names of the outputs; empty means all.

    Raises:
        InvalidRequest: The model does not have this signature, input or output.
        RecordCorrupt: A record is invalid.
    """
    signature = signature or SERVING_DEFAULT
    declared = hosted.model.signatures.get(signature)
    if declared is None:
        known = ", ".join(sorted(hosted.model.signatures))
        raise InvalidRequest(f"signature of model {hosted.name!r} is {signature!r}, expected one of {known}")
    for index, name in enumerate(wanted):
        if name not in declared.outputs:
            raise InvalidRequest(
                f"output of signature {signature!r} is {name!r}, expected one of {_names(declared.outputs)}"
            )
        if name in wanted[:index]:
            raise InvalidRequest(f"output {name!r} appears twice, expected once")
    if not inputs:
        raise InvalidRequest(
            f"the request has no inputs, expected {_names(declared.inputs)} of signature {signature!r}"
        )
    if "" in inputs:
        inputs = {_only_input(declared.inputs): inputs[""]}
    if declared.kind != "score":
        return _call_work(hosted, signature, inputs, wanted)
    named = [name for name in inputs if name in RECORD_INPUTS]
    if not named:
        return _features_work(hosted, signature, inputs, wanted)
    if len(inputs) > 1:
        others = ", ".join(sorted(map(repr, inputs)))
        raise InvalidRequest(f"inputs are {others}, expected only {named[0]!r}, which holds whole records")
    return _records_work(hosted, signature, named[0], inputs[named[0]], wanted)


def _records_work(hosted: HostedVersion, signature: str, name: str, value: Any, wanted: Sequence[str]) -> PredictWork:
    records = value.ravel().tolist() if isinstance(value, np.ndarray) else _flat(value)
    if not records:
        raise InvalidRequest(f"input {name!r} is empty, expected at least one record")
    if isinstance(value, list) and [] in value:  # its scores would move to the next rows
        raise InvalidRequest(f"input {name!r} has no record in row {value.index([])}, expected a record for each row")
    for record in records:
        if type(record) is not bytes:
            raise InvalidRequest(
                f"input {name!r} has a {type(record).__name__}, expected serialized records as byte strings "
                '(in JSON, {"b64": ...})'
            )
    kind = cast(RecordKind, RECORD_INPUTS[name])
    model, outputs = hosted.model, list(wanted) or None
    return PredictWork(
        hosted,
        key=(hosted, signature, kind, tuple(wanted)),
        rows=row_count(records, kind),
        nbytes=sum(map(len, records)),
        alone=lambda: model.predict(records, kind, signature, outputs),
        records=records,
        kind=kind,
        together=lambda every: model.predict(every, kind, signature, outputs),
    )


def _features_work(
    hosted: HostedVersion, signature: str, features: Mapping[str, Any], wanted: Sequence[str]
) -> PredictWork:
    columns = _columns(features)
    counts = {name: len(values) for name, values in columns.items()}
    if len(set(counts.values())) > 1:
        raise InvalidRequest(f"rows per feature are {counts}, expected the same number for each")
    return PredictWork(
        hosted,
        key=None,
        rows=next(iter(counts.values())),
        nbytes=sum(_nbytes(value) for value in columns.values()),
        alone=lambda: hosted.model.predict_features(columns, signature, list(wanted) or None),
    )


def _call_work(hosted: HostedVersion, signature: str, inputs: Mapping[str, Any], wanted: Sequence[str]) -> PredictWork:
    arrays = {name: _as_array(value, name) for name, value in inputs.items()}

    def alone() -> Outputs:
        found = hosted.model.call(signature, arrays)
        if absent := [name for name in wanted if name not in found]:
            raise InvalidRequest(f"output {absent[0]!r} needs inputs that are missing from the request")
        return {name: found[name] for name in wanted} if wanted else found

    return PredictWork(
        hosted,
        key=None,
        rows=max((len(array) for array in arrays.values() if array.ndim), default=0),
        nbytes=sum(array.nbytes for array in arrays.values()),
        alone=alone,
        is_score=False,
    )


def _as_array(value: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"input {name!r} is invalid ({error}), expected rows of equal length") from error


def _flat(value: Any) -> list[Any]:
    return [each for inner in value for each in _flat(inner)] if isinstance(value, list | tuple) else [value]


def _column(value: Any, name: str) -> list[Any]:
    found = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(found, list):
        return found
    raise InvalidRequest(f"feature {name!r} is a single value, expected a list with one entry per row")


def _columns(features: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return a list with one entry per row for each feature. Lists of different lengths come as values and lengths."""
    columns: dict[str, list[Any]] = {}
    for name, value in features.items():
        lengths = features.get(name + ROW_LENGTHS)
        if lengths is not None:
            columns[name] = _split(value, lengths, name)
        elif not (name.endswith(ROW_LENGTHS) and name.removesuffix(ROW_LENGTHS) in features):
            columns[name] = _column(value, name)
    return columns


def _split(value: Any, lengths: Any, name: str) -> list[Any]:
    values, counts = _column(value, name), _column(lengths, name + ROW_LENGTHS)
    is_valid = all(type(count) is int and count >= 0 for count in counts)
    if not is_valid or sum(counts) != len(values):
        raise InvalidRequest(
            f"input {name + ROW_LENGTHS!r} does not fit the {len(values)} values of {name!r}, expected lengths of rows "
            "that add up to it"
        )
    ends = itertools.accumulate(counts)
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _nbytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_nbytes, value))
    return len(value) if isinstance(value, bytes | str) else 16


def _only_input(declared: Mapping[str, Any]) -> str:
    """Return the input that values without a name belong to: the only one, or the only one that takes records."""
    records = [name for name in declared if name in RECORD_INPUTS]
    names = records if len(records) == 1 else list(declared)
    if len(names) != 1:
        raise InvalidRequest(f"the request names no input, expected one of {', '.join(names)}; name each input")
    return names[0]


def _names(declared: Mapping[str, Any]) -> str:
    return ", ".join(sorted(declared))

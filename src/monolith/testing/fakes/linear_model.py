"""``LinearModel``: a served model that is written and loaded quickly, for tests and examples of the server.

Its score is ``bias + age_weight * age + the sum of the weights of all ids``; a version is a folder with one JSON file.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import InvalidRequest, ManifestInvalid
from monolith.data import DenseFeature, Schema, SparseFeature
from monolith.data.records import messages
from monolith.data.schema import BatchParser
from monolith.data.sources.base import RecordKind
from monolith.serving.versions.loaded_model import FeatureInfo

__all__ = ["LinearModel", "example", "example_batch", "instance", "write_version"]

_FILE = "linear.json"
_SPARSE = [SparseFeature("user", slot=1, value_type="fid"), SparseFeature("item", slot=2, value_type="fid")]
_SCHEMA = Schema(sparse=_SPARSE, dense=[DenseFeature("age")])


@dataclass(frozen=True)
class _Info:
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Signature:
    kind: str
    inputs: Mapping[str, _Info]
    outputs: Mapping[str, _Info]


_RECORDS = {name: _Info("string", (-1,)) for name in ("instances", "examples", "example_batch", "tf_examples")}
_SCORE = _Info("float32", (-1,))
_SIGNATURES = {
    "serving_default": _Signature("score", _RECORDS, {"score": _SCORE, "doubled": _SCORE}),
    "single": _Signature("score", {"examples": _RECORDS["examples"]}, {"score": _SCORE}),
    "lookup": _Signature("lookup", {"ids": _Info("int64", (-1,))}, {"ids": _Info("float32", (-1, 1))}),
    "assign": _Signature(
        "hashtable_assign",
        {"ids_id": _Info("int64", (-1,)), "ids_value": _Info("float32", (-1, 1))},
        {"ids_result": _Info("int64", ())},
    ),
}


class LinearModel:
    """A linear model. Tests may wait or raise in ``before_score``, which runs before every score."""

    def __init__(self, folder: Path) -> None:
        try:
            found = json.loads((folder / _FILE).read_text())
            self._bias, self._age_weight = float(found["bias"]), float(found["age_weight"])
            self._weights = {int(name): float(weight) for name, weight in found["weights"].items()}
            self._warm_up_requests = int(found.get("warm_up_requests", 0))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ManifestInvalid(f"{folder} holds no linear model ({error}); write it with write_version") from error
        self.folder = folder
        self.is_closed = False
        self.calls: list[int] = []
        """Number of records of each call of ``predict``."""
        self.before_score: Callable[[], None] | None = None
        self._local = threading.local()

    @property
    def signatures(self) -> Mapping[str, _Signature]:
        """Signatures with all outputs, with one input and one output, and for ids."""
        return _SIGNATURES

    @property
    def features(self) -> tuple[FeatureInfo, ...]:
        """Two features of ids, and a number."""
        sparse = (
            FeatureInfo(name=name, kind="sparse", value_type="fid", dtype="int64", shape=(-1, -1))
            for name in ("user", "item")
        )
        return (*sparse, FeatureInfo(name="age", kind="dense", value_type="float32", dtype="float32", shape=(-1, 1)))

    def predict(
        self,
        records: Sequence[bytes],
        kind: RecordKind,
        signature: str = "serving_default",
        outputs: Sequence[str] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return the scores of records."""
        assert not self.is_closed
        if self.before_score is not None:
            self.before_score()
        self.calls.append(len(records))
        parsers = self._local.__dict__.setdefault("parsers", {})
        parser = parsers.pop(kind, None) or BatchParser(kind, _SCHEMA)
        batch = parser(records)
        parsers[kind] = parser
        score = self._bias + self._age_weight * batch.dense["age"][:, 0].astype(np.float64)
        for ragged in batch.ids.values():
            lists = ragged.expanded(batch.size).tolist()
            score = score + np.array([sum(self._weights.get(each, 0.0) for each in row) for row in lists])
        found = {"score": score.astype(np.float32), "doubled": (2 * score).astype(np.float32)}
        return {name: found[name] for name in outputs or _SIGNATURES[signature].outputs}

    def predict_features(
        self, features: Mapping[str, Any], signature: str = "serving_default", outputs: Sequence[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return the scores of rows given by feature: ids for ``user`` and ``item``, a number for ``age``."""
        for name in features:
            if name not in ("user", "item", "age"):
                raise InvalidRequest(f"feature is {name!r}, expected user, item or age")
        rows = len(next(iter(features.values())))
        try:
            records = [example(**{name: values[row] for name, values in features.items()}) for row in range(rows)]
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"a feature has an invalid value ({error})") from error
        return self.predict(records, "example", signature, outputs)

    def call(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return or set the weights of ids."""
        ids = np.asarray(inputs.get("ids" if signature == "lookup" else "ids_id", ()))
        if ids.dtype.kind not in "iu":
            raise InvalidRequest(f"ids are of {ids.dtype}; give int64")
        if signature == "lookup":
            return {"ids": np.array([[self._weights.get(int(each), 0.0)] for each in ids], np.float32).reshape(-1, 1)}
        values = np.asarray(inputs.get("ids_value", ()))
        if values.shape != (len(ids), 1):
            raise InvalidRequest(f"ids_value has shape {values.shape}; give ({len(ids)}, 1)")
        self._weights = {
            **self._weights,
            **{int(each): float(value[0]) for each, value in zip(ids, values, strict=True)},
        }
        return {"ids_result": np.array(len(ids), np.int64)}

    def warm_up(self) -> int:
        """Score the number of records that the file holds."""
        for _ in range(self._warm_up_requests):
            self.predict([example(user=1)], "example")
        return self._warm_up_requests

    def close(self) -> None:
        """Refuse to score from now on."""
        self.is_closed = True


def write_version(base_path: Path, version: int, *, bias: float = 0.0, age_weight: float = 0.0, **more: Any) -> Path:
    """Write a version in the folder of a model; ``weights`` are those of ids."""
    folder = base_path / str(version)
    hidden = base_path / f"temp-{version}"
    hidden.mkdir(parents=True)
    content = {"bias": bias, "age_weight": age_weight, "weights": {}, **more}
    (hidden / _FILE).write_text(json.dumps(content))
    hidden.rename(folder)
    return folder


def _ids(value: Any) -> list[int]:
    return [int(each) for each in (value if isinstance(value, list | tuple) else [value])]


def example(*, user: Any = (), item: Any = (), age: Any = None) -> bytes:
    """Return a serialized Example with these ids and this age."""
    made = messages.Example()
    for name, ids in (("user", user), ("item", item)):
        if found := _ids(ids):
            made.named_feature.add(name=name).feature.fid_v2_list.value.extend(found)
    if age is not None:
        values = age if isinstance(age, list) else [age]
        made.named_feature.add(name="age").feature.float_list.value.extend(map(float, values))
    return made.SerializeToString()


def instance(*ids: int) -> bytes:
    """Return a serialized Instance with these ids."""
    made = messages.Instance()
    made.fid.extend(ids)
    return made.SerializeToString()


def example_batch(users: Sequence[int]) -> bytes:
    """Return a serialized ExampleBatch with a row per user."""
    made = messages.ExampleBatch(batch_size=len(users))
    column = made.named_feature_list.add(name="user")
    for user in users:
        column.feature.add().fid_v2_list.value.append(user)
    return made.SerializeToString()

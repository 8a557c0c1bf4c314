"""What is asked: rows of the click model of ``bench train``, a hundred in a request. The same for all.

An id is the number of its row in one matrix of all features, so that a peer in plain PyTorch finds its rows without a
map from ids to rows, which its users would have to build.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from monolith.data.records.messages import ExampleBatch
from monolith.serving.api import messages
from monolith.serving.api.tensors import DT_STRING
from train.workload import SPARSE, Example, Ints
from train.workload import Workload as TrainWorkload

__all__ = ["FULL", "MODEL", "QUICK", "Sizes", "Workload", "example_batch"]

MODEL = "ranker"
"""What the served model is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a run is."""

    ids: int
    """Rows of the served tables; each feature has its equal share."""
    load_ids: int
    """Rows of the export whose load is timed."""
    rounds: int
    turn_s: float
    """How long a server is under load in its turn, after a part that is not counted."""
    settle_s: float
    """How long that part is."""
    p99_turn_s: float
    """The same where waits are measured: a p99 needs a thousand of them."""
    trial_s: float
    """How long each setting of a peer is tried before the clock starts; 0 = the settings that won on two cores."""
    swaps: int
    """Versions that are put in the place of others under load."""
    loads: int
    clients: int = 32
    batch: int = 100
    """Rows of a request."""
    batches: int = 64
    """Distinct requests, cycled."""
    threads: int = 2
    quick: bool = False

    @property
    def ids_per_feature(self) -> int:
        """Ids of one feature."""
        return self.ids // len(SPARSE)


FULL = Sizes(
    ids=1_040_000,
    load_ids=10_000_000,
    rounds=5,
    turn_s=4.0,
    settle_s=1.0,
    p99_turn_s=8.0,
    trial_s=2.0,
    swaps=5,
    loads=5,
)
QUICK = Sizes(
    ids=104_000,
    load_ids=260_000,
    rounds=1,
    turn_s=1.2,
    settle_s=0.3,
    p99_turn_s=1.5,
    trial_s=0.0,
    swaps=2,
    loads=2,
    quick=True,
)


class Workload(TrainWorkload):
    """The requests and the rows of one run."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)  # type: ignore[arg-type]  # it reads what both have

    def ids(self, feature: int, rows: Ints | None = None) -> Ints:
        """Return the ids of a feature's row numbers, or of all of them: 1 and up, feature after feature."""
        size = self.sizes.ids_per_feature
        numbers = np.arange(size) if rows is None else rows
        found: Ints = (numbers + feature * size + 1).astype(np.int64)
        return found

    def write_requests(self, folder: Path, examples: Sequence[Example]) -> Mapping[str, Path]:
        """Write the requests in every form that a contestant takes, one file a form; return the files.

        ``example_batch``: the serialized message. ``features``: JSON of ids and numbers, row by row. ``base64``: the
        message as text in JSON. ``rest`` and ``grpc``: the message as a model server takes it.
        """
        forms: dict[str, list[bytes]] = {name: [] for name in ("example_batch", "features", "base64", "rest", "grpc")}
        for example in examples:
            record = example_batch(example)
            text = base64.b64encode(record).decode()
            values = {"ids": (example.rows + 1).tolist(), "dense": example.dense.tolist()}
            forms["example_batch"].append(record)
            forms["features"].append(json.dumps(values, separators=(",", ":")).encode())
            forms["base64"].append(json.dumps({"records": text}).encode())
            forms["rest"].append(json.dumps({"inputs": {"example_batch": [{"b64": text}]}}).encode())
            forms["grpc"].append(_predict_request(record))
        files = {name: folder / f"requests.{name}" for name in forms}
        for name, bodies in forms.items():
            files[name].write_bytes(b"".join(struct.pack("<I", len(body)) + body for body in bodies))
        return files


def _predict_request(record: bytes) -> bytes:
    request = messages.PredictRequest()
    request.model_spec.name = MODEL
    tensor = request.inputs["example_batch"]
    tensor.dtype = DT_STRING  # type: ignore[assignment]
    tensor.tensor_shape.dim.add().size = 1
    tensor.string_val.append(record)
    return request.SerializeToString()


def example_batch(example: Example) -> bytes:
    """Return the rows as one serialized ExampleBatch."""
    found = ExampleBatch(batch_size=len(example.label))
    for name in SPARSE:
        column = found.named_feature_list.add(name=name)
        for one in example.ours.ids[name].values.tolist():
            column.feature.add().fid_v2_list.value.append(one)
    column = found.named_feature_list.add(name="numbers")
    for row in example.dense.tolist():
        column.feature.add().float_list.value.extend(row)
    return bytes(found.SerializeToString())

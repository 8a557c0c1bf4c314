"""The served model in plain PyTorch, and the bodies of requests that it reads: what both peers run.

Its rows are one matrix, an id is the number of its row, and nothing is trained: the fastest that eager PyTorch has.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from monolith.data import BatchParser, DenseFeature, Schema, SparseFeature
from monolith.data.records.messages import ExampleBatch
from train.contestants import Network, PlainNetwork
from train.workload import DENSE, DIM, SPARSE

__all__ = ["FORMS", "PARSERS", "PeerModel", "save"]

FORMS = ("example_batch", "base64", "features")
"""What a body may be."""
PARSERS = ("protobuf", "monolith")
"""Who reads an ExampleBatch: the classes that protoc makes, as everybody has them, or our native parser."""


def save(path: Path, rows: Tensor, network: Network) -> None:
    """Write the weights."""
    torch.save({"rows": rows, "network": network.plain_state()}, path)


class PeerModel:
    """Scores bodies.

    Args:
        path: The weights.
        form: What bodies are.
        parser: Who reads them.
        threads: Threads of PyTorch.
    """

    def __init__(self, path: str, form: str, parser: str, threads: int) -> None:
        torch.set_num_threads(threads)
        saved = torch.load(path, mmap=True)  # the processes of one machine share the rows
        self._rows: Tensor = saved["rows"]
        self._network = PlainNetwork()
        self._network.load_state_dict(saved["network"])
        self._network.eval()
        self._form = form
        schema = Schema(
            sparse=[SparseFeature(name, slot=place + 1) for place, name in enumerate(SPARSE)],
            dense=[DenseFeature("numbers", DENSE)],
        )
        self._parse = BatchParser("example_batch", schema)
        self._of_record = self._of_message if parser == "protobuf" else self._of_ours

    @classmethod
    def of_environment(cls, values: Mapping[str, str]) -> PeerModel:
        """Return what the variables of a peer's process ask for."""
        return cls(values["PEER_MODEL"], values["PEER_FORM"], values["PEER_PARSER"], int(values["PEER_THREADS"]))

    def read(self, body: Any) -> tuple[Tensor, Tensor]:
        """Return ids and numbers of a body: bytes, or the object that JSON is."""
        if self._form == "example_batch":
            return self._of_record(body)
        found = json.loads(body) if isinstance(body, bytes) else body
        if self._form == "base64":
            return self._of_record(base64.b64decode(found["records"]))
        return torch.tensor(found["ids"]), torch.tensor(found["dense"])

    def _of_message(self, record: bytes) -> tuple[Tensor, Tensor]:
        columns = {column.name: column.feature for column in ExampleBatch.FromString(record).named_feature_list}
        ids = [[each.fid_v2_list.value[0] for each in columns[name]] for name in SPARSE]
        dense = [each.float_list.value for each in columns["numbers"]]
        return torch.from_numpy(np.array(ids).T), torch.from_numpy(np.array(dense, np.float32))

    def _of_ours(self, record: bytes) -> tuple[Tensor, Tensor]:
        batch = self._parse([record])
        columns = [np.asarray(batch.ids[name].values) for name in SPARSE]
        return torch.from_numpy(np.stack(columns, axis=1)), torch.from_numpy(batch.dense["numbers"].copy())

    @torch.inference_mode()
    def score(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Return the probability of every row."""
        rows = torch.nn.functional.embedding(ids, self._rows)
        vectors, biases = rows[:, :, :DIM], rows[:, :, DIM]
        said: Tensor = torch.sigmoid(self._network(vectors, biases.sum(dim=1), dense))
        return said

"""A model server of TensorFlow Serving's API that takes assignments, or fails in a way of the test's choice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from monolith.rpc import grpc
from monolith.rpc.security import Security
from monolith.serving.api import messages
from monolith.serving.api.tensors import make_tensor, read_tensor


class PushTargetServer:
    """Holds what it was assigned. ``behave`` may answer in its place, wait, or raise."""

    def __init__(self, security: Security | None = None) -> None:
        self.rows: dict[tuple[str, int], list[float]] = {}
        self.requests: list[tuple[str, int, int]] = []
        """Signature, ids and bytes of every request that was answered well."""
        self.touched: list[int] = []
        self.keeps = True
        self.version = 1
        self.refusals = 0
        self.behave: Callable[[], bytes | None] = lambda: None
        self.changed = threading.Condition()
        self._security = security or Security()
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        handlers = {messages.PREDICTION_SERVICE: grpc.bytes_handlers({"Predict": self._predict})}
        self._workers = ThreadPoolExecutor(4)
        self._server = grpc.make_server(self._workers, handlers, self._security, 4 << 20)
        self.port = grpc.bind(self._server, f"127.0.0.1:{self.port}", self._security)
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait()
        self._workers.shutdown()

    def wait(self, condition: Callable[[], Any]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 60), (self.rows, self.requests)

    def _predict(self, payload: bytes, context: Any) -> bytes:
        try:
            instead = self.behave()
        except Exception as error:
            with self.changed:
                self.refusals += 1
                self.changed.notify_all()
            grpc.abort(context, 3, str(error))
        if instead is not None:
            with self.changed:
                self.refusals += 1
                self.changed.notify_all()
            return instead
        request = messages.PredictRequest.FromString(payload)
        inputs = {name: read_tensor(tensor, name) for name, tensor in request.inputs.items()}
        signature = request.model_spec.signature_name
        with self.changed:
            results = self._by_name(inputs) if signature == "hashtable_assign" else self._flat(signature, inputs)
            ids = sum(len(value) for name, value in inputs.items() if name == "id" or name.endswith("_id"))
            self.requests.append((signature, ids, len(payload)))
            self.changed.notify_all()
        answer = messages.PredictResponse()
        answer.model_spec.name = request.model_spec.name
        answer.model_spec.version.value = self.version
        for name, number in results.items():
            answer.outputs[name].CopyFrom(make_tensor(np.array(number, np.int64)))
        return answer.SerializeToString()

    def _by_name(self, inputs: dict[str, Any]) -> dict[str, int]:
        tables = sorted(name.removesuffix("_id") for name in inputs if name.endswith("_id"))
        for table in tables:
            self._set(table, inputs[f"{table}_id"], inputs[f"{table}_value"])
        return {f"{table}_result": len(inputs[f"{table}_id"]) for table in tables}

    def _flat(self, signature: str, inputs: dict[str, Any]) -> dict[str, int]:
        bounds = inputs["id_split"].tolist()
        names = ["item", "user"] if len(bounds) == 3 else [signature.removesuffix("/raw_assign")]
        values = inputs["flat_value"].reshape(-1, 2)
        for name, begin, end in zip(names, bounds[:-1], bounds[1:], strict=True):
            self._set(name, inputs["id"][begin:end], values[begin:end])
        return {"result": 0}

    def _set(self, table: str, ids: Any, values: Any) -> None:
        assert len(ids) == len(values)
        if not self.keeps:
            return
        assert len(set(ids.tolist())) == len(ids)
        self.touched += ids.tolist()
        self.rows |= {(table, int(fid)): row.tolist() for fid, row in zip(ids, values, strict=True)}

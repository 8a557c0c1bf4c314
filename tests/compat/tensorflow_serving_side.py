"""The stock client of TensorFlow Serving in its own interpreter, with TensorFlow, and with Monolith beside them.

Answers JSON lines.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format, text_format
from json_lines import answer_lines
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from monolith.serving import ModelConfig, ModelServer, ServingConfig, servable_loader
from monolith.testing.fakes.linear_model import example, example_batch, instance, write_version
from monolith.testing.processes.linear_server import LinearServer

_LONG_S = 120.0
_USERS = [(1 << 48) | 7, (1 << 48) | 8]


class Stock:
    """The stock stubs, which send through this; keeps the path and the bytes of every call."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self.prediction: Any = prediction_service_pb2_grpc.PredictionServiceStub(self)
        self.model: Any = model_service_pb2_grpc.ModelServiceStub(self)
        self.said: list[tuple[str, bytes]] = []

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[[Any], Any]:
        send = self._channel.unary_unary(method, request_serializer, response_deserializer)

        def call(request: Any) -> Any:
            self.said.append((method, request.SerializeToString(deterministic=True)))
            return send(request, timeout=_LONG_S)

        return call

    def close(self) -> None:
        self._channel.close()


# --- requests ---


def predict_request(
    inputs: dict[str, Any],
    *,
    name: str = "m",
    signature: str = "",
    version: int | None = None,
    label: str = "",
    outputs: tuple[str, ...] = (),
) -> Any:
    request = predict_pb2.PredictRequest(output_filter=outputs)
    request.model_spec.name = name
    if signature:
        request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    if label:
        request.model_spec.version_label = label
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return request


def metadata_request(name: str, *fields: str, version: int | None = None) -> Any:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    request.model_spec.name = name
    if version is not None:
        request.model_spec.version.value = version
    return request


def status_request(name: str, version: int | None = None) -> Any:
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = name
    if version is not None:
        request.model_spec.version.value = version
    return request


def reload_request(text: str) -> Any:
    request = model_management_pb2.ReloadConfigRequest()
    text_format.Parse(text, request.config)
    return request


def tf_example() -> Any:
    feature = {
        "user": tf.train.Feature(int64_list=tf.train.Int64List(value=[7])),
        "age": tf.train.Feature(float_list=tf.train.FloatList(value=[2.0])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature))


def refused_requests() -> dict[str, Any]:
    """What TensorFlow's own signatures are asked with, by method."""
    classify, regress = classification_pb2.ClassificationRequest(), regression_pb2.RegressionRequest()
    several = inference_pb2.MultiInferenceRequest()
    for request in (classify, regress, several):
        request.input.example_list.examples.append(tf_example())
    classify.model_spec.name = regress.model_spec.name = "m"
    several.tasks.add(method_name="tensorflow/serving/classify").model_spec.name = "m"
    return {"Classify": classify, "Regress": regress, "MultiInference": several}


BOTH_VERSIONS = (
    'model_config_list { config { name: "m" base_path: "m" model_platform: "tensorflow"'
    ' model_version_policy { all { } } version_labels { key: "stable" value: 1 } } }'
)


def calls() -> dict[str, tuple[str, Any]]:
    """What is recorded: name to method and request, in order. The model and its two versions are linear ones."""
    first, second = _USERS
    records = [example(user=first), example(user=second, age=2)]
    good = {"examples": records}
    predicts = {
        "examples": predict_request(good),
        "one example": predict_request({"examples": records[:1]}),
        "instances": predict_request({"instances": [instance((1 << 54) | 7), instance((1 << 54) | 8)]}),
        "an ExampleBatch": predict_request({"example_batch": [example_batch(_USERS)]}),
        "tf.Examples": predict_request({"tf_examples": [tf_example().SerializeToString(deterministic=True)] * 2}),
        "features by name": predict_request({"user": np.array([[first], [second]]), "age": np.array([2.0, 4.0], "f")}),
        "one row of features": predict_request({"user": np.array([[first]]), "age": np.array([2.0], "f")}),
        "an output filter": predict_request(good, outputs=("doubled",)),
        "a signature": predict_request(good, signature="single"),
        "ids": predict_request({"ids": np.array([first, second, 5])}, signature="lookup"),
        "a version": predict_request(good, version=1),
        "a label": predict_request(good, label="stable"),
        "no such model": predict_request(good, name="n"),
        "no such version": predict_request(good, version=9),
        "no such label": predict_request(good, label="canary"),
        "no such signature": predict_request(good, signature="x"),
        "no such output": predict_request(good, outputs=("x",)),
        "no such input": predict_request({"colour": np.array([1])}),
        "no inputs": predict_request({}),
        "no name": predict_request(good, name=""),
        "floats for records": predict_request({"examples": np.array([1.0, 2.0], "f")}),
        "complex numbers": predict_request({"age": np.array([1j, 2j])}),
        "a record that is none": predict_request({"examples": [b"\xff"]}),
    }
    return {
        "the models": ("HandleReloadConfigRequest", reload_request(BOTH_VERSIONS)),
        **{name: ("Predict", request) for name, request in predicts.items()},
        "metadata": ("GetModelMetadata", metadata_request("m", "signature_def")),
        "metadata of a version": ("GetModelMetadata", metadata_request("m", "signature_def", version=1)),
        "metadata of another field": ("GetModelMetadata", metadata_request("m", "x")),
        "status": ("GetModelStatus", status_request("m")),
        "status of a version": ("GetModelStatus", status_request("m", 1)),
        "status of no such model": ("GetModelStatus", status_request("n")),
        "a reload of nothing": ("HandleReloadConfigRequest", model_management_pb2.ReloadConfigRequest()),
        "a reload without a folder": (
            "HandleReloadConfigRequest",
            reload_request('model_config_list { config { name: "x" } }'),
        ),
        **{method: (method, request) for method, request in refused_requests().items()},
    }


# --- what is done with them ---


def asked(stock: Stock, method: str, request: Any) -> dict[str, Any]:
    """Return the answer as the stock client read it, or the status."""
    service = stock.model if hasattr(stock.model, method) else stock.prediction
    try:
        answer = getattr(service, method)(request)
    except grpc.RpcError as error:
        return {"code": error.code().name, "says": error.details()}  # type: ignore[attr-defined]
    return {"code": "OK", "answer": read(answer)}


def read(answer: Any) -> Any:
    if isinstance(answer, predict_pb2.PredictResponse):
        return {
            "model_spec": plain(answer.model_spec),
            "outputs": {key: array(answer.outputs[key]) for key in answer.outputs},
        }
    if isinstance(answer, get_model_metadata_pb2.GetModelMetadataResponse):
        found = get_model_metadata_pb2.SignatureDefMap()
        assert answer.metadata["signature_def"].Unpack(found)
        return {"model_spec": plain(answer.model_spec), **plain(found)}
    return plain(answer)


def plain(message: Any) -> Any:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def array(tensor: Any) -> dict[str, Any]:
    found = tf.make_ndarray(tensor)
    return {"dtype": str(found.dtype), "shape": list(found.shape), "values": found.reshape(-1).tolist()}


def record() -> list[dict[str, Any]]:
    """Let the stock client talk to our server, in this process, and return what both said."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            weights = {str(_USERS[0]): 2.0, str(_USERS[1]): 4.0}
            write_version(Path("m"), 1, bias=0.5, age_weight=0.25, weights=weights)
            write_version(Path("m"), 2, bias=1.5, age_weight=0.25, weights=weights)
            served = LinearServer(Path())
            served.start()
            stock = Stock(served.server.address)
            try:
                return [_recorded(stock, name, *call) for name, call in calls().items()]
            finally:
                stock.close()
                served.server.stop()
        finally:
            os.chdir(home)


def _recorded(stock: Stock, name: str, method: str, request: Any) -> dict[str, Any]:
    found = asked(stock, method, request)
    found.pop("says", None)  # words may change
    path, sent = stock.said[-1]
    return {"name": name, "path": path, "request": base64.b64encode(sent).decode(), **found}


def score(address: str, model: str, records: dict[str, list[str]]) -> dict[str, Any]:
    """Return the scores of records, which are given as base64, by the name of their input."""
    stock = Stock(address)
    try:
        found = {}
        for name, texts in records.items():
            request = predict_request({name: [base64.b64decode(text) for text in texts]}, name=model)
            outputs = stock.prediction.Predict(request).outputs
            found[name] = {key: tf.make_ndarray(value).reshape(-1).tolist() for key, value in outputs.items()}
        return found
    finally:
        stock.close()


def describe(address: str, model: str) -> dict[str, Any]:
    """Return status, metadata and what the methods say that are not served."""
    stock = Stock(address)
    try:
        requests = {
            "GetModelStatus": status_request(model),
            "GetModelMetadata": metadata_request(model, "signature_def"),
            **refused_requests(),
        }
        return {method: asked(stock, method, request) for method, request in requests.items()}
    finally:
        stock.close()


def reload(address: str, text: str) -> dict[str, Any]:
    """Give the server another set of models."""
    stock = Stock(address)
    try:
        return asked(stock, "HandleReloadConfigRequest", reload_request(text))
    finally:
        stock.close()


def score_here(folder: str, model: str, records: dict[str, list[str]]) -> dict[str, Any]:
    """The same, of an exported model that is served in this process."""
    config = ServingConfig(models=[ModelConfig(name=model, base_path=Path(folder))], port=0, rest_port=None)
    with ModelServer(config, servable_loader()) as server:
        assert server.models.wait_until_settled(_LONG_S)
        return score(server.address, model, records)


if __name__ == "__main__":
    answer_lines({each.__name__: each for each in (record, score, describe, reload, score_here)}, grpc.RpcError)

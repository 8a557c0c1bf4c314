"""Send Predict requests of recorded or random data to a model server.

Main types: ``PredictionClient``, ``read_request`` (a file to the input of a request),
``make_record_tensor`` (serialised records as a one-dimensional tensor of texts).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from monolith.agent.messages import (
    GetModelMetadataRequest,
    GetModelMetadataResponse,
    GetModelStatusRequest,
    GetModelStatusResponse,
    ModelServerConfig,
    PredictRequest,
    PredictResponse,
    ReloadConfigRequest,
    ReloadConfigResponse,
    TensorProto,
    make_model_spec,
    parse_text,
)
from monolith.core.errors import ConfigError
from monolith.data.records.convert import batch_to_instances
from monolith.data.records.formatter import parse_record
from monolith.data.records.framing import Framing
from monolith.data.records.generate import random_instance
from monolith.data.records.messages import ExampleBatch, Instance, parse_message
from monolith.data.records.reader import read_records
from monolith.rpc import grpc
from monolith.rpc.security import Security

__all__ = [
    "DT_STRING",
    "INPUT_TYPES",
    "PredictionClient",
    "PredictionInput",
    "make_instance_tensor",
    "make_record_tensor",
    "random_instances",
    "read_request",
]

DT_STRING = 7
"""TensorFlow's number of the type."""

INPUT_TYPES = ("json", "pbtext", "dump", "binary", "instance", "example_batch", "example_batch_to_instance")
"""Formats of an input file."""

_TIMEOUT_S = 30.0
_MAX_MESSAGE_BYTES = 256 << 20
_MODEL = "tensorflow.serving.ModelService"
_PREDICTION = "tensorflow.serving.PredictionService"
_RANDOM_SIZES = (5,) * 6

PredictionInput = tuple[str, list[bytes]]
"""Name of an input and its serialized records."""


def random_instances(count: int = 256, *, seed: int = 0) -> list[bytes]:
    """Return serialized instances with 6 slots of 5 ids each."""
    return [random_instance(None, _RANDOM_SIZES, seed=seed * count + each).SerializeToString() for each in range(count)]


def read_request(
    path: Path | None, input_type: str, *, batch_size: int = 8, framing: Framing | None = None
) -> PredictionInput:
    """Return the input of a request.

    Args:
        path: The file; None = random instances.
        input_type: json, pbtext, dump (text of one instance), binary (bytes of one instance), instance (framed
            instances), example_batch (sent as it is), example_batch_to_instance.
        batch_size: Number of rows of random or framed data; a text is repeated to it.
        framing: Header of framed records.

    Raises:
        ConfigError: The input type is unknown.
        RecordCorrupt: The file has another format.
    """
    if input_type not in INPUT_TYPES:
        raise ConfigError(f"input_type is {input_type!r}, expected one of {', '.join(INPUT_TYPES)}; give one of these")
    if path is None:
        return "instances", random_instances(batch_size)
    if input_type in ("json", "pbtext", "dump"):
        style: Any = "pbtxt" if input_type == "pbtext" else input_type
        instance = parse_record(path.read_text(encoding="utf-8"), "instance", style, source=str(path))
        return "instances", [instance.SerializeToString()] * batch_size
    if input_type == "binary":
        parse_message(Instance, path.read_bytes(), str(path))
        return "instances", [path.read_bytes()] * batch_size
    if input_type == "instance":
        records = []
        for record in read_records(path, framing=framing):
            records.append(record)
            if len(records) == batch_size:
                break
        return "instances", records
    batch = _read_batch(path, framing)
    if input_type == "example_batch":
        return "example_batch", [batch.SerializeToString()]
    return "instances", [each.SerializeToString() for each in batch_to_instances(batch)]


def _read_batch(path: Path, framing: Framing | None) -> ExampleBatch:
    if path.suffix in (".pbtxt", ".pbtext", ".json", ".txt"):
        result: ExampleBatch = parse_record(path.read_text(encoding="utf-8"), "example_batch", source=str(path))
        return result
    return parse_message(ExampleBatch, next(iter(read_records(path, framing=framing)), b""), str(path))


def make_record_tensor(records: Sequence[bytes]) -> TensorProto:
    """Return serialised records as a tensor with one dimension.

    Raises:
        ConfigError: There is no record.
    """
    if not records:
        raise ConfigError("records are [], expected at least one; give a record")
    tensor = TensorProto(dtype=DT_STRING)  # type: ignore[arg-type]
    tensor.tensor_shape.dim.add(size=len(records))
    tensor.string_val.extend(records)
    return tensor


def make_instance_tensor(text: str, count: int = 1, *, source: str = "text") -> TensorProto:
    """Return one instance, repeated, as a tensor.

    Args:
        text: The instance as JSON, protobuf text or key dump.
        count: Size of the tensor.
        source: Name of the text, for errors.

    Raises:
        RecordCorrupt: The text is not an instance.
    """
    return make_record_tensor([parse_record(text, "instance", source=source).SerializeToString()] * count)


class PredictionClient:
    """A client of one model server; also a context manager.

    Args:
        address: ``host:port`` of its gRPC port.
        timeout_s: Deadline of one call.
        security: Token and TLS of the calls.
    """

    def __init__(self, address: str, *, timeout_s: float = _TIMEOUT_S, security: Security | None = None) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._channel = grpc.open_channel(address, security or Security(), _MAX_MESSAGE_BYTES)
        self._verbs = {
            "GetModelStatus": (_MODEL, GetModelStatusRequest, GetModelStatusResponse),
            "HandleReloadConfigRequest": (_MODEL, ReloadConfigRequest, ReloadConfigResponse),
            "GetModelMetadata": (_PREDICTION, GetModelMetadataRequest, GetModelMetadataResponse),
            "Predict": (_PREDICTION, PredictRequest, PredictResponse),
        }

    def status(self, model: str) -> GetModelStatusResponse:
        """Return the statuses of a model."""
        request = GetModelStatusRequest()
        request.model_spec.CopyFrom(make_model_spec(model))
        result: GetModelStatusResponse = self._call("GetModelStatus", request)
        return result

    def metadata(self, model: str) -> GetModelMetadataResponse:
        """Return the signatures of a model."""
        request = GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.CopyFrom(make_model_spec(model))
        result: GetModelMetadataResponse = self._call("GetModelMetadata", request)
        return result

    def reload(self, text: str, source: str) -> ReloadConfigResponse:
        """Replace the models of the server by the ModelServerConfig of a text."""
        config = ModelServerConfig()
        parse_text(text, config, source)
        result: ReloadConfigResponse = self._call("HandleReloadConfigRequest", ReloadConfigRequest(config=config))
        return result

    def predict(self, model: str, given: PredictionInput, signature: str = "serving_default") -> PredictResponse:
        """Return the outputs for an input."""
        request = PredictRequest()
        request.model_spec.CopyFrom(make_model_spec(model, signature_name=signature))
        request.inputs[given[0]].CopyFrom(make_record_tensor(given[1]))
        result: PredictResponse = self._call("Predict", request)
        return result

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, verb: str, request: Any) -> Any:
        service, kind, answer = self._verbs[verb]
        method = self._channel.unary_unary(
            f"/{service}/{verb}", request_serializer=kind.SerializeToString, response_deserializer=answer.FromString
        )
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.CallError as error:
            raise grpc.translate_error(error, verb, self.address) from error

"""TensorFlow Serving's messages and the methods of its services.

The classes live in the project's private descriptor pool, so that a process can also import ``tensorflow`` and
``tensorflow-serving-api``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith._proto.messages import message_class, parse_text, write_text
from monolith.data.records.messages import STANDARD

if TYPE_CHECKING:
    from monolith._proto.health_pb2 import HealthCheckRequest, HealthCheckResponse
    from monolith._proto.tensorflow.core.framework.tensor_pb2 import TensorProto, TensorShapeProto
    from monolith._proto.tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
    from monolith._proto.tensorflow_serving.apis_pb2 import (
        GetModelMetadataRequest,
        GetModelMetadataResponse,
        GetModelStatusRequest,
        GetModelStatusResponse,
        ModelSpec,
        ModelVersionStatus,
        PredictionLog,
        PredictRequest,
        PredictResponse,
        ReloadConfigRequest,
        ReloadConfigResponse,
        SignatureDefMap,
    )
    from monolith._proto.tensorflow_serving.config_pb2 import (
        BatchingParameters,
        ModelConfig,
        ModelServerConfig,
        MonitoringConfig,
        SSLConfig,
    )

__all__ = [
    "HEALTH_METHODS",
    "HEALTH_SERVICE",
    "MODEL_METHODS",
    "MODEL_SERVICE",
    "PREDICTION_METHODS",
    "PREDICTION_SERVICE",
    "BatchingParameters",
    "GetModelMetadataRequest",
    "GetModelMetadataResponse",
    "GetModelStatusRequest",
    "GetModelStatusResponse",
    "HealthCheckRequest",
    "HealthCheckResponse",
    "ModelConfig",
    "ModelServerConfig",
    "ModelSpec",
    "ModelVersionStatus",
    "MonitoringConfig",
    "PredictRequest",
    "PredictResponse",
    "PredictionLog",
    "ReloadConfigRequest",
    "ReloadConfigResponse",
    "SSLConfig",
    "SignatureDef",
    "SignatureDefMap",
    "TensorProto",
    "TensorShapeProto",
    "parse_text",
    "write_text",
]

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
"""Service of predictions and signatures."""
MODEL_SERVICE = "tensorflow.serving.ModelService"
"""Service of version states and reloads."""
HEALTH_SERVICE = "grpc.health.v1.Health"
"""gRPC's standard health check."""

_TENSORFLOW = ("TensorProto", "TensorShapeProto", "SignatureDef")
_HEALTH = ("HealthCheckRequest", "HealthCheckResponse")


def _message(name: str) -> type[Any]:
    package = "tensorflow" if name in _TENSORFLOW else "grpc.health.v1" if name in _HEALTH else "tensorflow.serving"
    return message_class(STANDARD.pool, f"{package}.{name}")


def _pair(stem: str) -> tuple[type[Any], type[Any]]:
    return _message(f"{stem}Request"), _message(f"{stem}Response")


PREDICTION_METHODS: dict[str, tuple[type[Any], type[Any]]] = {
    "Predict": _pair("Predict"),
    "GetModelMetadata": _pair("GetModelMetadata"),
}
"""Method to the classes of its request and response."""
MODEL_METHODS: dict[str, tuple[type[Any], type[Any]]] = {
    "GetModelStatus": _pair("GetModelStatus"),
    "HandleReloadConfigRequest": _pair("ReloadConfig"),
}
"""Methods of ``MODEL_SERVICE``."""
HEALTH_METHODS: dict[str, tuple[type[Any], type[Any]]] = {"Check": _pair("HealthCheck")}
"""Methods of ``HEALTH_SERVICE``."""

if not TYPE_CHECKING:
    globals().update({name: _message(name) for name in __all__ if name[0].isupper() and not name.isupper()})

"""Make the TensorFlow Serving messages that an agent speaks.

The classes live in the private descriptor pool of ``monolith.data.records``, so that TensorFlow may be loaded in the
same process. ``agent`` imports no server, so ``serving.messages`` is out of its reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith._proto.messages import message_class, parse_text, write_text
from monolith.agent.records import ModelState
from monolith.data.records.messages import STANDARD

if TYPE_CHECKING:
    from monolith._proto.tensorflow.core.framework.tensor_pb2 import TensorProto
    from monolith._proto.tensorflow_serving.apis_pb2 import (
        GetModelMetadataRequest,
        GetModelMetadataResponse,
        GetModelStatusRequest,
        GetModelStatusResponse,
        ModelSpec,
        ModelVersionStatus,
        PredictRequest,
        PredictResponse,
        ReloadConfigRequest,
        ReloadConfigResponse,
        StatusProto,
    )
    from monolith._proto.tensorflow_serving.config_pb2 import BatchingParameters, ModelConfig, ModelServerConfig

__all__ = [
    "BatchingParameters",
    "GetModelMetadataRequest",
    "GetModelMetadataResponse",
    "GetModelStatusRequest",
    "GetModelStatusResponse",
    "ModelConfig",
    "ModelServerConfig",
    "ModelSpec",
    "ModelVersionStatus",
    "PredictRequest",
    "PredictResponse",
    "ReloadConfigRequest",
    "ReloadConfigResponse",
    "StatusProto",
    "TensorProto",
    "make_model_spec",
    "make_status",
    "make_version_status",
    "parse_text",
    "write_text",
]

if not TYPE_CHECKING:
    for _name in __all__:
        if _name[0].isupper():
            _package = "tensorflow" if _name == "TensorProto" else "tensorflow.serving"
            globals()[_name] = message_class(STANDARD.pool, f"{_package}.{_name}")


def make_model_spec(name: str, version: int | str | None = None, signature_name: str | None = None) -> ModelSpec:
    """Return the name of a model in a request; a number selects a version, a text selects a label."""
    spec = ModelSpec(name=name)
    if isinstance(version, str):
        spec.version_label = version
    elif version is not None:
        spec.version.value = version
    if signature_name is not None:
        spec.signature_name = signature_name
    return spec


def make_status(code: int = 0, message: str = "") -> StatusProto:
    """Return a status with a gRPC code."""
    status: Any = StatusProto(error_message=message)
    status.error_code = code
    return status  # type: ignore[no-any-return]


def make_version_status(
    version: int, state: ModelState = ModelState.UNKNOWN, code: int = 0, message: str = ""
) -> ModelVersionStatus:
    """Return the status of one version."""
    status: Any = ModelVersionStatus(version=version, status=make_status(code, message))
    status.state = int(state)
    return status  # type: ignore[no-any-return]

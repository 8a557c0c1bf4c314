"""Encode signatures and version states as protobuf messages and as JSON, in TensorFlow Serving's forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monolith.serving.api import messages
from monolith.serving.api.tensors import data_type, dtype_name
from monolith.serving.versions.hosted_version import HostedVersion, VersionStatus
from monolith.serving.versions.loaded_model import LoadedModel, TensorView

__all__ = ["metadata_json", "model_spec", "models_json", "signature_map", "status_json", "status_message"]

_METHOD = "tensorflow/serving/predict"


def model_spec(hosted: HostedVersion, signature: str = "") -> messages.ModelSpec:
    """Return the model spec of a version."""
    spec = messages.ModelSpec(name=hosted.name, signature_name=signature)
    spec.version.value = hosted.version
    return spec


def signature_map(model: LoadedModel) -> messages.SignatureDefMap:
    """Return the signatures of a model as a message."""
    found = messages.SignatureDefMap()
    for name, signature in model.signatures.items():
        definition = found.signature_def[name]
        definition.method_name = _METHOD
        for side, tensors in ((definition.inputs, signature.inputs), (definition.outputs, signature.outputs)):
            for key, info in tensors.items():
                side[key].name = f"{key}:0"
                side[key].dtype = data_type(info.dtype)  # type: ignore[assignment]
                for size in info.shape:
                    side[key].tensor_shape.dim.add(size=size)
    return found


def metadata_json(hosted: HostedVersion) -> dict[str, Any]:
    """Return the JSON response of ``/metadata``."""
    signatures = {
        name: {
            "inputs": {key: _info_json(key, info) for key, info in signature.inputs.items()},
            "outputs": {key: _info_json(key, info) for key, info in signature.outputs.items()},
            "method_name": _METHOD,
        }
        for name, signature in hosted.model.signatures.items()
    }
    return {
        "model_spec": {"name": hosted.name, "signature_name": "", "version": str(hosted.version)},
        "metadata": {
            "signature_def": {"signature_def": signatures},
            "features": [
                {"name": each.name, "kind": each.kind, "value_type": each.value_type} for each in hosted.model.features
            ],
        },
    }


def models_json(models: Mapping[str, Sequence[VersionStatus]]) -> dict[str, Any]:
    """Return the JSON response of ``/v1/models``: name to the states of its versions, newest first."""
    return {"models": [{"name": name, **status_json(statuses)} for name, statuses in models.items()]}


def _info_json(name: str, info: TensorView) -> dict[str, Any]:
    dims = [{"size": str(size), "name": ""} for size in info.shape]
    return {
        "dtype": dtype_name(data_type(info.dtype)),
        "tensor_shape": {"dim": dims, "unknown_rank": False},
        "name": f"{name}:0",
    }


def status_message(statuses: Sequence[VersionStatus]) -> messages.GetModelStatusResponse:
    """Return the response of GetModelStatus."""
    answer = messages.GetModelStatusResponse()
    for each in statuses:
        found = answer.model_version_status.add(version=each.version, state=int(each.state))
        found.status.error_code = int(each.code)  # type: ignore[assignment]
        found.status.error_message = each.message
    return answer


def status_json(statuses: Sequence[VersionStatus]) -> dict[str, Any]:
    """Return the JSON response of a status request."""
    return {
        "model_version_status": [
            {
                "version": str(each.version),
                "state": each.state.name,
                "status": {"error_code": each.code.name, "error_message": each.message},
            }
            for each in statuses
        ]
    }

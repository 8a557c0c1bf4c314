"""Recorded requests of TensorFlow Serving's stock client get the recorded answers, byte by byte.

``make test-compat`` holds ``stock_client.json`` against the client itself, and writes it.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from monolith.serving.api import messages
from monolith.serving.api.tensors import read_tensor
from monolith.testing.fakes.linear_model import write_version
from monolith.testing.processes.linear_server import LinearServer

RECORDED = json.loads(Path(__file__).with_name("stock_client.json").read_text())
RESPONSES = {
    "HandleReloadConfigRequest": messages.ReloadConfigResponse,
    "GetModelStatus": messages.GetModelStatusResponse,
    "Predict": messages.PredictResponse,
    "GetModelMetadata": messages.GetModelMetadataResponse,
}


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """Leads to a server with the models of the recording, whose folders are named from where it runs."""
    folder, home = tmp_path_factory.mktemp("recorded"), Path.cwd()
    weights = {str((1 << 48) | 7): 2.0, str((1 << 48) | 8): 4.0}
    os.chdir(folder)
    served = LinearServer(Path())
    try:
        for version in (1, 2):
            write_version(Path("m"), version, bias=version - 0.5, age_weight=0.25, weights=weights)
        served.start()
        options = [("grpc.enable_http_proxy", 0)]
        with grpc.insecure_channel(served.server.address, options=options) as channel:
            assert said(channel, RECORDED[0])["code"] == "OK"  # both versions, and a label
            yield channel
    finally:
        served.server.stop(0.0)
        os.chdir(home)


def said(channel: grpc.Channel, recorded: dict[str, Any]) -> dict[str, Any]:
    """Send a recorded request; return the answer in the form of the recording."""
    request = base64.b64decode(recorded["request"])
    try:
        answer = channel.unary_unary(recorded["path"])(request, timeout=60)
    except grpc.RpcError as error:
        return {"code": error.code().name if error.details() else "no reason"}  # type: ignore[attr-defined]
    return {"code": "OK", "answer": read(RESPONSES[recorded["path"].rpartition("/")[2]].FromString(answer))}


def read(answer: Any) -> dict[str, Any]:
    if isinstance(answer, messages.PredictResponse):
        found = {name: read_tensor(tensor, name) for name, tensor in answer.outputs.items()}
        outputs = {
            name: {"dtype": str(each.dtype), "shape": list(each.shape), "values": each.reshape(-1).tolist()}
            for name, each in found.items()
        }
        return {"model_spec": plain(answer.model_spec), "outputs": outputs}
    if isinstance(answer, messages.GetModelMetadataResponse):
        signatures = messages.SignatureDefMap.FromString(answer.metadata["signature_def"].value)
        return {"model_spec": plain(answer.model_spec), **plain(signatures)}
    return plain(answer)


def plain(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


@pytest.mark.parametrize("recorded", RECORDED, ids=[each["name"] for each in RECORDED])
def test_the_stock_clients_bytes_are_answered_as_it_read_the_answer(
    recorded: dict[str, Any], channel: grpc.Channel
) -> None:
    found = said(channel, recorded)
    assert found == {key: recorded[key] for key in ("code", "answer") if key in recorded}


def test_every_method_is_among_them() -> None:
    assert {each["path"] for each in RECORDED} == {
        *(f"/{messages.MODEL_SERVICE}/{method}" for method in messages.MODEL_METHODS),
        *(f"/{messages.PREDICTION_SERVICE}/{method}" for method in messages.PREDICTION_METHODS),
        *(f"/{messages.PREDICTION_SERVICE}/{method}" for method in ("Classify", "Regress", "MultiInference")),
    }

"""The wire form of TensorFlow Serving's messages: names of services, and bytes spelled out by hand field by field."""

from __future__ import annotations

import numpy as np

from monolith.serving.api import messages
from monolith.serving.api.tensors import encode_outputs, read_tensor

SPEC = bytes.fromhex(
    "0a016d"  # name "m"
    "12020805"  # version, an Int64Value of 5
    "1a0173"  # signature_name "s"
)
TENSOR = bytes.fromhex(
    "0801"  # DT_FLOAT
    "120412020802"  # a shape of one dimension of size 2
    "2a080000803f00000040"  # float_val 1, 2
)


def entry(key: str, value: bytes) -> bytes:
    return b"\x0a" + bytes([len(key)]) + key.encode() + b"\x12" + bytes([len(value)]) + value


def test_a_predict_request_is_read_field_by_field() -> None:
    inputs = entry("x", TENSOR)
    request = messages.PredictRequest.FromString(
        b"\x0a" + bytes([len(SPEC)]) + SPEC + b"\x12" + bytes([len(inputs)]) + inputs + b"\x1a\x05score"
    )
    assert (request.model_spec.name, request.model_spec.signature_name) == ("m", "s")
    assert request.model_spec.version.value == 5
    assert read_tensor(request.inputs["x"], "x").tolist() == [1.0, 2.0]
    assert list(request.output_filter) == ["score"]
    label = messages.ModelSpec.FromString(bytes.fromhex("2206737461626c65"))
    assert (label.version_label, label.WhichOneof("version_choice")) == ("stable", "version_label")


def test_a_predict_response_is_written_field_by_field() -> None:
    outputs = entry("x", TENSOR)
    expected = b"\x0a" + bytes([len(outputs)]) + outputs + b"\x12" + bytes([len(SPEC)]) + SPEC
    assert encode_outputs({"x": np.array([1, 2], np.float32)}, SPEC) == expected


def test_status_config_and_batching_have_their_numbers() -> None:
    status = messages.GetModelStatusResponse.FromString(bytes.fromhex("0a0c0807101e1a06080512026e6f"))
    (found,) = status.model_version_status
    assert (found.version, found.state, found.status.error_code, found.status.error_message) == (7, 30, 5, "no")
    config = bytes.fromhex(
        "0a1d"  # model_config_list
        "0a1b"  # config
        "0a016d12022f6d"  # name "m", base_path "/m"
        "3a07"
        "b20604"
        "0803"
        "0804"  # model_version_policy.specific.versions 3, 4
        "4207"
        "0a0373746202"
        "10"  # a version label, cut below
    )[: 2 + 2 + 7 + 2 + 7]
    config = b"\x0a" + bytes([len(config) - 2]) + b"\x0a" + bytes([len(config) - 4]) + config[4:]
    (model,) = messages.ModelServerConfig.FromString(config).model_config_list.config
    assert (model.name, model.base_path) == ("m", "/m")
    assert list(model.model_version_policy.specific.versions) == [3, 4]
    batching = messages.BatchingParameters.FromString(bytes.fromhex("0a030880011203088010"))
    assert (batching.max_batch_size.value, batching.batch_timeout_micros.value) == (128, 2048)


def test_services_have_their_full_names() -> None:
    assert messages.PREDICTION_SERVICE == "tensorflow.serving.PredictionService"
    assert messages.MODEL_SERVICE == "tensorflow.serving.ModelService"
    assert set(messages.PREDICTION_METHODS) == {"Predict", "GetModelMetadata"}
    assert set(messages.MODEL_METHODS) == {"GetModelStatus", "HandleReloadConfigRequest"}
    full_names = {kind.DESCRIPTOR.full_name for pair in messages.MODEL_METHODS.values() for kind in pair}
    assert full_names == {
        f"tensorflow.serving.{name}"
        for name in ("GetModelStatusRequest", "GetModelStatusResponse", "ReloadConfigRequest", "ReloadConfigResponse")
    }

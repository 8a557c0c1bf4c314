"""Two hundred requests that cannot be answered, of every kind: the right status, and the server goes on."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from monolith.serving import messages
from monolith.testing.linear_model import example, example_batch, write_version
from monolith.testing.linear_server import LinearServer

GOOD = example(user=7)
B64 = {"b64": base64.b64encode(GOOD).decode()}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinearServer]:
    folder: Path = tmp_path_factory.mktemp("served")
    write_version(folder / "m", 1, bias=0.5)
    made = LinearServer(folder, max_message_bytes=1 << 20, request_timeout_s=60.0)
    made.start()
    yield made
    made.server.stop(0.0)


# --- gRPC: (name, method, request, status) ---


def tensor(dtype: int, shape: list[int], **values: Any) -> messages.TensorProto:
    made = messages.TensorProto(dtype=dtype, **values)  # type: ignore[arg-type]
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    return made


def strings(*values: bytes) -> messages.TensorProto:
    return tensor(7, [len(values)], string_val=values)


def predict(inputs: dict[str, messages.TensorProto] | None = None, **spec: Any) -> messages.PredictRequest:
    outputs = spec.pop("outputs", ())
    version = spec.pop("version", None)
    request = messages.PredictRequest(output_filter=outputs)
    request.model_spec.name = spec.pop("name", "m")
    request.model_spec.signature_name = spec.pop("signature", "")
    request.model_spec.version_label = spec.pop("label", "")
    if not request.model_spec.version_label:
        request.model_spec.ClearField("version_label")
    if version is not None:
        request.model_spec.version.value = version
    for name, value in ({"examples": strings(GOOD)} if inputs is None else inputs).items():
        request.inputs[name].CopyFrom(value)
    return request


def reload(text: str) -> messages.ReloadConfigRequest:
    request = messages.ReloadConfigRequest()
    messages.parse_text(text, request.config, "text")
    return request


def status(name: str, version: int | None = None, label: str = "") -> messages.GetModelStatusRequest:
    return messages.GetModelStatusRequest(model_spec=predict(name=name, version=version, label=label).model_spec)


def metadata(name: str, *fields: str, version: int | None = None) -> messages.GetModelMetadataRequest:
    spec = predict(name=name, version=version).model_spec
    return messages.GetModelMetadataRequest(model_spec=spec, metadata_field=fields)


INVALID, ABSENT, UNIMPLEMENTED = "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"
GARBAGE = [b"\xff", b"\x00", b"hello world", b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x05ab", b"\x0f" * 50, b"\x0a\x02\x08"]
WRONG_RECORDS = [
    b"\xff",
    b"\x0a",
    b"\x0a\xff\xff\xff\xff\x07",
    b"hello world",
    GOOD[:-1],
    GOOD + b"\xff",
    b"\x80" * 20,
    b"\x07",
]
TENSORS = {
    "no type": tensor(0, [1]),
    "complex": tensor(8, [1], scomplex_val=[1.0, 2.0]),
    "resource": tensor(20, [1]),
    "variant": tensor(21, [1]),
    "bfloat16": tensor(14, [1], half_val=[1]),
    "type 1000": tensor(1000, [1]),
    "a negative size": tensor(7, [-1], string_val=[GOOD]),
    "too many values": tensor(7, [1], string_val=[GOOD, GOOD]),
    "too few values": tensor(7, [3], string_val=[GOOD]),
    "a size without end": tensor(1, [1 << 50], float_val=[1.0]),
    "sizes that overflow": tensor(1, [1 << 40, 1 << 40], float_val=[1.0]),
    "too many sizes": tensor(1, [1] * 64, float_val=[1.0]),
    "bytes that do not fit": tensor(1, [2], tensor_content=b"abc"),
    "strings without lengths": tensor(7, [2], tensor_content=b"\xff\xff\xff\xff\xff\xff"),
    "strings past the end": tensor(7, [2], tensor_content=b"\x01\x7fab"),
}
INSTEAD_OF_RECORDS = {
    "float": tensor(1, [1], float_val=[1.0]),
    "double": tensor(2, [1], double_val=[1.0]),
    "int32": tensor(3, [1], int_val=[1]),
    "int64": tensor(9, [1], int64_val=[1]),
    "bool": tensor(10, [1], bool_val=[True]),
    "nothing": tensor(7, [0]),
}
RECORD_INPUTS = ("instances", "examples", "example_batch", "tf_examples")

CALLS: list[tuple[str, str, Any, str]] = [
    *((f"{verb}: {raw!r:.40}", verb, raw, INVALID) for raw in GARBAGE for verb in ("Predict", "GetModelStatus")),
    *((f"HandleReloadConfigRequest: {raw!r:.40}", "HandleReloadConfigRequest", raw, INVALID) for raw in GARBAGE[:3]),
    *((f"GetModelMetadata: {raw!r:.40}", "GetModelMetadata", raw, INVALID) for raw in GARBAGE[:3]),
    *((f"{verb} is not served", verb, b"", UNIMPLEMENTED) for verb in ("Classify", "Regress", "MultiInference")),
    ("a method that is none", "Guess", b"", UNIMPLEMENTED),
    ("no model", "Predict", predict(name=""), INVALID),
    ("another model", "Predict", predict(name="n"), ABSENT),
    ("a path for a model", "Predict", predict(name="../../etc/passwd"), ABSENT),
    ("a long name", "Predict", predict(name="x" * 10_000), ABSENT),
    ("another version", "Predict", predict(version=2), ABSENT),
    ("a negative version", "Predict", predict(version=-1), ABSENT),
    ("the largest version", "Predict", predict(version=(1 << 63) - 1), ABSENT),
    ("another label", "Predict", predict(label="stable"), ABSENT),
    ("another signature", "Predict", predict(signature="x"), INVALID),
    ("another output", "Predict", predict(outputs=["x"]), INVALID),
    ("an output twice", "Predict", predict(outputs=["score", "score"]), INVALID),
    ("an output of another signature", "Predict", predict(signature="single", outputs=["doubled"]), INVALID),
    ("no inputs", "Predict", predict({}), INVALID),
    ("two kinds of records", "Predict", predict({"examples": strings(GOOD), "instances": strings(GOOD)}), INVALID),
    ("records and a feature", "Predict", predict({"examples": strings(GOOD), "age": tensor(1, [1])}), INVALID),
    ("another feature", "Predict", predict({"colour": tensor(9, [1], int64_val=[1])}), INVALID),
    ("features of different lengths", "Predict", predict({"user": tensor(9, [2]), "age": tensor(1, [3])}), INVALID),
    ("a feature without rows", "Predict", predict({"age": tensor(1, [], float_val=[1.0])}), INVALID),
    ("text for an id", "Predict", predict({"user": strings(b"seven")}), INVALID),
    ("ids as floats", "Predict", predict({"ids": tensor(1, [1], float_val=[1.0])}, signature="lookup"), INVALID),
    ("ids as text", "Predict", predict({"ids": strings(b"7")}, signature="lookup"), INVALID),
    ("ids without rows", "Predict", predict({"ids_id": tensor(9, [1], int64_val=[1])}, signature="assign"), INVALID),
    (
        "rows of another width",
        "Predict",
        predict(
            {"ids_id": tensor(9, [1], int64_val=[1]), "ids_value": tensor(1, [1, 2], float_val=[1.0, 2.0])},
            signature="assign",
        ),
        INVALID,
    ),
    *((f"a tensor: {name}", "Predict", predict({"examples": value}), INVALID) for name, value in TENSORS.items()),
    *(
        (f"{name} for {key}", "Predict", predict({key: value}), INVALID)
        for key in RECORD_INPUTS
        for name, value in INSTEAD_OF_RECORDS.items()
    ),
    *(
        (f"a record of {key}: {record!r:.30}", "Predict", predict({key: strings(record)}), INVALID)
        for key in ("instances", "examples", "example_batch")
        for record in WRONG_RECORDS
    ),
    *(
        (
            f"a bad record among good ones: {record!r:.30}",
            "Predict",
            predict({"examples": strings(GOOD, record)}),
            INVALID,
        )
        for record in WRONG_RECORDS[:4]
    ),
    ("a batch without its rows", "Predict", predict({"example_batch": strings(example_batch([1, 2])[:-1])}), INVALID),
    ("an oversized request", "Predict", predict({"examples": strings(b"x" * (2 << 20))}), "RESOURCE_EXHAUSTED"),
    ("status of no model", "GetModelStatus", status(""), ABSENT),
    ("status of another model", "GetModelStatus", status("n"), ABSENT),
    ("status of another version", "GetModelStatus", status("m", 9), ABSENT),
    ("status of another label", "GetModelStatus", status("m", label="x"), ABSENT),
    ("metadata of nothing", "GetModelMetadata", metadata("m"), INVALID),
    ("metadata of another field", "GetModelMetadata", metadata("m", "weights"), INVALID),
    ("metadata of no model", "GetModelMetadata", metadata("", "signature_def"), INVALID),
    ("metadata of another model", "GetModelMetadata", metadata("n", "signature_def"), ABSENT),
    ("metadata of another version", "GetModelMetadata", metadata("m", "signature_def", version=9), ABSENT),
    ("a reload of nothing", "HandleReloadConfigRequest", b"", INVALID),
    (
        "a reload without a path",
        "HandleReloadConfigRequest",
        reload("model_config_list { config { name: 'x' } }"),
        INVALID,
    ),
    ("a reload without a name", "HandleReloadConfigRequest", reload("model_config_list { config { } }"), INVALID),
    (
        "a reload with a model twice",
        "HandleReloadConfigRequest",
        reload("model_config_list { config { name: 'x' base_path: '/x' } config { name: 'x' base_path: '/x' } }"),
        INVALID,
    ),
    ("a reload of another kind", "HandleReloadConfigRequest", reload("custom_model_config { type_url: 'x' }"), INVALID),
]


@pytest.mark.parametrize(
    ("verb", "request_", "expected"), [call[1:] for call in CALLS], ids=[call[0] for call in CALLS]
)
def test_a_bad_call_gets_its_status_and_the_next_good_one_its_scores(
    verb: str, request_: Any, expected: str, served: LinearServer
) -> None:
    service = "ModelService" if verb in ("GetModelStatus", "HandleReloadConfigRequest") else "PredictionService"
    payload = request_ if isinstance(request_, bytes) else request_.SerializeToString()
    with grpc.insecure_channel(served.server.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(f"/tensorflow.serving.{service}/{verb}")
        with pytest.raises(grpc.RpcError) as refused:
            call(payload, timeout=60)
    error: Any = refused.value
    assert (error.code().name, bool(error.details())) == (expected, True)
    assert "Traceback" not in error.details()
    with served.client() as client:
        assert client.score(GOOD)["score"].tolist() == [0.5]


# --- REST: (name, method, path, body, status) ---

PREDICT = "/v1/models/m:predict"


def column(**inputs: Any) -> dict[str, Any]:
    return {"inputs": inputs}


BODIES: dict[str, Any] = {
    "nothing": b"",
    "no JSON": b"hello",
    "half a JSON": b'{"inputs": ',
    "two JSONs": b"{}{}",
    "no UTF-8": b'{"inputs": "\xff\xfe"}',
    "a list": [],
    "a number": 7,
    "null": None,
    "nothing asked": {},
    "both forms": {"inputs": {}, "instances": []},
    "another key": {"inputs": {"user": [[1]]}, "examples": []},
    "a signature that is no text": {"signature_name": 7, "inputs": {"user": [[1]]}},
    "another signature": {"signature_name": "x", "inputs": {"user": [[1]]}},
    "no rows": {"instances": []},
    "rows that are no list": {"instances": {"user": 1}},
    "mixed rows": {"instances": [{"user": 1}, 7]},
    "mixed rows the other way": {"instances": [7, {"user": 1}]},
    "plain values for many inputs": {"instances": [B64]},
    "plain columns for many inputs": {"inputs": [B64]},
    "no inputs": {"inputs": {}},
    "null inputs": {"inputs": None},
    "text for inputs": {"inputs": "x"},
    "text for a record": column(examples=["abc"]),
    "a number for a record": column(examples=[7]),
    "null for a record": column(examples=[None]),
    "an object for a record": column(examples=[{"x": 1}]),
    "no records": column(examples=[]),
    "a bad record": column(examples=[{"b64": base64.b64encode(b"\xff").decode()}]),
    "a bad batch": column(example_batch=[{"b64": base64.b64encode(b"\xff").decode()}]),
    "no base64": column(examples=[{"b64": "***"}]),
    "base64 cut off": column(examples=[{"b64": "abc"}]),
    "base64 of a number": column(examples=[{"b64": 7}]),
    "base64 beyond ASCII": column(examples=[{"b64": "ä"}]),
    "records and features": column(examples=[B64], age=[1]),
    "another feature": column(colour=[1]),
    "a feature without a list": column(age=1),
    "features of different lengths": column(age=[1, 2], user=[[1]]),
    "text for an age": column(age=["old"]),
    "an object for an age": column(age=[{"years": 7}]),
    "null for an id": column(user=[None]),
    "text for an id": column(user=["x"]),
    "an id beyond 64 bits": column(user=[[1 << 70]]),
    "a negative id": column(user=[[-1]]),
    "ids as text": {"signature_name": "lookup", "inputs": {"ids": ["x"]}},
    "ids as floats": {"signature_name": "lookup", "inputs": {"ids": [1.5]}},
    "ids beyond 64 bits": {"signature_name": "lookup", "inputs": {"ids": [1 << 70]}},
    "ragged ids": {"signature_name": "lookup", "inputs": {"ids": [[1], [2, 3]]}},
    "ids as null": {"signature_name": "lookup", "inputs": {"ids": None}},
    "answers without rows": {"signature_name": "assign", "instances": [{"ids_id": 1, "ids_value": [1.0]}]},
    "a deep list": b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a deep object": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a number without end": b'{"inputs": {"age": [' + b"9" * 10_000 + b"]}}",
}
REQUESTS: list[tuple[str, str, str, Any, int]] = [
    *((name, "POST", PREDICT, body, 400) for name, body in BODIES.items()),
    ("an oversized body", "POST", PREDICT, b"x" * (2 << 20), 413),
    ("GET of predict", "GET", PREDICT, None, 405),
    ("POST of status", "POST", "/v1/models/m", b"{}", 405),
    ("POST of metadata", "POST", "/v1/models/m/metadata", b"{}", 405),
    ("DELETE of a model", "DELETE", "/v1/models/m", None, 405),
    ("POST of metrics", "POST", "/metrics", b"", 405),
    ("POST of health", "POST", "/healthz", b"", 405),
    ("classify", "POST", "/v1/models/m:classify", b"{}", 501),
    ("regress", "POST", "/v1/models/m:regress", b"{}", 501),
    ("another verb", "POST", "/v1/models/m:guess", b"{}", 405),
    ("no model", "GET", "/v1/models/", None, 404),
    ("another model", "GET", "/v1/models/n", None, 404),
    ("another model's scores", "POST", "/v1/models/n:predict", column(age=[1]), 404),
    ("another model's metadata", "GET", "/v1/models/n/metadata", None, 404),
    ("another version", "POST", "/v1/models/m/versions/2:predict", column(age=[1]), 404),
    ("a version that is no number", "POST", "/v1/models/m/versions/x:predict", column(age=[1]), 404),
    ("a version without end", "GET", "/v1/models/m/versions/" + "9" * 40, None, 404),
    ("a negative version", "GET", "/v1/models/m/versions/-1", None, 404),
    ("another label", "POST", "/v1/models/m/labels/x:predict", column(age=[1]), 404),
    ("status of another label", "GET", "/v1/models/m/labels/x", None, 404),
    ("a path for a model", "GET", "/v1/models/..%2F..%2Fetc%2Fpasswd", None, 404),
    ("a model beyond UTF-8", "GET", "/v1/models/%ff%fe", None, 404),
    ("nothing there", "GET", "/v2/models/m", None, 404),
    ("the root", "GET", "/", None, 404),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"), [each[1:] for each in REQUESTS], ids=[each[0] for each in REQUESTS]
)
def test_a_bad_request_gets_its_status_and_the_next_good_one_its_scores(
    method: str, path: str, body: Any, expected: int, served: LinearServer
) -> None:
    host, _, port = served.server.rest_address.rpartition(":")
    payload = body if isinstance(body, bytes) or (body is None and method != "POST") else json.dumps(body).encode()
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
        connection.request(method, path, payload)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    assert (answer.status, list(found)) == (expected, ["error"])
    assert "Traceback" not in found["error"]
    good = http.client.HTTPConnection(host, int(port), timeout=60)
    good.request("POST", PREDICT, json.dumps({"instances": [{"examples": B64}, {"examples": B64}]}))
    answer = good.getresponse()
    assert json.loads(answer.read())["predictions"] == [{"score": 0.5, "doubled": 1.0}] * 2
    good.close()


def test_there_are_two_hundred_of_them() -> None:
    assert len(CALLS) + len(REQUESTS) >= 200

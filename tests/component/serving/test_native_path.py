"""One conformance suite of the wire: the same requests to a Python server and to a native one give the same answers."""

from __future__ import annotations

import base64
import ctypes
import http.client
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from monolith import _native
from monolith.core.errors import ConfigError, InvalidRequest, MonolithError
from monolith.data.records import messages as records
from monolith.rpc.security import Security
from monolith.serving import BatchSettings, Client, ModelConfig, ModelServer, ServingConfig, servable_loader
from monolith.serving.api import messages
from monolith.serving.api.native_front import NativeFront
from monolith.serving.api.tensors import make_tensor, read_tensor
from monolith.serving.servable.native_model import NotNative, find_onnx_library
from monolith.serving.servable.servable import Servable
from monolith.testing.processes.certificates import Authority
from small_export import declared, example, make_export

PREDICT = "/tensorflow.serving.PredictionService/Predict"
GOOD = [example([7], [9], 0.5), example([8, 8], [], -1.0), example([], [7], 3.25)]
RECORDS = [each.SerializeToString() for each in GOOD]
SCORES = [1 + 40 + 0.5, 2 + 2 - 1.0, 30 + 3.25]


def batch_record() -> bytes:
    made = records.ExampleBatch(batch_size=2)
    column = made.named_feature_list.add(name="price")
    for price in (1.0, 2.0):
        column.feature.add().float_list.value.append(price)
    return made.SerializeToString()


def typed_export(folder: Path) -> Path:
    """Write an export whose features have the types of training; only such features are parsed natively."""
    declaration = declared()
    declaration.record_value_types({"user": "fid", "item": "fid"})
    return make_export(folder, declaration=json.loads(declaration.to_json()))


def start(folder: Path, native: Any, **settings: Any) -> ModelServer:
    config = ServingConfig(
        port=0,
        rest_port=0,
        models=[ModelConfig(name="prices", base_path=folder)],
        version_poll_s=0.0,
        native=native,
        **settings,
    )
    server = ModelServer(config, servable_loader())
    server.start()
    assert server.models.wait_until_settled(60)
    return server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    typed_export(folder / "12")
    return folder


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[dict[str, ModelServer]]:
    started = {native: start(folder, native) for native in ("off", "on")}
    yield started
    for server in started.values():
        server.stop(0.0)


def native_answers(server: ModelServer) -> int:
    front = server._native
    assert isinstance(front, NativeFront)
    return sum(front._service.stats()["answers"].values())


def call_rest(server: ModelServer, method: str, path: str, body: bytes, headers: Any = None) -> tuple[int, Any]:
    host, _, port = server.rest_address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if method != "HEAD":
        assert answer.headers["Content-Length"] == str(len(content))
    if path != "/metrics" and method != "HEAD":
        return answer.status, json.loads(content)
    return answer.status, None


def b64(record: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(record).decode()}


def body(**content: Any) -> bytes:
    return json.dumps(content).encode()


MODEL = "/v1/models/prices"
NATIVE = [
    (f"{MODEL}:predict", body(inputs={"examples": [b64(each) for each in RECORDS]})),
    (f"{MODEL}:predict", body(instances=[{"examples": b64(each)} for each in RECORDS])),
    (f"{MODEL}/versions/12:predict", body(inputs={"examples": b64(RECORDS[0])})),
    (f"{MODEL}:predict", body(inputs={"examples": [b64(RECORDS[0])]}, signature_name="twice")),
    (f"{MODEL}:predict", body(inputs={"example_batch": [b64(batch_record()), b64(batch_record())]})),
    (f"{MODEL}:predict", body(inputs={"examples": [b64(b"")]})),
    (f"{MODEL}:predict", body(inputs={"examples": [b64(RECORDS[0]), b64(b"\xff\xff")]})),
    (f"{MODEL}:predict", body(inputs={"tf_examples": [b64(RECORDS[0])]})),
]
OTHERS = [
    ("POST", f"{MODEL}:predict", b""),
    ("POST", f"{MODEL}:predict", b"{"),
    ("POST", f"{MODEL}:predict", b"[]"),
    ("POST", f"{MODEL}:predict", body(inputs={"examples": []})),
    ("POST", f"{MODEL}:predict", body(inputs={"examples": [{"b64": "?"}]})),
    ("POST", f"{MODEL}:predict", body(inputs={"examples": [7]})),
    ("POST", f"{MODEL}:predict", body(inputs={"example_batch": [b64(b"\xff")]})),
    ("POST", f"{MODEL}:predict", body(inputs={"examples": [b64(RECORDS[0])]}, signature_name="none")),
    ("POST", f"{MODEL}:predict", body(inputs={"examples": [b64(RECORDS[0])], "instances": [b64(RECORDS[0])]})),
    ("POST", f"{MODEL}:predict", body(inputs={"none": [b64(RECORDS[0])]})),
    ("POST", f"{MODEL}:predict", body(instances=[{"examples": b64(RECORDS[0])}, {}, {"examples": b64(RECORDS[1])}])),
    ("POST", f"{MODEL}:predict", body(inputs=[b64(RECORDS[0])])),
    ("POST", f"{MODEL}:predict", body(instances=[{"user": {"fids": [1 << 48 | 7]}, "price": 2.0}])),
    ("POST", f"{MODEL}:predict", body(inputs={"user": [1 << 48 | 7]}, signature_name="lookup")),
    ("POST", f"{MODEL}/versions/11:predict", body(inputs={"examples": [b64(RECORDS[0])]})),
    ("POST", f"{MODEL}/labels/new:predict", body(inputs={"examples": [b64(RECORDS[0])]})),
    ("POST", "/v1/models/none:predict", body(inputs={"examples": [b64(RECORDS[0])]})),
    ("POST", f"{MODEL}:classify", body(inputs={"examples": [b64(RECORDS[0])]})),
    ("GET", f"{MODEL}:predict", b""),
    ("GET", MODEL, b""),
    ("GET", f"{MODEL}/metadata", b""),
    ("GET", "/v1/models", b""),
    ("GET", "/healthz", b""),
    ("GET", "/readyz", b""),
    ("GET", "/metrics", b""),
    ("HEAD", "/healthz", b""),
    ("GET", "/none", b""),
]


def assert_alike(one: Any, other: Any) -> None:
    """Check equal structure, and numbers to 1e-6."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6)
    else:
        assert one == other


def test_plain_scores_by_rest_are_the_same_and_pass_no_python(servers: dict[str, ModelServer]) -> None:
    for path, content in NATIVE:
        before = native_answers(servers["on"])
        expected = call_rest(servers["off"], "POST", path, content)
        answer = call_rest(servers["on"], "POST", path, content)
        assert_alike(list(answer), list(expected))
        assert native_answers(servers["on"]) == before + 1, content
    first = call_rest(servers["on"], "POST", *NATIVE[0])[1]
    assert first["outputs"] == pytest.approx(SCORES)


@pytest.mark.parametrize(("method", "path", "content"), OTHERS)
def test_every_other_rest_request_gets_the_answer_of_python(
    method: str, path: str, content: bytes, servers: dict[str, ModelServer]
) -> None:
    before = native_answers(servers["on"])
    expected = call_rest(servers["off"], method, path, content)
    assert_alike(list(call_rest(servers["on"], method, path, content)), list(expected))
    assert native_answers(servers["on"]) == before


def test_a_row_without_its_record_is_named_and_moves_no_score(servers: dict[str, ModelServer]) -> None:
    content = body(instances=[{"examples": b64(RECORDS[0])}, {}, {"examples": b64(RECORDS[1])}])
    for server in servers.values():
        status, answer = call_rest(server, "POST", f"{MODEL}:predict", content)
        assert (status, answer) == (
            400,
            {"error": "input 'examples' has no record in row 1, expected a record for each row"},
        )


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_a_client_gets_the_rows_of_one_table_of_several_under_its_name(
    transport: str, servers: dict[str, ModelServer]
) -> None:
    server = servers["off"]
    address = server.address if transport == "grpc" else f"http://{server.rest_address}"
    with Client(address, model="prices", timeout_s=60) as client:
        for table in ("user", "item"):
            rows = client.predict({table: np.array([1 << 48 | 7])}, signature="lookup", outputs=[table])
            assert rows.keys() == {table}
            assert client.predict({table: np.array([1 << 48 | 7])}, signature="lookup").keys() == {table}


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_a_client_names_an_output_that_the_model_lacks(transport: str, servers: dict[str, ModelServer]) -> None:
    server = servers["off"]
    address = server.address if transport == "grpc" else f"http://{server.rest_address}"
    with (
        Client(address, model="prices", timeout_s=60) as client,
        pytest.raises(InvalidRequest, match="output of signature 'serving_default' is 'none', expected one of score"),
    ):
        client.predict({"price": [1.0]}, outputs=["none"])


# --- gRPC ---


def predict_request(inputs: dict[str, Any], **spec: Any) -> bytes:
    request = messages.PredictRequest(output_filter=spec.pop("outputs", ()))
    request.model_spec.name = spec.pop("name", "prices")
    if "version" in spec:
        request.model_spec.version.value = spec.pop("version")
    for key, value in spec.items():
        setattr(request.model_spec, key, value)
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(make_tensor(value))
    return request.SerializeToString()


def call_grpc(server: ModelServer, path: str, payload: bytes, **options: Any) -> tuple[Any, Any]:
    with grpc.insecure_channel(server.address) as channel:
        try:
            answer = channel.unary_unary(path)(payload, timeout=60, **options)
        except grpc.RpcError as error:
            return error.code(), error.details()
    if not path.endswith("/Predict"):
        return grpc.StatusCode.OK, answer
    response = messages.PredictResponse.FromString(answer)
    outputs = {name: read_tensor(tensor, name).tolist() for name, tensor in response.outputs.items()}
    spec = response.model_spec
    return grpc.StatusCode.OK, [outputs, spec.name, spec.version.value, spec.signature_name]


def strings(*values: bytes) -> Any:
    return np.array(values, object)


NATIVE_CALLS = [
    predict_request({"examples": strings(*RECORDS)}),
    predict_request({"examples": strings(*RECORDS)}, outputs=["score"], version=12),
    predict_request({"examples": strings(RECORDS[0])}, signature_name="twice"),
    predict_request({"example_batch": strings(batch_record())}),
    predict_request({"examples": strings(RECORDS[0], b"\xff\xff")}),
]
OTHER_CALLS = [
    (PREDICT, b""),
    (PREDICT, b"\xff"),
    (PREDICT, predict_request({}, name="prices")),
    (PREDICT, predict_request({"examples": strings(RECORDS[0])}, name="")),
    (PREDICT, predict_request({"examples": strings(RECORDS[0])}, name="none")),
    (PREDICT, predict_request({"examples": strings(RECORDS[0])}, version=7)),
    (PREDICT, predict_request({"examples": strings(RECORDS[0])}, version_label="x")),
    (PREDICT, predict_request({"examples": strings(RECORDS[0])}, signature_name="none")),
    (PREDICT, predict_request({"examples": strings(RECORDS[0])}, outputs=["none"])),
    (PREDICT, predict_request({"examples": np.array([1.0])})),
    (PREDICT, predict_request({"user": np.array([1 << 48 | 7])}, signature_name="lookup")),
    (PREDICT, predict_request({"price": np.array([[1.0]], np.float32)})),
    ("/tensorflow.serving.PredictionService/Classify", b""),
    ("/tensorflow.serving.PredictionService/GetModelMetadata", b""),
    ("/tensorflow.serving.ModelService/GetModelStatus", b"\n\x08\n\x06prices"),
    ("/grpc.health.v1.Health/Check", b""),
    ("/none.Service/None", b""),
]


def test_plain_scores_by_grpc_are_the_same_and_pass_no_python(servers: dict[str, ModelServer]) -> None:
    for payload in NATIVE_CALLS:
        before = native_answers(servers["on"])
        expected = call_grpc(servers["off"], PREDICT, payload)
        assert_alike(list(call_grpc(servers["on"], PREDICT, payload)), list(expected))
        assert native_answers(servers["on"]) == before + 1


@pytest.mark.parametrize(("path", "payload"), OTHER_CALLS)
def test_every_other_call_gets_the_answer_of_python(path: str, payload: bytes, servers: dict[str, ModelServer]) -> None:
    before = native_answers(servers["on"])
    expected = call_grpc(servers["off"], path, payload)
    assert call_grpc(servers["on"], path, payload) == expected
    assert native_answers(servers["on"]) == before


def test_a_compressed_call_is_answered(servers: dict[str, ModelServer]) -> None:
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        code, answer = call_grpc(servers["on"], PREDICT, NATIVE_CALLS[0], compression=compression)
        assert code == grpc.StatusCode.OK
        assert answer[0]["score"] == pytest.approx(SCORES)


def test_both_interfaces_are_native_over_tls_and_want_a_client_certificate(folder: Path, authority: Authority) -> None:
    named = authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")
    ours = Security(cert_file=named.cert_file, key_file=named.key_file, ca_file=authority.ca_file, token="secret")
    server = start(folder, "on", security=ours)
    try:
        for address in (server.address, f"https://{server.rest_address}"):
            before = native_answers(server)
            with Client(address, model="prices", security=ours, timeout_s=60) as client:
                assert client.score(RECORDS, "examples")["score"] == pytest.approx(SCORES)
            assert native_answers(server) == before + 1
        stranger = Security(ca_file=authority.ca_file, token="secret")
        for address in (server.address, f"https://{server.rest_address}"):
            with (
                Client(address, model="prices", security=stranger, timeout_s=5) as client,
                pytest.raises(MonolithError),
            ):
                client.score(RECORDS, "examples")
        assert call_silent(server)
    finally:
        server.stop(0.0)


def call_silent(server: ModelServer) -> bool:
    """Send plain text to a port with TLS; return whether the server closes the connection."""
    host, _, port = server.rest_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            while connection.recv(1000):
                pass
        except ConnectionResetError:  # the server has closed with bytes unread
            pass
    return True


# --- state ---


def test_a_native_version_shows_assigned_rows_new_weights_and_new_tables(folder: Path) -> None:
    servable = Servable.load(folder / "12")
    servable.open_native(find_onnx_library())
    native = servable._state.native
    assert native is not None

    def check() -> None:
        expected = servable.predict(RECORDS, "example")["score"]
        assert native.score(RECORDS, "examples")["score"] == pytest.approx(expected)

    check()
    servable.assign("user", [1 << 48 | 7], [[5.0]])
    check()
    servable.apply(weights={"w": np.array([[3.0], [-1.0]], np.float32)})
    check()
    assert servable.tables is not None
    servable.apply(tables=servable.tables.emptied())
    check()
    servable.close()
    assert native.score(RECORDS, "examples")["score"] == pytest.approx([0.5, -1.0, 3.25])


def test_a_part_of_a_model_stays_with_python(tmp_path: Path) -> None:
    servable = Servable.load(make_export(tmp_path / "1", sub_model="ps", shard=(0, 1)))
    with pytest.raises(NotNative, match="expected a whole model"):
        servable.open_native(find_onnx_library())
    assert servable.native is None


def test_a_feature_without_a_type_takes_the_type_of_each_request(tmp_path: Path) -> None:
    servable = Servable.load(make_export(tmp_path / "1"))
    servable.open_native(find_onnx_library())
    native = servable._state.native
    assert native is not None
    words = records.Example()
    words.named_feature.add(name="user").feature.bytes_list.value.append(b"seven")
    assert native.score([words.SerializeToString()], "examples")["score"].tolist() == [0.0]
    assert native.score(RECORDS, "examples")["score"] == pytest.approx(SCORES)


def test_native_on_is_refused_with_a_reason_where_python_must_see_each_request(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="log_requests is set"):
        ModelServer(ServingConfig(native="on", log_requests=f"log://{tmp_path}/t"), servable_loader())


@pytest.mark.parametrize(
    ("settings", "missing", "reason"),
    [
        ({"log_requests": "log://{}/t"}, "", "log_requests is set"),
        ({"grpc_options": [("grpc.max_concurrent_streams", 4)]}, "", "grpc_options are set"),
        ({}, "check_transport", "no HTTP/2 here"),
        ({}, "onnx_version", "no ONNX Runtime here"),
    ],
)
def test_a_server_without_the_native_path_logs_one_reason_and_answers_in_python(
    settings: dict[str, Any],
    missing: str,
    reason: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object) -> str:
        raise ConfigError(reason)

    if missing:
        monkeypatch.setattr(_native, missing, refuse)
    if "log_requests" in settings:
        settings = {"log_requests": settings["log_requests"].format(tmp_path)}
    server = start(folder, "auto", **settings)
    try:
        assert server._native is None
        (line,) = (each.getMessage() for each in caplog.records if "native request path" in each.getMessage())
        assert line.startswith(f"native request path off, requests pass through Python reason={reason}")
        status, answer = call_rest(server, "POST", NATIVE[0][0], NATIVE[0][1])
        assert (status, answer["outputs"]) == (200, pytest.approx(SCORES))
    finally:
        server.stop(0.0)


def test_a_version_that_onnx_runtime_refuses_is_scored_by_python(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("ONNX Runtime cannot read the program")

    with pytest.MonkeyPatch.context() as patch, caplog.at_level("INFO"):
        patch.setattr(_native, "OnnxSession", refuse)
        server = start(folder, "on")
    try:
        assert "version scored by Python model=prices version=12 reason=ONNX Runtime cannot read" in caplog.text
        assert call_rest(server, "POST", NATIVE[0][0], NATIVE[0][1])[0] == 200
        assert native_answers(server) == 0
    finally:
        server.stop(0.0)


def test_the_native_path_is_the_default_with_one_model_thread_per_core() -> None:
    assert ServingConfig().request_path.native == "auto"
    settings = BatchSettings()
    assert (settings.native_threads, settings.python_threads) == (len(os.sched_getaffinity(0)), 2)
    assert (BatchSettings(threads=3).native_threads, BatchSettings(threads=3).python_threads) == (3, 3)
    with pytest.raises(ConfigError, match="threads is -1"):
        BatchSettings(threads=-1)


def test_a_canary_gets_the_first_of_few_requests_and_a_share_of_many(folder: Path) -> None:
    server = start(folder, "on")
    try:
        sampled: list[int] = []
        servable = server.models.acquire("prices").model
        assert isinstance(servable, Servable)
        servable.on_scored = lambda records, kind: sampled.append(len(records))
        server.models.configure([ModelConfig(name="prices", base_path=folder)])  # publishes the routes again
        call_rest(server, "POST", NATIVE[0][0], NATIVE[0][1])
        assert sampled == [3]
        for _ in range(200):
            call_rest(server, "POST", NATIVE[0][0], NATIVE[0][1])
        assert 1 < len(sampled) < 200
        assert native_answers(server) + len(sampled) == 201
    finally:
        server.stop(0.0)


def test_native_batches_see_one_cut_while_rows_and_weights_change(folder: Path) -> None:
    server = start(folder, "on", batching=BatchSettings(threads=2))
    try:
        hosted = server.models.acquire("prices")
        servable = hosted.model
        assert isinstance(servable, Servable)
        ending = threading.Event()

        def change() -> None:
            assert servable.tables is not None
            for number in range(1, 400):
                if ending.is_set():
                    return
                tables = servable.tables.emptied()
                tables["user"].assign([1 << 48 | 7], [[float(number)]])
                servable.apply(weights={"w": np.array([[number], [0.0]], np.float32)}, tables=tables)

        changing = threading.Thread(target=change)
        content = body(inputs={"examples": [b64(example([7], [], 0.0).SerializeToString())]})
        call_rest(server, "POST", f"{MODEL}:predict", content)
        changing.start()
        for _ in range(100):
            score = call_rest(server, "POST", f"{MODEL}:predict", content)[1]["outputs"][0]
            assert score == pytest.approx(round(score**0.5) ** 2), "a score mixes two cuts"
        ending.set()
        changing.join()
        hosted.leave()
    finally:
        server.stop(0.0)


def test_a_score_is_answered_while_another_thread_holds_the_interpreter(servers: dict[str, ModelServer]) -> None:
    holding = ctypes.PyDLL(None)  # its functions run with the interpreter lock
    host, _, port = servers["on"].rest_address.rpartition(":")
    path, content = NATIVE[0]
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    with socket.create_connection((host, int(port)), timeout=None) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 20, 0))
        buffer = ctypes.create_string_buffer(65536)
        for _ in range(20):
            connection.sendall(head + content)
            size = holding.recv(connection.fileno(), buffer, len(buffer), 0)
            assert size > 0, "the request waited for the interpreter"
            assert buffer.raw[:size].startswith(b"HTTP/1.1 200 OK")


def test_metrics_count_native_requests(servers: dict[str, ModelServer]) -> None:
    host, _, port = servers["on"].rest_address.rpartition(":")
    call_rest(servers["on"], "POST", *NATIVE[0])
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    line = next(
        line
        for line in text.splitlines()
        if line.startswith('monolith_serving_requests_total{model="prices",api="rest",code="OK"}')
    )
    assert float(line.rpartition(" ")[2]) >= 1
    assert text.count("# TYPE monolith_serving_requests_total") == 1

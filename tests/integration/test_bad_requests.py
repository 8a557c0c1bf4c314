"""Requests that cannot be answered, of every kind, to a server in a process of its own: each gets its status.

The server goes on to answer good ones bit for bit as before, and after ten thousand of both it holds no more memory,
threads, sockets or files than after a thousand.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import http.client
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import monolith as mt
from monolith import models
from monolith.core import fid
from monolith.data.records.messages import Example, ExampleBatch
from monolith.serving.api import messages
from monolith.testing.eventually import eventually
from monolith.testing.suites.growth import Usage, growth, usage_of

COMMAND = [sys.executable, "-c", "from monolith.cli.main import main; main()", "serve"]
CLIENTS = 4
# Every second act is a good call and a good request: a thousand requests to warm up, then ten thousand in 18 rounds.
WARM_UP, ROUND, ROUNDS = 700, 375, 18


def example() -> bytes:
    made = Example()
    made.named_feature.add(name="slot_1").feature.fid_v2_list.value.append(fid.make_v2(1, 7))
    made.named_feature.add(name="price").feature.float_list.value.append(1.5)
    content: bytes = made.SerializeToString()
    return content


def example_batch() -> bytes:
    made = ExampleBatch(batch_size=2)
    column = made.named_feature_list.add(name="slot_1")
    for user in (1, 2):
        column.feature.add().fid_v2_list.value.append(fid.make_v2(1, user))
    content: bytes = made.SerializeToString()
    return content


GOOD = example()
B64 = {"b64": base64.b64encode(GOOD).decode()}


class Server:
    """``monolith serve`` with one model, ``m``; knows what it answers to a good request."""

    def __init__(self, folder: Path, log: Path) -> None:
        arguments = ["--name=m", "--port=0", "--rest-port=0", "--json", "--max-message-mb=1", "--request-timeout-s=60"]
        arguments += ["--allow-assign", "--allow-reload"]
        with log.open("wb") as file:
            self.process = subprocess.Popen([*COMMAND, str(folder), *arguments], stdout=subprocess.PIPE, stderr=file)
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.log = log
        self.address, self.rest_port = said["address"], int(said["rest_address"].rpartition(":")[2])
        self.channel = grpc.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)])
        with mt.serving.Client(self.address, model="m", timeout_s=60) as client:
            eventually(lambda: client.status()[0].state == "AVAILABLE")
        self.good = self.answers()

    def answers(self) -> tuple[bytes, bytes]:
        """Return what it says to a good call and a good request, byte by byte."""
        body = json.dumps({"instances": [{"examples": B64}, {"examples": B64}]}).encode()
        status, said = self.ask("POST", PREDICT, body)
        assert status == 200
        return self.call("Predict", predict()), said

    def call(self, verb: str, request: Any) -> bytes:
        service = "ModelService" if verb in ("GetModelStatus", "HandleReloadConfigRequest") else "PredictionService"
        payload = request if isinstance(request, bytes) else request.SerializeToString()
        answer: bytes = self.channel.unary_unary(f"/tensorflow.serving.{service}/{verb}")(payload, timeout=120)
        return answer

    def ask(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.rest_port, timeout=120)) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
                connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def send(self, *parts: bytes, port: int | None = None, is_half_closed: bool = False) -> bytes:
        """Send bytes, and read until the server ends the connection."""
        with socket.create_connection(("127.0.0.1", port or self.rest_port), timeout=120) as connection:
            received = []
            with contextlib.suppress(ConnectionError):
                for part in parts:
                    connection.sendall(part)
                if is_half_closed:
                    connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(1 << 16):
                    received.append(part)
            return b"".join(received)

    def usage(self) -> Usage:
        found = usage_of(self.process.pid)
        assert found is not None
        return found

    def end(self) -> int:
        self.channel.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=120)
        return self.process.returncode


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("served")
    batch = mt.Batch.from_arrays(
        ids={"slot_1": [[fid.make_v2(1, user)] for user in range(4)]},
        dense={"price": np.ones((4, 1), np.float32)},
        label=np.array([[0.0], [1.0], [0.0], [1.0]], np.float32),
    )
    estimator = mt.Estimator(models.build("deepfm", {"sparse": ["slot_1"], "dense": ["price"], "dim": 4}))
    estimator.train([batch] * 2)
    estimator.export(folder / "m", version=1)
    server = Server(folder / "m", folder / "log")
    try:
        yield server
        assert server.end() == 0
        assert "Traceback" not in (text := server.log.read_text()), text[-4000:]
    finally:
        server.process.kill()
        server.process.wait()


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
    ("records and a feature", "Predict", predict({"examples": strings(GOOD), "price": tensor(1, [1])}), INVALID),
    ("another feature", "Predict", predict({"colour": tensor(9, [1], int64_val=[1])}), INVALID),
    ("features of different lengths", "Predict", predict({"slot_1": tensor(9, [2]), "price": tensor(1, [3])}), INVALID),
    ("a feature without rows", "Predict", predict({"price": tensor(1, [], float_val=[1.0])}), INVALID),
    ("text for a number", "Predict", predict({"price": strings(b"seven")}), INVALID),
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
    ("a batch without its rows", "Predict", predict({"example_batch": strings(example_batch()[:-1])}), INVALID),
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
    # D49
    (
        "a reload with a model twice",
        "HandleReloadConfigRequest",
        reload("model_config_list { config { name: 'x' base_path: '/x' } config { name: 'x' base_path: '/x' } }"),
        INVALID,
    ),
    ("a reload of another kind", "HandleReloadConfigRequest", reload("custom_model_config { type_url: 'x' }"), INVALID),
]


def refusal(served: Server, verb: str, request: Any) -> tuple[str, str]:
    """Return status and text of what must fail."""
    try:
        served.call(verb, request)
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""  # type: ignore[attr-defined]
    return "OK", ""


@pytest.mark.parametrize(
    ("verb", "request_", "expected"), [call[1:] for call in CALLS], ids=[call[0] for call in CALLS]
)
def test_a_bad_call_gets_its_status_and_the_next_good_one_its_scores(
    verb: str, request_: Any, expected: str, served: Server
) -> None:
    status, text = refusal(served, verb, request_)
    assert (status, bool(text)) == (expected, True)
    assert "Traceback" not in text
    assert served.answers() == served.good


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
    "another key": {"inputs": {"slot_1": [[1]]}, "examples": []},
    "a signature that is no text": {"signature_name": 7, "inputs": {"slot_1": [[1]]}},
    "another signature": {"signature_name": "x", "inputs": {"slot_1": [[1]]}},
    "no rows": {"instances": []},
    "rows that are no list": {"instances": {"slot_1": 1}},
    "mixed rows": {"instances": [{"slot_1": 1}, 7]},
    "mixed rows the other way": {"instances": [7, {"slot_1": 1}]},
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
    "records and features": column(examples=[B64], price=[1]),
    "another feature": column(colour=[1]),
    "a feature without a list": column(price=1),
    "features of different lengths": column(price=[1, 2], slot_1=[[1]]),
    "text for a price": column(price=["much"]),
    "true for a price": column(price=[True]),
    "null in a list for a price": column(price=[[None]]),
    "an object for a price": column(price=[{"cents": 7}]),
    "a list in a list for a price": column(price=[[[1.0]]]),
    "no number for a price": b'{"inputs": {"price": [NaN]}}',
    "an endless price": b'{"inputs": {"price": [-Infinity]}}',
    "a price beyond doubles": b'{"inputs": {"price": [1e999]}}',
    "a price beyond floats": column(price=[1e39]),
    "a price of 400 digits": b'{"inputs": {"price": [' + b"9" * 400 + b"]}}",
    "no number for an id": b'{"inputs": {"slot_1": [[NaN]]}}',
    "an object for an id": column(slot_1=[{"id": 7}]),
    "text for raw ids": column(slot_1=[{"fids": "seven"}]),
    "ids and text": column(slot_1=[[1, "x"]]),
    "an id beyond 64 bits": column(slot_1=[[1 << 70]]),
    "an id of 400 digits": b'{"inputs": {"slot_1": [[' + b"9" * 400 + b"]]}}",
    "text with half a character": b'{"inputs": {"slot_1": ["\\ud800"]}}',
    "a name with half a character": b'{"inputs": {"\\ud800": [1]}}',
    "a signature with half a character": b'{"signature_name": "\\udfff", "inputs": {"price": [1]}}',
    "base64 with half a character": b'{"inputs": {"examples": [{"b64": "\\ud800"}]}}',
    "a signature of a megabyte": {"signature_name": "x" * 1_000_000, "inputs": {"price": [1]}},
    "a name of a megabyte": {"inputs": {"x" * 1_000_000: [1]}},
    "a key twice, the last of which counts": b'{"inputs": {"price": [1]}, "inputs": 7}',
    "a control sign in a text": b'{"inputs": {"slot_1": ["\n"]}}',
    "a comment": b'{"inputs": {"price": [1]} /* one */}',
    "a comma too many": b'{"inputs": {"price": [1,]}}',
    "single quotes": b"{'inputs': {'price': [1]}}",
    "an overlong slash": b'{"inputs": {"\xc0\xaf": [1]}}',
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
    ("another model's scores", "POST", "/v1/models/n:predict", column(price=[1]), 404),
    ("another model's metadata", "GET", "/v1/models/n/metadata", None, 404),
    ("another version", "POST", "/v1/models/m/versions/2:predict", column(price=[1]), 404),
    ("a version that is no number", "POST", "/v1/models/m/versions/x:predict", column(price=[1]), 404),
    ("a version without end", "GET", "/v1/models/m/versions/" + "9" * 40, None, 404),
    ("a negative version", "GET", "/v1/models/m/versions/-1", None, 404),
    ("another label", "POST", "/v1/models/m/labels/x:predict", column(price=[1]), 404),
    ("status of another label", "GET", "/v1/models/m/labels/x", None, 404),
    ("a path for a model", "GET", "/v1/models/..%2F..%2Fetc%2Fpasswd", None, 404),
    ("a model beyond UTF-8", "GET", "/v1/models/%ff%fe", None, 404),
    ("nothing there", "GET", "/v2/models/m", None, 404),
    ("the root", "GET", "/", None, 404),
]


def payload_of(method: str, body: Any) -> bytes | None:
    return body if isinstance(body, bytes) or (body is None and method != "POST") else json.dumps(body).encode()


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"), [each[1:] for each in REQUESTS], ids=[each[0] for each in REQUESTS]
)
def test_a_bad_request_gets_its_status_and_the_next_good_one_its_scores(
    method: str, path: str, body: Any, expected: int, served: Server
) -> None:
    status, said = served.ask(method, path, payload_of(method, body))
    found = json.loads(said)
    assert (status, list(found)) == (expected, ["error"])
    assert found["error"]
    assert "Traceback" not in found["error"]
    assert served.answers() == served.good


# --- bytes that are no request: (bytes, statuses in order, whether the client ends its side) ---

HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\n"
CLOSED = HEAD + b"Connection: close\r\n"  # a bad gzip body has an end, so the connection could stay
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LAST = b"GET /v1/models/n HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
BOMB = gzip.compress(b" " * (8 << 20))
RAW: dict[str, tuple[bytes, list[int], bool]] = {
    "no HTTP": (b"hello\r\n\r\n", [400], False),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100, [400], False),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [505], False),
    "HTTP/0.9": (b"GET /\r\n\r\n", [400], False),
    "another host's address": (b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", [400], False),
    "a tunnel": (b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", [400], False),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", [400], False),
    "bare newlines": (b"GET /healthz HTTP/1.1\nHost: x\n\n", [400], False),
    "a folded header": (GET + b"A: b\r\n c\r\n\r\n", [400], False),
    "a header with a space": (GET + b"A : b\r\n\r\n", [400], False),
    "a zero byte in a header": (GET + b"A: \0\r\n\r\n", [400], False),
    "a flood of headers": (GET + b"A: b\r\n" * 5000 + b"\r\n", [431], False),
    "a header without end": (GET + b"A: " + b"b" * 100_000, [431], False),
    "a path without end": (b"GET /" + b"a" * 100_000, [431], False),
    "two lengths": (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", [400], False),
    "a length and chunks": (HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [400], False),
    "a negative length": (HEAD + b"Content-Length: -1\r\n\r\n", [400], False),
    "a length beyond the limit": (HEAD + b"Content-Length: 99999999\r\n\r\n", [413], False),
    "another coding": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", [501], False),
    "a chunk of no size": (CHUNKED + b"zz\r\n", [400], False),
    "a chunk of negative size": (CHUNKED + b"-1\r\n", [400], False),
    "a chunk that is longer": (CHUNKED + b"1\r\nabc\r\n", [400], False),
    "a chunk beyond the limit": (CHUNKED + b"FFFFFFFF\r\n", [413], False),
    "a chunk line without end": (CHUNKED + b"0" * 1000, [400], False),
    "trailers": (CHUNKED + b"0\r\nA: b\r\n\r\n", [400], False),
    "a body that is no gzip": (CLOSED + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", [400], False),
    "a body of another coding": (HEAD + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}", [415], False),
    "a bomb": (CLOSED + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB, [413], False),
    "another expectation": (HEAD + b"Expect: gold\r\nContent-Length: 2\r\n\r\n{}", [417], False),
    "nothing, and the client goes": (b"", [], True),
    "half a head, and the client goes": (HEAD[:20], [], True),
    "half a body, and the client goes": (HEAD + b"Content-Length: 100\r\n\r\n{", [], True),
    "half a chunk, and the client goes": (CHUNKED + b"5\r\nab", [], True),
    "a request, and the client listens only": (HEAD + b"Content-Length: 2\r\n\r\n{}", [400], True),
    "fifty requests at once": ((GET + b"\r\n") * 49 + LAST, [200] * 49 + [404], False),
    "bad ones among them": (
        (GET + b"\r\n" + HEAD + b"Content-Length: 2\r\n\r\n{}") * 5 + LAST,
        [200, 400] * 5 + [404],
        False,
    ),
    "one after which nothing can be read": (GET + b"\r\nhello\r\n\r\n" + GET + b"\r\n", [200, 400], False),
    "a hidden second request": (HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}" + GET, [400], False),
}


def statuses(answer: bytes) -> list[int]:
    return [int(each) for each in re.findall(rb"HTTP/1\.1 ([0-9]{3}) ", answer)]


@pytest.mark.parametrize("name", RAW)
def test_what_is_no_request_gets_its_status_and_the_connection_ends(name: str, served: Server) -> None:
    sent, expected, is_half_closed = RAW[name]
    assert statuses(served.send(sent, is_half_closed=is_half_closed)) == expected
    assert served.answers() == served.good


GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_GRPC = {
    "HTTP/1.1": GET + b"\r\n",
    "garbage": bytes(range(64)),
    "a greeting and garbage": GREETING + b"\xff" * 200,
    "a frame without end": GREETING + b"\0\0\0\x04\0\0\0\0\0\xff\xff\xff\x01\x25\0\0\0\x01",
}


@pytest.mark.parametrize("name", NO_GRPC)
def test_what_is_no_grpc_does_not_disturb_it(name: str, served: Server) -> None:
    served.send(NO_GRPC[name], port=int(served.address.rpartition(":")[2]), is_half_closed=True)
    assert served.answers() == served.good


def test_there_are_more_than_two_hundred_of_them() -> None:
    assert len(CALLS) + len(REQUESTS) + len(RAW) + len(NO_GRPC) >= 200


# --- all of them, again and again ---


def slow_clients(served: Server, count: int) -> list[socket.socket]:
    """Connections that have begun to say something, and say no more."""
    begun = (b"", b"GET /hea", HEAD + b"Content-Length: 100\r\n\r\n{", CHUNKED + b"5\r\nab")
    found = []
    for sent in itertools.islice(itertools.cycle(begun), count):
        connection = socket.create_connection(("127.0.0.1", served.rest_port), timeout=120)
        connection.sendall(sent)
        found.append(connection)
    return found


def acts(served: Server) -> Sequence[Callable[[], None]]:
    """Everything above as something to do, with good requests among it."""

    def bad_call(verb: str, request: Any, expected: str) -> None:
        assert refusal(served, verb, request)[0] == expected

    def bad_request(method: str, path: str, body: Any, expected: int) -> None:
        assert served.ask(method, path, payload_of(method, body))[0] == expected

    def no_request(sent: bytes, expected: list[int], is_half_closed: bool) -> None:
        assert statuses(served.send(sent, is_half_closed=is_half_closed)) == expected

    def good() -> None:
        assert served.answers() == served.good

    def left() -> None:
        """A call whose client does not wait for the answer."""
        served.channel.unary_unary("/tensorflow.serving.PredictionService/Predict").future(
            predict().SerializeToString(), timeout=120
        ).cancel()

    found: list[Callable[[], None]] = []
    for act, arguments in (
        *((bad_call, call[1:]) for call in CALLS),
        *((bad_request, each[1:]) for each in REQUESTS),
        *((no_request, each) for each in RAW.values()),
    ):
        found.append(lambda act=act, arguments=arguments: act(*arguments))  # type: ignore[misc]
        found.append(good)
    return [*found, left]


def test_after_ten_thousand_requests_it_holds_no_more_than_after_a_thousand(served: Server) -> None:
    every = acts(served)
    endless = itertools.cycle(every)

    def do(count: int) -> None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            for done in pool.map(lambda act: act(), itertools.islice(endless, count)):
                assert done is None

    slow = slow_clients(served, 20)
    do(WARM_UP)
    for connection in slow:
        connection.close()
    samples = []
    for _ in range(ROUNDS):
        do(ROUND)
        samples.append(served.usage())
    # The last third against the first: at most 16 MiB, or 8 %, and three threads, sockets or files.
    assert growth(samples) == []
    assert served.answers() == served.good


def test_clients_that_begin_and_say_no_more_are_let_go_and_keep_nobody_waiting(served: Server) -> None:
    slow = slow_clients(served, 40)
    for _ in range(20):
        assert served.answers() == served.good
    for index, connection in enumerate(slow):
        with contextlib.closing(connection):
            if index % 4 == 0:
                continue  # who has said nothing may stay for a minute
            answer = b"".join(iter(lambda connection=connection: connection.recv(4096), b""))  # type: ignore[misc]
            assert statuses(answer) == [408]

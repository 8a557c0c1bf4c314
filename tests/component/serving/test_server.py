"""A whole server in this process: both APIs, metadata, status, reload, batching, deadlines, drain, log, TLS, token."""

from __future__ import annotations

import base64
import gc
import gzip
import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from monolith.core.errors import (
    ClusterError,
    ConfigError,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
    NotPermitted,
    Overloaded,
    RpcTimeout,
    ServingError,
)
from monolith.data.records.tfrecord import read_tfrecords
from monolith.ps import Security
from monolith.serving import (
    BatchSettings,
    Client,
    ModelConfig,
    ModelServer,
    ServingConfig,
    VersionPolicy,
    server,
)
from monolith.serving.api import messages, rest
from monolith.serving.api.openapi import description
from monolith.serving.api.rest_json import parse_body
from monolith.serving.versions import hosted_models
from monolith.testing.eventually import eventually
from monolith.testing.fakes.linear_model import LinearModel, example, example_batch, instance, write_version
from monolith.testing.processes.certificates import Authority
from monolith.testing.processes.linear_server import LinearServer

BOTH = pytest.mark.parametrize("transport", ["grpc", "rest"])


def get(served: LinearServer, path: str) -> Any:
    with urllib.request.urlopen(f"http://{served.server.rest_address}{path}", timeout=60) as answer:
        return answer.read().decode()


@BOTH
def test_every_form_of_record_and_features_by_name_give_the_same_scores(
    transport: Any, serve: Callable[..., LinearServer]
) -> None:
    user, other = (1 << 48) | 7, (1 << 48) | 8
    served = serve(weights={user: 2.0, other: 4.0})
    with served.client(transport) as client:
        expected = [2.5, 4.5, 0.5]
        answers = [
            client.score([example(user=each) for each in (user, other, 5)], "examples"),
            client.score(example_batch([user, other, 5]), "example_batch"),
            client.score([example_batch([user]), example_batch([other, 5])], "example_batch"),
            client.predict({"user": np.array([[user], [other], [5]])}),
        ]
        for answer in answers:
            assert answer["score"].tolist() == expected
            assert answer["doubled"].tolist() == [5.0, 9.0, 1.0]
            assert answer["score"].dtype == np.float32
        assert client.score([instance(1 << 54 | 7)], "instances")["score"].shape == (1,)
        assert client.score([example(age=2)], outputs=["doubled"]).keys() == {"doubled"}
        assert client.score([example(age=2)], outputs=["doubled"])["doubled"].tolist() == [2.0]
        assert client.score([example(user=user)], signature="single")["score"].tolist() == [2.5]


@BOTH
def test_rows_of_tables_are_read_and_set_and_the_next_score_sees_it(
    transport: Any, serve: Callable[..., LinearServer]
) -> None:
    with serve().client(transport) as client:
        assert client.predict({"ids": [7, 9]}, signature="lookup")["ids"].tolist() == [[2.0], [0.0]]
        done = client.predict({"ids_id": [9], "ids_value": [[1.5]]}, signature="assign")
        assert done["ids_result"].tolist() == 1
        assert client.score(example(user=9))["score"].tolist() == [2.0]


@BOTH
def test_a_client_learns_versions_states_and_signatures(transport: Any, serve: Callable[..., LinearServer]) -> None:
    served = serve()
    served.write(2, bias=9.0)
    (served.folder / "m" / "3").mkdir()
    config = ModelConfig(
        name="m", base_path=served.folder / "m", policy=VersionPolicy(kind="all"), labels={"old": 1, "new": 2}
    )
    with pytest.raises(ModelNotReady, match="m 3:"):
        served.server.configure([config], 60)
    with served.client(transport) as client:
        found = {each.version: each for each in client.status()}
        assert {version: each.state for version, each in found.items()} == {1: "AVAILABLE", 2: "AVAILABLE", 3: "END"}
        assert "holds no linear model" in found[3].error
        assert [each.version for each in client.status(version=2)] == [2]
        assert [each.version for each in client.status(label="old")] == [1]
        assert client.score(example())["score"].tolist() == [9.0]
        assert client.score(example(), version=1)["score"].tolist() == [0.5]
        assert client.score(example(), label="old")["score"].tolist() == [0.5]
        signatures = client.metadata(version=2)
        assert set(signatures) == {"serving_default", "single", "lookup", "assign"}
        assert signatures["lookup"] == {
            "inputs": {"ids": ("DT_INT64", (-1,))},
            "outputs": {"ids": ("DT_FLOAT", (-1, 1))},
        }
        for choice in ({"version": 3}, {"version": 77}, {"label": "none"}, {"model": "none"}):
            with pytest.raises(ModelNotFound):
                client.score(example(), **choice)
        for wrong in ({"version": 77}, {"label": "none"}, {"model": "none"}):
            with pytest.raises(ModelNotFound):
                client.status(**wrong)
            with pytest.raises(ModelNotFound):
                client.metadata(**wrong)


@BOTH
def test_errors_come_back_as_ours(transport: Any, serve: Callable[..., LinearServer]) -> None:
    served = serve()
    with served.client(transport) as client:
        with pytest.raises(InvalidRequest, match="record at byte 0"):
            client.score(b"\xff\xff")
        with pytest.raises(InvalidRequest, match="is 'x', expected one of"):
            client.score(example(), signature="x")

        def fail() -> None:
            raise RuntimeError("the model broke")

        served.loaded[0].before_score = fail
        with pytest.raises(ServingError, match="RuntimeError") as caught:
            client.score(example())
        assert "the model broke" not in str(caught.value), "the message stays in the log of the server"
    with pytest.raises(ConfigError, match="model is empty"), Client("127.0.0.1:1") as nobody:
        nobody.status()
    with pytest.raises(ConfigError, match="ftp"):
        Client("ftp://x")


def test_concurrent_requests_are_computed_together_and_each_gets_its_own_rows(
    serve: Callable[..., LinearServer],
) -> None:
    served = serve(weights={index: float(index) for index in range(64)}, batching=BatchSettings(threads=1))
    gate, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert gate.wait(60)

    served.loaded[0].before_score = wait
    answers: dict[int, Any] = {}

    def ask(client: Client, index: int) -> None:
        try:
            if index % 8 == 5:
                answers[index] = client.score([b"\xff", example_batch([1])], "example_batch")
            else:
                answers[index] = client.score(example_batch([index] * (index % 3 + 1)), "example_batch")[
                    "score"
                ].tolist()
        except ServingError as error:
            answers[index] = error

    with served.client("grpc") as one, served.client("rest") as other:
        first = threading.Thread(target=ask, args=(one, 0))
        first.start()
        assert begun.wait(60)
        rest = [threading.Thread(target=ask, args=((one, other)[index % 2], index)) for index in range(1, 32)]
        for thread in rest:
            thread.start()
        # Bad requests are refused before they are queued.
        eventually(lambda: served.server.queue.queued[0] >= 27)
        gate.set()
        for thread in [first, *rest]:
            thread.join(60)
    for index in range(32):
        if index % 8 == 5:
            assert isinstance(answers[index], InvalidRequest)
        else:
            assert answers[index] == [index + 0.5] * (index % 3 + 1)
    assert served.loaded[0].calls == [1, 27]


def test_one_bad_record_fails_its_own_request_only(serve: Callable[..., LinearServer]) -> None:
    served = serve(batching=BatchSettings(threads=1))
    gate, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert gate.wait(60)

    served.loaded[0].before_score = wait
    answers: list[Any] = [None] * 4

    def ask(client: Client, index: int) -> None:
        try:
            answers[index] = client.score(b"\xff" if index == 2 else example(user=7))["score"].tolist()
        except InvalidRequest as error:
            answers[index] = str(error)

    with served.client() as client:
        threads = [threading.Thread(target=ask, args=(client, index)) for index in range(4)]
        threads[0].start()
        assert begun.wait(60)
        for thread in threads[1:]:
            thread.start()
        eventually(lambda: served.server.queue.queued[0] >= 3)
        gate.set()
        for thread in threads:
            thread.join(60)
    assert [answers[index] for index in (0, 1, 3)] == [[2.5]] * 3
    assert "record at byte 0" in answers[2]


@BOTH
def test_a_full_queue_sheds(transport: Any, serve: Callable[..., LinearServer]) -> None:
    served = serve(batching=BatchSettings(threads=1, max_queued_rows=1), request_timeout_s=60.0)
    gate, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert gate.wait(60)

    served.loaded[0].before_score = wait
    with served.client(transport) as client:
        found: list[Any] = []
        running = [threading.Thread(target=lambda: found.append(client.score(example()))) for _ in range(2)]
        running[0].start()
        assert begun.wait(60)
        running[1].start()
        eventually(lambda: served.server.queue.queued[0] >= 1)
        with pytest.raises(Overloaded if transport == "grpc" else ModelNotReady, match="queue is full"):
            client.score(example())
        gate.set()
        for thread in running:
            thread.join(60)
        assert [answer["score"].tolist() for answer in found] == [[0.5], [0.5]]


@BOTH
def test_a_deadline_is_kept_and_a_late_request_is_not_computed(
    transport: Any, serve: Callable[..., LinearServer]
) -> None:
    served = serve(batching=BatchSettings(threads=1), request_timeout_s=60.0 if transport == "grpc" else 0.2)
    gate, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert gate.wait(60)

    served.loaded[0].before_score = wait
    told: list[BaseException | None] = []

    def ask_first(client: Client) -> None:
        try:
            client.score(example())
            told.append(None)
        except RpcTimeout as error:
            told.append(error)

    with served.client() as first, served.client(transport) as client:
        running = threading.Thread(target=ask_first, args=(first,))
        running.start()
        assert begun.wait(60)
        with pytest.raises(RpcTimeout):
            client.score(example(), timeout_s=0.2 if transport == "grpc" else 60.0)
        if transport == "rest":  # REST has one timeout for all requests
            running.join(60)
        gate.set()
        running.join(60)
        assert served.server.queue.drain(60)
    assert (told[0] is None) == (transport == "grpc")
    assert served.loaded[0].calls == [1]


def test_the_models_can_be_changed_over_grpc(serve: Callable[..., LinearServer], tmp_path: Path) -> None:
    served = serve()
    write_version(tmp_path / "other", 5, bias=5.0)
    config = 'model_config_list {{ config {{ name: "{}" base_path: "{}" }} }}'
    with served.client() as client:
        client.reload(config.format("other", tmp_path / "other"))
        assert client.score(example(), model="other")["score"].tolist() == [5.0]
        with pytest.raises(ModelNotFound):
            client.score(example())
        (tmp_path / "bad" / "1").mkdir(parents=True)
        with pytest.raises(ModelNotReady, match="bad 1"):
            client.reload(config.format("bad", tmp_path / "bad"))
        client.reload(config.format("empty", tmp_path / "empty"))  # an empty folder is allowed
        client.reload("model_config_list {}")
        assert served.server.models.names() == []
        with pytest.raises(InvalidRequest, match="base_path of model"):
            client.reload('model_config_list { config { name: "x" } }')
        with pytest.raises(InvalidRequest, match="config is empty"):
            client.reload("")
    with served.client("rest") as client, pytest.raises(ConfigError, match="REST has no reload"):
        client.reload("model_config_list {}")


def test_the_config_file_is_read_again_and_a_broken_one_changes_nothing(
    serve: Callable[..., LinearServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_version(tmp_path / "a", 1, bias=1.0)
    write_version(tmp_path / "b", 1, bias=2.0)
    file = tmp_path / "models.conf"
    config = 'model_config_list {{ config {{ name: "{}" base_path: "{}" }} }}'
    file.write_text(config.format("a", tmp_path / "a"))
    served = serve(model_config_file=file, model_config_poll_s=0.01)
    assert served.server.models.names() == ["a"]
    file.write_text("what is this")
    eventually(lambda: "config-poll failed" in caplog.text)
    assert served.server.models.names() == ["a"]
    file.write_text(config.format("b", tmp_path / "b"))
    eventually(lambda: served.server.models.names() == ["b"])
    with pytest.raises(ConfigError, match="expected a readable file"):
        serve(model_config_file=tmp_path / "absent.conf")


def test_new_versions_are_found_by_themselves(serve: Callable[..., LinearServer]) -> None:
    served = serve(version_poll_s=0.01)
    served.write(2, bias=7.0, warm_up_requests=3)
    with served.client() as client:
        eventually(lambda: client.score(example())["score"].tolist() == [7.0])
    assert served.loaded[-1].calls[:3] == [1, 1, 1]  # warmed up before its first request


def test_swaps_under_load_fail_no_request_mix_no_answer_and_leave_no_version_behind(
    serve: Callable[..., LinearServer],
) -> None:
    served = serve(weights={user: float(user) for user in range(8)})
    ended, errors = threading.Event(), []
    seen: dict[str, set[tuple[float, ...]]] = {"grpc": set(), "rest": set()}

    def expected(bias: float) -> tuple[float, ...]:
        return tuple(bias + user for user in range(8))

    def ask(transport: Any) -> None:
        with served.client(transport) as client:
            while not ended.is_set():
                try:
                    seen[transport].add(tuple(client.score(example_batch(range(8)), "example_batch")["score"].tolist()))
                except Exception as error:
                    errors.append(error)
                    return

    threads = [threading.Thread(target=ask, args=(transport,)) for transport in seen]
    for thread in threads:
        thread.start()
    for version in range(2, 8):
        served.write(version, bias=float(version), weights={user: float(user) for user in range(8)})
        served.poll()
        answer = expected(version)
        eventually(lambda answer=answer: bool(errors) or all(answer in each for each in seen.values()))
    ended.set()
    for thread in threads:
        thread.join(60)
    assert not errors
    for each in seen.values():  # every answer is of one version, whole
        assert each <= {expected(0.5), *(expected(version) for version in range(2, 8))}
    # The background check of a version counts as a request: the version is closed after it.
    eventually(lambda: all(model.is_closed for model in served.loaded[:-1]))
    gone = [weakref.ref(model) for model in served.loaded[:-1]]
    served.loaded.clear()

    def is_freed() -> bool:
        gc.collect()
        return all(each() is None for each in gone)

    eventually(is_freed)


def test_health_readiness_metrics_and_the_description_are_served(serve: Callable[..., LinearServer]) -> None:
    served = serve()
    with served.client() as client:
        client.score(example())
        with pytest.raises(InvalidRequest):
            client.score(b"\xff")
    assert json.loads(get(served, "/healthz")) == {"status": "ok"}
    assert json.loads(get(served, "/readyz")) == {"status": "ok"}
    assert json.loads(get(served, "/openapi.json")) == json.loads(json.dumps(description()))
    page = get(served, "/metrics")
    assert page.splitlines()[:3] == get(served, "/monitoring/prometheus/metrics").splitlines()[:3]
    for line in (
        "monolith_serving_up 1",
        'monolith_serving_requests_total{model="m",api="grpc",code="OK"} 1',
        'monolith_serving_requests_total{model="m",api="grpc",code="INVALID_ARGUMENT"} 1',
        'monolith_serving_version_state{model="m",version="1"} 30',
        'monolith_serving_request_seconds_count{model="m",api="grpc"} 2',
    ):
        assert line in page
    channel = grpc.insecure_channel(served.server.address)
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=messages.HealthCheckRequest.SerializeToString,
        response_deserializer=messages.HealthCheckResponse.FromString,
    )
    assert check(messages.HealthCheckRequest(), timeout=60).status == 1
    served.server.models.configure([ModelConfig(name="none", base_path=served.folder / "none")])
    assert check(messages.HealthCheckRequest(), timeout=60).status == 2
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        get(served, "/readyz")
    refused.value.close()
    channel.close()


def test_a_sample_of_the_requests_is_logged_and_can_be_replayed(
    serve: Callable[..., LinearServer], tmp_path: Path
) -> None:
    served = serve(request_log_rate=1.0, request_log_prefix=str(tmp_path / "log"))
    with served.client() as client:
        for user in (7, 8):
            client.score(example(user=user))
        with pytest.raises(InvalidRequest):
            client.score(b"\xff")
    served.server.stop()
    (file,) = tmp_path.glob("log-*.tfrecord")
    logs = [messages.PredictionLog.FromString(each).predict_log for each in read_tfrecords(file)]
    assert [list(log.response.outputs["score"].float_val) for log in logs] == [[2.5], [4.5]]
    assert logs[0].request.inputs["examples"].string_val[0] == example(user=7)
    assert logs[0].response.model_spec.version.value == 1


def test_a_stopping_server_answers_its_requests_and_refuses_new_ones(serve: Callable[..., LinearServer]) -> None:
    served = serve(drain_s=60.0)
    gate, begun = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        begun.release()
        assert gate.wait(60)

    served.loaded[0].before_score = wait
    answers: list[Any] = []
    with served.client("grpc") as one, served.client("rest") as other:
        asking = [
            threading.Thread(target=lambda each=each: answers.append(each.score(example()))) for each in (one, other)
        ]
        for thread in asking:
            thread.start()
            assert begun.acquire(timeout=60)
        stopping = threading.Thread(target=served.server.stop)
        stopping.start()
        eventually(lambda: not served.server.is_ready)
        with pytest.raises((ServingError, ClusterError)):  # refused, or too late to be refused and without an answer
            one.score(example(), timeout_s=1.0)
        gate.set()
        for thread in [*asking, stopping]:
            thread.join(60)
            assert not thread.is_alive()
    assert [answer["score"].tolist() for answer in answers] == [[0.5], [0.5]]
    assert served.loaded[0].is_closed


def test_without_the_token_only_health_is_answered(serve: Callable[..., LinearServer]) -> None:
    served = serve(security=Security(token="s3cret"))
    for transport in ("grpc", "rest"):
        with served.client(transport, security=Security(token="s3cret")) as client:
            assert client.score(example())["score"].tolist() == [0.5]
        for wrong in (None, Security(token="s3cres")):
            with served.client(transport, security=wrong) as client, pytest.raises(NotPermitted, match="bearer token"):
                client.score(example())
    assert get(served, "/healthz")
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        get(served, "/metrics")
    refused.value.close()


def test_both_apis_speak_tls_and_ask_for_a_certificate_where_they_should(
    serve: Callable[..., LinearServer], authority: Authority
) -> None:
    own = authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")._asdict()
    ca = authority.ca_file
    served = serve(security=Security(**own))
    for address in (served.server.address, f"https://{served.server.rest_address}"):
        with Client(address, model="m", security=Security(ca_file=ca)) as client:
            assert client.score(example())["score"].tolist() == [0.5]
    with Client(f"http://{served.server.rest_address}", model="m") as client, pytest.raises(ModelNotReady):
        client.score(example())
    mutual = serve(security=Security(**own, ca_file=ca))
    for address in (mutual.server.address, f"https://{mutual.server.rest_address}"):
        stranger = Client(address, model="m", security=Security(ca_file=ca))
        with stranger, pytest.raises((ServingError, ClusterError)):
            stranger.score(example())
        known = Security(**own, ca_file=ca)
        with Client(address, model="m", security=known) as client:
            assert client.score(example())["score"].tolist() == [0.5]


@pytest.mark.parametrize(
    ("response", "kind", "said"),
    [
        (
            b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"outputs":',
            ModelNotReady,
            "is cut or no HTTP .IncompleteRead",
        ),
        (b"\x00\x00\x18\x04\r\n\r\n", ModelNotReady, "is cut or no HTTP .BadStatusLine.*give the REST address"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", ServingError, "is b'<html>', expected JSON"),
    ],
)
def test_a_rest_response_that_is_cut_or_foreign_is_an_error_of_ours(
    response: bytes, kind: type[Exception], said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                connection.recv(1 << 16)
                connection.sendall(response)

        answering = threading.Thread(target=answer)
        answering.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(address, model="m", timeout_s=60) as client, pytest.raises(kind, match=said):
            client.status()
        answering.join(60)


@pytest.mark.parametrize(
    ("field", "content", "said"),
    [
        ("ca_file", b"no certificate", r"ca_file is '.*wrong\.pem', expected certificates"),
        ("ca_file", None, r"ca_file is '.*wrong\.pem', which cannot be read"),
        ("cert_file", b"no certificate", r"cert_file is '.*wrong\.pem', expected a certificate that fits"),
        ("key_file", None, r"key_file is '.*wrong\.pem', which cannot be read"),
    ],
)
@pytest.mark.parametrize("end", ["client", "off", "auto"])
def test_a_wrong_tls_file_is_named(
    end: Any, field: str, content: bytes | None, said: str, tmp_path: Path, authority: Authority
) -> None:
    files: dict[str, Any] = {**authority.sign("localhost", "DNS:localhost")._asdict(), "ca_file": authority.ca_file}
    files[field] = tmp_path / "wrong.pem"
    if content is not None:
        files[field].write_bytes(content)
    security = Security(**files)

    def open_end() -> None:
        if end == "client":
            Client("https://localhost:1", model="m", security=security)
        else:
            ModelServer(ServingConfig(port=None, rest_port=0, native=end, security=security), LinearModel).start()

    with pytest.raises(ConfigError, match=said):
        open_end()


@pytest.mark.parametrize("native", ["off", "auto"])
def test_a_server_with_an_authority_alone_never_starts_without_tls(native: Any, authority: Authority) -> None:
    config = ServingConfig(port=None, rest_port=0, native=native, security=Security(ca_file=authority.ca_file))
    server = ModelServer(config, LinearModel)
    try:
        with pytest.raises(ConfigError, match="cert_file or key_file is missing"):
            server.start()
    finally:
        server.stop(0.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"port": 70000}, "port is 70000"),
        ({"port": None, "rest_port": None}, "at least one port"),
        ({"max_calls": 0}, "max_calls is 0"),
        ({"max_message_bytes": 1 << 31}, "less than 2 GiB"),
        ({"request_timeout_s": 0}, "request_timeout_s is 0"),
        ({"drain_s": -1}, "drain_s is -1"),
        ({"drain_s": float("inf")}, "drain_s is inf, expected a finite number from 0"),
        ({"request_timeout_s": float("inf")}, "request_timeout_s is inf, expected a finite number above 0"),
        ({"version_poll_s": float("inf")}, "version_poll_s is inf"),
        ({"metrics_path": "x"}, "begins with /"),
        ({"models": [ModelConfig(name="a", base_path=Path("/x"))], "model_config_file": Path("y")}, "one of them"),
        ({"models": [ModelConfig(name="a", base_path=Path("/x"))] * 2}, "unique names"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ServingConfig(**settings)


def test_a_port_in_use_is_reported_and_leaves_no_thread(serve: Callable[..., LinearServer]) -> None:
    taken = int(serve().server.address.rpartition(":")[2])
    rest = int(serve().server.rest_address.rpartition(":")[2])
    before = threading.active_count()
    for settings in ({"port": taken, "rest_port": None}, {"port": None, "rest_port": rest}):
        with pytest.raises(ClusterError, match=r"cannot listen on \S+ \(Address already in use\); give a free port"):
            ModelServer(ServingConfig(**settings), LinearModel).start()
    assert threading.active_count() <= before


def test_a_server_and_a_client_start_without_torch() -> None:
    code = "import sys, monolith.serving.server, monolith.serving.api.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_large_body_is_parsed_while_other_clients_are_answered(
    serve: Callable[..., LinearServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(port=None)
    parsing, released = threading.Event(), threading.Event()
    threads: list[str] = []

    def parse(body: bytes, max_values: int) -> Any:
        threads.append(threading.current_thread().name)
        parsing.set()
        assert released.wait(60)
        return parse_body(body, max_values)

    monkeypatch.setattr(rest, "parse_body", parse)
    body = json.dumps({"inputs": {"examples": [{"b64": base64.b64encode(example()).decode()}] * 10_000}}).encode()
    for packed in (False, True):
        parsing.clear()
        released.clear()
        answers: list[int] = []

        def post(packed: bool = packed, answers: list[int] = answers) -> None:
            headers = {"Content-Encoding": "gzip"} if packed else {}
            request = urllib.request.Request(
                f"http://{served.server.rest_address}/v1/models/m:predict",
                gzip.compress(body) if packed else body,
                headers,
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                answers.append(answer.status)

        client = threading.Thread(target=post)
        client.start()
        assert parsing.wait(60)
        assert get(served, "/healthz")
        released.set()
        client.join(60)
        assert answers == [200]
    assert all(name.startswith("rest-parse") for name in threads)


def test_a_small_gzip_body_of_millions_of_values_is_refused(serve: Callable[..., LinearServer]) -> None:
    served = serve(port=None)
    body = b'{"instances": [' + b"{}," * 5_000_000 + b"{}]}"
    packed = gzip.compress(body)
    for sent, coding, status in ((packed, "gzip", 413), (body, "identity", 400)):
        request = urllib.request.Request(
            f"http://{served.server.rest_address}/v1/models/m:predict", sent, {"Content-Encoding": coding}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert refused.value.code == status
        text = refused.value.read().decode()
        assert "unpacked body" in text if coding == "gzip" else "10000004 values" in text
        refused.value.close()


def test_a_stop_does_not_wait_for_a_long_scan(
    serve: Callable[..., LinearServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_scanning, is_scanned = threading.Event(), threading.Event()
    served = serve(version_poll_s=0.01)

    def download(config: ModelConfig) -> None:
        is_scanning.set()
        assert is_scanned.wait(60)

    monkeypatch.setattr(server, "_SCAN_END_S", 0.1)
    monkeypatch.setattr(hosted_models, "pull_versions", download)
    assert is_scanning.wait(60)
    stopping = threading.Thread(target=served.server.stop, args=(0.0,), daemon=True)
    stopping.start()
    stopping.join(30)
    has_stopped = not stopping.is_alive()
    is_scanned.set()
    (scan,) = served.server._pollers
    scan.join(60)
    assert has_stopped
    assert not scan.is_alive()
    assert served.server.models.names() == []


def test_a_health_check_does_not_wait_behind_scores(serve: Callable[..., LinearServer]) -> None:
    served = serve(native="on", grpc_threads=1, max_calls=4)
    gate, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert gate.wait(60)

    served.loaded[0].before_score = wait
    scores: list[Any] = []
    with served.client("grpc") as client, grpc.insecure_channel(served.server.address) as channel:
        asking = [threading.Thread(target=lambda: scores.append(client.score(example()))) for _ in range(2)]
        for thread in asking:
            thread.start()
        assert begun.wait(60)
        try:
            check = channel.unary_unary(f"/{messages.HEALTH_SERVICE}/Check")  # type: ignore[call-arg]
            assert messages.HealthCheckResponse.FromString(check(b"", timeout=20)).status == 1
        finally:
            gate.set()
            for thread in asking:
                thread.join(60)
    assert len(scores) == 2

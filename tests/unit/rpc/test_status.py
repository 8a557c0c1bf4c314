"""One table maps errors to codes, and an error crosses the wire as the class that it was."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc as library
import pytest

from monolith.core import errors
from monolith.core.errors import MonolithError
from monolith.ps import messages
from monolith.rpc import grpc
from monolith.rpc.security import Security
from monolith.rpc.status import Code, client_text, code_of, error_class, error_name, http_status, text_of

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MonolithError)]
METHODS = {"Drain": (messages.DrainRequest, messages.DrainResponse)}


@pytest.mark.parametrize(
    ("error", "code", "http"),
    [
        (errors.SchemaMismatch("x"), Code.FAILED_PRECONDITION, 412),
        (errors.RecordCorrupt("x"), Code.INVALID_ARGUMENT, 400),
        (errors.ModelNotReady("x"), Code.UNAVAILABLE, 503),
        (errors.NoSuchService("x"), Code.UNAVAILABLE, 503),
        (errors.RpcTimeout("x"), Code.DEADLINE_EXCEEDED, 504),
        (errors.DeltaLogBroken("x"), Code.DATA_LOSS, 500),
        (errors.VersionConflict("x"), Code.FAILED_PRECONDITION, 412),
        (FileNotFoundError("x"), Code.NOT_FOUND, 404),
        (KeyError("x"), Code.INTERNAL, 500),
    ],
)
def test_an_error_has_a_code_and_an_http_status(error: Exception, code: Code, http: int) -> None:
    assert (code_of(error), http_status(code_of(error))) == (code, http)


def test_a_long_text_is_cut_for_the_header() -> None:
    assert text_of(errors.ConfigError("x" * 5000)) == "x" * 1000 + "..."


def test_a_private_subclass_travels_as_its_public_base() -> None:
    class Hidden(errors.ShardUnavailable):
        pass

    assert error_name(Hidden("x")) == "ShardUnavailable"
    assert error_class("os") is None


class Failing:
    """A server whose Drain raises ``error``."""

    def __init__(self) -> None:
        self.error: Exception = errors.ConfigError("unset")
        self._server = grpc.make_server(
            ThreadPoolExecutor(1), {"Test": grpc.method_handlers(METHODS, {"Drain": self._fail})}, Security(), 1 << 20
        )
        self.address = f"127.0.0.1:{grpc.bind(self._server, '127.0.0.1:0', Security())}"
        self._server.start()
        self._channel = grpc.open_channel(self.address, Security(), 1 << 20)
        request, response = METHODS["Drain"]
        self._call = self._channel.unary_unary(
            "/Test/Drain", request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )

    def _fail(self, request: Any, context: Any) -> Any:
        raise self.error

    def raised(self, error: Exception) -> MonolithError:
        """Return the error that the client makes of the server's."""
        self.error = error
        try:
            self._call(messages.DrainRequest(), timeout=20)
        except grpc.CallError as call_error:
            return grpc.translate_error(call_error, "Drain", self.address)
        raise AssertionError("the call succeeded")

    def close(self) -> None:
        """Stop the server."""
        self._channel.close()
        self._server.stop(0).wait(20)


@pytest.fixture(scope="module")
def server() -> Iterator[Failing]:
    failing = Failing()
    yield failing
    failing.close()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_raised_as_its_class_by_the_client(server: Failing, kind: type[MonolithError]) -> None:
    raised = server.raised(kind("rows are 7, expected 8"))
    assert type(raised) is kind
    assert "rows are 7, expected 8" in str(raised)
    assert server.address in str(raised)


def test_an_error_that_is_not_ours_becomes_a_cluster_error_with_its_code(server: Failing) -> None:
    assert "NOT_FOUND" in str(server.raised(FileNotFoundError("no file 'x'")))
    raised = server.raised(KeyError("x"))
    assert type(raised) is errors.ClusterError
    assert "KeyError" in str(raised)
    assert "INTERNAL" in str(raised)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("1 versions failed to load: clicks 2", "the server is not ready, or the connection broke"),
        ("failed to connect to all addresses; Connection refused", "no server answers"),
        (
            "failed to connect to all addresses; CERTIFICATE_VERIFY_FAILED: certificate has expired",
            "its certificate, or that of its authority, has expired; renew it",
        ),
    ],
)
def test_a_failed_call_names_its_cause(text: str, cause: str) -> None:
    error = SimpleNamespace(
        code=lambda: library.StatusCode.UNAVAILABLE, details=lambda: text, trailing_metadata=lambda: ()
    )
    assert str(grpc.translate_error(error, "Reload", "127.0.0.1:1")) == f"Reload at 127.0.0.1:1: {cause} ({text})"


def test_clients_get_the_text_of_every_error_except_unforeseen_ones() -> None:
    assert client_text(MonolithError("the disk of shard 3 is full")) == "the disk of shard 3 is full"
    assert client_text(errors.ConfigError("dim is 0, expected 1")) == "dim is 0, expected 1"
    assert "secret" not in client_text(RuntimeError("secret"))
    for error in (FileNotFoundError("gone"), MemoryError("no room")):  # built-in errors with a code
        assert str(error) in client_text(error)

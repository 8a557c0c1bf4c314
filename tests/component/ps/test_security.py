"""Callers of a server need its token and certificate; a server refuses all other callers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from monolith.core.errors import ClusterError, ConfigError, MonolithError
from monolith.core.retry import RetryPolicy
from monolith.embedding import Sgd, SliceSpec, TableSpec
from monolith.ps import PsClient, RemoteStore, Security, messages
from monolith.ps.link import ServerLink
from monolith.rpc.security import read_token
from monolith.testing.processes.certificates import Authority, Certificate
from monolith.testing.processes.ps_servers import PsServers

TABLE = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))])
ONCE = RetryPolicy(attempts=1)


@pytest.fixture(scope="module")
def server(authority: Authority) -> Certificate:
    return authority.sign("server", "DNS:localhost", "IP:127.0.0.1")


def trains(servers: PsServers, security: Security) -> str:
    with RemoteStore(servers.addresses, [TABLE], security=security, retries=ONCE, timeout_s=20) as store:
        store.push({"t": np.array([1])}, {"t": np.array([[-1.0]], np.float32)})
        assert store.pull({"t": np.array([1])})["t"].tolist() == [[1.0]]
        return store.transport


def test_without_the_token_every_call_is_refused(serve: Callable[..., PsServers]) -> None:
    servers = serve(1, security=Security(token="s3cret"))
    for wrong in (Security(), Security(token="s3cres"), Security(token="s3cret ")):
        with pytest.raises(ClusterError, match="bearer token is missing or wrong"):
            RemoteStore(servers.addresses, [TABLE], security=wrong)
        with pytest.raises(ClusterError, match="bearer token is missing or wrong"):
            PsClient(servers.addresses, security=wrong)


def test_a_call_without_the_token_is_refused_before_its_message_is_received(serve: Callable[..., PsServers]) -> None:
    servers = serve(1, security=Security(token="secret"), max_message_bytes=1 << 20)
    request = messages.FusedRequest(payload=bytes(8 << 20))
    stranger = ServerLink(servers.addresses[0], max_message_bytes=64 << 20)
    # A server that had received the message would have answered that it is too large.
    with closing(stranger), pytest.raises(ClusterError, match="bearer token is missing or wrong"):
        stranger.call("FusedPush", request, 30)
    known = ServerLink(servers.addresses[0], Security(token="secret"), max_message_bytes=64 << 20)
    with closing(known), pytest.raises(MonolithError, match="larger than max"):
        known.call("FusedPush", request, 30)


def test_with_the_token_the_data_plane_is_open_too(serve: Callable[..., PsServers]) -> None:
    servers = serve(2, security=Security(token="s3cret"))
    assert trains(servers, Security(token="s3cret")) == "data_plane"


def test_tls_keeps_everything_on_grpc(
    serve: Callable[..., PsServers], authority: Authority, server: Certificate
) -> None:
    servers = serve(1, security=Security(**server._asdict(), token="x"))
    assert trains(servers, Security(ca_file=authority.ca_file, token="x")) == "grpc"
    with pytest.raises(ClusterError, match="token"):
        trains(servers, Security(ca_file=authority.ca_file))
    with pytest.raises(MonolithError, match=r"TLS.*ca_file"):
        trains(servers, Security(token="x"))  # in the clear


def test_mutual_tls_asks_clients_for_a_certificate(
    serve: Callable[..., PsServers], authority: Authority, server: Certificate
) -> None:
    ca = authority.ca_file
    servers = serve(1, security=Security(**server._asdict(), ca_file=ca))
    mine = Security(ca_file=ca, **authority.sign("client", "DNS:client")._asdict())
    assert trains(servers, mine) == "grpc"
    with pytest.raises(MonolithError, match=r"client certificate.*cert_file"):
        trains(servers, Security(ca_file=ca))


def test_certificates_that_cannot_be_used_are_not_called_a_taken_port(
    serve: Callable[..., PsServers], authority: Authority, server: Certificate, tmp_path: Path
) -> None:
    (tmp_path / "text.pem").write_text("no certificate\n")
    other = authority.sign("other", "DNS:other")
    for wrong in (
        Security(cert_file=tmp_path / "text.pem", key_file=server.key_file),
        Security(cert_file=server.cert_file, key_file=other.key_file),
        Security(**server._asdict(), ca_file=tmp_path / "text.pem"),
    ):
        with pytest.raises(ConfigError, match="PEM files"):
            serve(1, security=wrong)


def test_an_empty_token_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert read_token(None, "--token-file") == ""
    with pytest.raises(ConfigError, match=r"--token-file is '.*/token', which cannot be read"):
        read_token(path, "--token-file")
    path.write_text("\n")
    with pytest.raises(ConfigError, match=r"--token-file is '.*/token', which is empty"):
        read_token(path, "--token-file")
    path.write_text(" s3cret\n")
    assert read_token(path, "--token-file") == "s3cret"


def test_half_a_pair_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cert_file is given without key_file"):
        Security(cert_file=tmp_path / "a")
    with pytest.raises(ConfigError, match="key_file is given without cert_file"):
        Security(key_file=tmp_path / "a")
    with pytest.raises(ConfigError, match="cannot be read"):
        Security(ca_file=tmp_path / "absent").read("ca_file")
    with pytest.raises(ConfigError, match=r"Security\.token has characters"):
        Security(token="a\nb")
    assert "s3cret" not in repr(Security(token="s3cret"))

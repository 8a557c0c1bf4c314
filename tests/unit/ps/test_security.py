"""Who may call a server: tokens, certificates, and what happens to those who have none."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from monolith.core.errors import ClusterError, ConfigError, MonolithError
from monolith.core.retry import RetryPolicy
from monolith.embedding import Sgd, SliceSpec, TableSpec
from monolith.ps import PsClient, RemoteStore, Security
from monolith.testing.ps_servers import PsServers

TABLE = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))])
ONCE = RetryPolicy(attempts=1)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and a server's and a client's certificate that it signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is absent; it makes the certificates")
    folder = tmp_path_factory.mktemp("certificates")

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    run("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    for name in ("server", "client"):
        (folder / f"{name}.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        run("req", "-new", *key[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem"),
        )
    return folder


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


def test_with_the_token_the_data_plane_is_open_too(serve: Callable[..., PsServers]) -> None:
    servers = serve(2, security=Security(token="s3cret"))
    assert trains(servers, Security(token="s3cret")) == "data_plane"


def test_tls_keeps_everything_on_grpc(serve: Callable[..., PsServers], certificates: Path) -> None:
    servers = serve(
        1, security=Security(cert_file=certificates / "server.pem", key_file=certificates / "server.key", token="x")
    )
    assert trains(servers, Security(ca_file=certificates / "ca.pem", token="x")) == "grpc"
    with pytest.raises(ClusterError, match="token"):
        trains(servers, Security(ca_file=certificates / "ca.pem"))
    with pytest.raises(MonolithError):
        trains(servers, Security(token="x"))  # in the clear


def test_mutual_tls_asks_clients_for_a_certificate(serve: Callable[..., PsServers], certificates: Path) -> None:
    ca = certificates / "ca.pem"
    servers = serve(
        1,
        security=Security(cert_file=certificates / "server.pem", key_file=certificates / "server.key", ca_file=ca),
    )
    mine = Security(ca_file=ca, cert_file=certificates / "client.pem", key_file=certificates / "client.key")
    assert trains(servers, mine) == "grpc"
    with pytest.raises(MonolithError):
        trains(servers, Security(ca_file=ca))


def test_half_a_pair_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cert_file is given without key_file"):
        Security(cert_file=tmp_path / "a")
    with pytest.raises(ConfigError, match="key_file is given without cert_file"):
        Security(key_file=tmp_path / "a")
    with pytest.raises(ConfigError, match="cannot be read"):
        Security(ca_file=tmp_path / "absent").read("ca_file")
    with pytest.raises(ConfigError, match="no header can carry"):
        Security(token="a\nb")
    assert "s3cret" not in repr(Security(token="s3cret"))

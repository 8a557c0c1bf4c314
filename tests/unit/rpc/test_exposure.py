"""Connections and secrets that others can read are reported once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from monolith.core.errors import ConfigError
from monolith.ps.link import ServerLink
from monolith.rpc import grpc, security
from monolith.rpc.security import Security, read_token, warn_if_exposed


@pytest.fixture(autouse=True)
def forget_warnings() -> Iterator[None]:
    security._warn_once.cache_clear()
    yield
    security._warn_once.cache_clear()


@pytest.mark.parametrize(
    ("address", "settings", "end", "warning"),
    [
        ("10.0.0.7:80", Security(token="x"), "channel", "token sent without TLS"),
        ("0.0.0.0:80", Security(token="x"), "server", "token sent without TLS"),
        ("[::]:80", Security(), "server", "without token and TLS"),
        ("10.0.0.7:80", Security(), "channel", ""),
        ("10.0.0.7:80", Security(token="x", ca_file=Path("ca")), "channel", ""),
        ("127.0.0.1:80", Security(token="x"), "channel", ""),
        ("[::1]:80", Security(), "server", ""),
        ("localhost:80", Security(token="x"), "server", ""),
        ("unix:/tmp/socket", Security(token="x"), "channel", ""),
    ],
)
def test_an_exposed_connection_is_reported_once(
    caplog: pytest.LogCaptureFixture, address: str, settings: Security, end: str, warning: str
) -> None:
    for _ in range(2):
        warn_if_exposed(address, settings, end)  # type: ignore[arg-type]
    assert len(caplog.messages) == bool(warning)
    assert warning in caplog.text


def test_servers_and_channels_report_exposure(caplog: pytest.LogCaptureFixture) -> None:
    server = grpc.make_server(ThreadPoolExecutor(1), {}, Security(), 1 << 20)
    port = grpc.bind(server, "0.0.0.0:0", Security())
    server.stop(0)
    assert port
    assert "server reachable without token and TLS" in caplog.text
    grpc.open_channel("10.255.255.1:1", Security(token="s3cret"), 1 << 20).close()
    assert "token sent without TLS, use TLS too address=10.255.255.1:1" in caplog.text
    assert "s3cret" not in caplog.text


def test_https_without_tls_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'https://ps-0:80', but TLS is off"):
        ServerLink("https://ps-0:80", Security(token="x"))
    ServerLink("http://127.0.0.1:80").close()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_secret_that_all_users_can_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path = tmp_path / "secret"
    path.write_text("s3cret")
    path.chmod(mode)
    assert read_token(path, "--token-file") == "s3cret"
    assert Security(cert_file=path, key_file=path).read("key_file") == b"s3cret"
    assert len(caplog.messages) == (2 if mode == 0o644 else 0)
    assert ("setting=--token-file" in caplog.text) == (mode == 0o644)


def test_a_token_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"tok\xff")
    with pytest.raises(ConfigError, match=r"--token-file is .*token', which is not text \(byte 3"):
        read_token(path, "--token-file")

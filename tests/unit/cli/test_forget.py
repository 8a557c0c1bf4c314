"""``monolith forget``: an invalid server is refused before the removal, and one without HTTP is reported."""

from __future__ import annotations

import socketserver
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from monolith.cli import forget
from monolith.cli import main as program
from monolith.core.clock import Deadline, SystemClock
from monolith.core.errors import ConfigError, RpcTimeout
from monolith.training.control import client


@pytest.mark.parametrize("server", ["127.0.0.1:rest", "127.0.0.1", "http://127.0.0.1:8501"])
def test_an_invalid_server_is_refused_before_the_removal(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(client, "ControllerClient", lambda *given, **_: calls.append(given))
    with pytest.raises(ConfigError, match="give host:port"):
        CliRunner().invoke(program.app, ["forget", "127.0.0.1:1", "7", "--server", server], catch_exceptions=False)
    assert calls == []


def test_a_server_that_speaks_no_http_is_reported() -> None:
    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\r\n")  # as a gRPC port

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        receipt: Any = SimpleNamespace(cut=3)
        with pytest.raises(RpcTimeout, match=r"has not applied cut 3: BadStatusLine.*; the rows are removed"):
            forget._wait_for_server(address, receipt, Deadline(SystemClock(), 0.5))
        server.shutdown()

"""A trainer that streams over TLS, and model servers with and without what it asks for, all as processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import publishing_child as child
from commands import Shell
from fork_server import fork_context
from served_model import ServedModel

import monolith as mt
from monolith.data.records.reader import read_records
from monolith.export import export_model
from monolith.testing.certificates import Authority
from monolith.testing.ps_processes import free_port


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def start_trainer(folder: Path, port: int, settings: dict[str, Any], stack: ExitStack) -> None:
    trainer = fork_context().Process(target=child.train, args=(folder, port, settings))
    trainer.start()

    def kill() -> None:
        if trainer.is_alive():
            assert trainer.pid is not None
            os.kill(trainer.pid, signal.SIGKILL)
        trainer.join()

    stack.callback(kill)
    waiting = threading.Event()
    while not list((folder / "scores").glob("*.npy")):
        assert trainer.is_alive()
        waiting.wait(0.01)


def test_a_server_that_lacks_what_the_trainer_asks_for_says_so_and_goes_on_serving(
    tmp_path: Path, authority: Authority, stack: ExitStack
) -> None:
    made = mt.Estimator(child.Clicker)
    export_model(made.model, made.store, tmp_path / "exports", name="clicks", step=0, version=1)
    child.write_probe(tmp_path / "probe.pb")
    probe = list(read_records(tmp_path / "probe.pb"))
    for name, token in (("token", "s3cret"), ("wrong", "s3cres")):
        (tmp_path / name).write_text(f"{token}\n")
    trainer, own = authority.sign("trainer", "DNS:trainer.example"), authority.sign("follower", "DNS:follower")
    port = free_port()
    settings = {
        "publish_tls_cert": trainer.cert_file,
        "publish_tls_key": trainer.key_file,
        "publish_tls_ca": authority.ca_file,
        "publish_token_file": tmp_path / "token",
    }
    start_trainer(tmp_path, port, settings, stack)
    known: list[object] = ["--sync-ca", authority.ca_file, "--sync-server-name", "trainer.example"]
    shown: list[object] = ["--sync-cert", own.cert_file, "--sync-key", own.key_file]

    shell = Shell(tmp_path)

    def serve(*flags: object) -> ServedModel:
        source = ("--sync-from", f"127.0.0.1:{port}")
        return stack.enter_context(ServedModel(shell, tmp_path / "exports", *source, *flags))

    refused = [
        (serve("--sync-token-file", tmp_path / "token"), "if it has TLS give the authority"),
        (serve(*known, *shown, "--sync-token-file", tmp_path / "wrong"), "the bearer token is missing or wrong"),
    ]
    follower = serve(*known, *shown, "--sync-token-file", tmp_path / "token")
    exported = refused[0][0].scores(probe)
    follower.wait(lambda: not np.array_equal(follower.scores(probe), exported))
    assert follower.metric("monolith_sync_cut{") > 0
    for server, why in refused:
        np.testing.assert_array_equal(server.scores(probe), exported)
        assert server.metric("monolith_sync_failures_total{") > 0
        assert why in server.said()
        assert "Traceback" not in server.said()

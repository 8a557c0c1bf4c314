"""A publisher that streams over TLS, and model servers, with and without what it asks for, as processes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np

import monolith as mt
import publishing_child as child
from commands import Shell
from monolith.data.records.reader import read_records
from monolith.export import export_model
from monolith.testing.fakes.published import PublishedTables
from monolith.testing.processes.certificates import Authority
from monolith.training.config.publish import PublishConfig
from monolith.training.hooks.publish import copied_weights, stream_of
from served_model import ServedModel


def test_a_server_that_lacks_what_the_publisher_asks_for_says_so_and_goes_on_serving(
    tmp_path: Path, authority: Authority
) -> None:
    made = mt.Estimator(child.Clicker)
    export_model(made.model, made.store, tmp_path / "exports", name="clicks", step=0, version=1)
    child.write_probe(tmp_path / "probe.pb")
    probe = list(read_records(tmp_path / "probe.pb"))
    specs = made.model.declaration.table_specs()
    published = PublishedTables(tmp_path / "published", specs, copied_weights(made.model))
    published.publish_now()
    for name, token in (("token", "s3cret"), ("wrong", "s3cres")):
        (tmp_path / name).write_text(f"{token}\n")
    trainer, own = authority.sign("trainer", "DNS:trainer.example"), authority.sign("follower", "DNS:follower")
    open_stream = stream_of(
        PublishConfig(
            publish_dir=published.root,
            publish_port=0,
            publish_tls_cert=trainer.cert_file,
            publish_tls_key=trainer.key_file,
            publish_tls_ca=authority.ca_file,
            publish_token_file=tmp_path / "token",
        )
    )
    assert open_stream is not None
    known: list[object] = ["--sync-ca", authority.ca_file, "--sync-server-name", "trainer.example"]
    known += ["--sync-cert", own.cert_file, "--sync-key", own.key_file]
    with open_stream() as stream, ExitStack() as stack:
        shell = Shell(tmp_path)

        def serve(*flags: object) -> ServedModel:
            source = ("--sync-from", stream.address)
            return stack.enter_context(ServedModel(shell, tmp_path / "exports", *source, *flags))

        refused = [
            (serve("--sync-token-file", tmp_path / "token"), "if it has TLS"),
            (serve(*known, "--sync-token-file", tmp_path / "wrong"), "the bearer token is missing or wrong"),
        ]
        follower = serve(*known, "--sync-token-file", tmp_path / "token")
        exported = follower.scores(probe)
        published.weights["tower.bias"] += 1
        cut = published.publish_now()
        follower.wait(lambda: follower.metric("monolith_sync_cut{") == cut.number)
        assert (follower.scores(probe) > exported).all()
        for server, why in refused:
            np.testing.assert_array_equal(server.scores(probe), exported)
            assert server.metric("monolith_sync_failures_total{") > 0
            assert why in server.said()
            assert "Traceback" not in server.said()

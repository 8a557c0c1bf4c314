"""The command line of the model server: an invalid option is one line, and settings reach their targets."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from monolith.cli._serve_options import BatchingOptions, MonitoringOptions, NetworkOptions
from monolith.cli._serve_security import SecurityOptions
from monolith.cli.main import app
from monolith.cli.serve import _freeze_after_first
from monolith.core.errors import ConfigError
from monolith.serving import BatchSettings


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("x", "--canary", "--canary-record-kind", "csv"), "--canary-record-kind is 'csv'"),
        (("x", "--canary-records", "absent.pb"), "canary_records is 'absent.pb', expected records"),
        (("x", "--canary", "--canary-max-nan-rate", "-1"), "limit nan_rate is -1.0, expected 0 or more"),
        ((), "BASE_PATH"),
        (("x", "--model_config_file=y"), "BASE_PATH"),
        (("x", "--model-base-path=y"), "BASE_PATH is 'x' and --model-base-path is 'y', expected one"),
        (("--model_config_file=/nowhere/models.conf",), "/nowhere/models.conf"),
        (("x", "--enable_batching=perhaps"), "true or false"),
        (("x", "--grpc_channel_arguments=abc"), "name=value"),
        (("x", "--port=-1", "--rest-port=-1"), "expected at least one port"),
        (("x", "--tls-cert=c"), "without key_file"),
        (("x", "--token-file=absent"), "--token-file is 'absent', which cannot be read"),
        (("x", "--sync-from=a:1", "--sync-key=k"), "key_file is given without cert_file"),
        (("x", "--sync-from=a:1", "--sync-ca=absent.pem"), "ca_file is 'absent.pem', which cannot be read"),
        (("x", "--sync-from=a:1", "--sync-token-file=/dev/null"), "--sync-token-file is '/dev/null', which is empty"),
        (("x", "--remote-token-file=absent"), "--remote-token-file is 'absent', which cannot be read"),
        (("x", "--remote=ps_0=a:1", "--remote-cert=c"), "cert_file is given without key_file"),
        (("x", "--remote=ps_0=a:1", "--remote-ca=absent.pem"), "ca_file is 'absent.pem', which cannot be read"),
        (("x", "--remote=ps_0=a:1", "--remote-file=y"), "--remote and --remote-file"),
        (("x", "--port=0", "--rest-port=-1", "--version-poll-s=0", "--replica=1"), "--replica is 1"),
    ],
)
def test_a_wrong_command_line_is_refused_with_the_remedy(arguments: tuple[str, ...], text: str) -> None:
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert isinstance(done.exception, ConfigError)
    assert text in str(done.exception)


def test_an_unknown_option_is_wrong_usage() -> None:
    done = CliRunner().invoke(app, ["serve", "x", "--model_colour=red"])
    assert done.exit_code == 2


def test_the_files_of_tensorflow_serving_are_understood(tmp_path: Path) -> None:
    batching, monitoring, ssl, token = (tmp_path / name for name in ("batching", "monitoring", "ssl", "token"))
    batching.write_text("max_batch_size { value: 16 }")
    monitoring.write_text("prometheus_config { enable: true path: '/numbers' }")
    ssl.write_text("server_key: 'KEY' server_cert: 'CERT' custom_ca: 'CA' client_verify: true")
    token.write_text("t\n")
    assert BatchingOptions(batching_parameters_file=batching).settings().max_rows == 16
    off = BatchingOptions(batching=False, batch_wait_ms=1.0, batching_parameters_file=batching)
    assert off.settings() == BatchSettings(max_rows=1)
    assert MonitoringOptions(monitoring_config_file=monitoring).settings()["metrics_path"] == "/numbers"
    assert MonitoringOptions().settings()["metrics_path"] == "/monitoring/prometheus/metrics"
    with SecurityOptions(ssl_config_file=ssl, token_file=token).opened() as security:
        assert [security.read(field) for field in ("key_file", "cert_file", "ca_file")] == [b"KEY", b"CERT", b"CA"]
        assert (security.is_mutual, security.token) == (True, "t")
    assert security.key_file is not None
    assert not security.key_file.exists()
    twice = SecurityOptions(tls_cert=tmp_path, tls_key=tmp_path, ssl_config_file=ssl)
    with pytest.raises(ConfigError, match="one of them"), twice.opened():
        pass


def test_channel_arguments_are_numbers_where_they_look_like_it() -> None:
    given = NetworkOptions(grpc_channel_arguments="grpc.max_connection_age_ms=5000,grpc.lb_policy_name=pick")
    assert given.settings()["grpc_options"] == [("grpc.max_connection_age_ms", 5000), ("grpc.lb_policy_name", "pick")]


def test_a_negative_port_is_one_that_is_not_served() -> None:
    settings = NetworkOptions(port=-1, rest_port=0, max_message_mb=3).settings()
    assert (settings["port"], settings["rest_port"], settings["max_message_bytes"]) == (None, 0, 3 << 20)


def test_the_help_has_a_panel_for_each_group() -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"]).output
    for panel in ("Model", "Network", "Batching", "Loading", "Security", "Monitoring", "Sync", "Remote", "Discovery"):
        assert f"{panel} options" in shown


def test_the_collector_skips_objects_of_the_first_load_only() -> None:
    gc.unfreeze()
    loaded: list[Any] = []
    load = _freeze_after_first(lambda folder: loaded.append([[] for _ in range(1000)]) or loaded[-1])
    try:
        assert load(Path("1")) is loaded[0]
        frozen = gc.get_freeze_count()
        assert frozen >= 1000
        assert load(Path("2")) is loaded[1]
        assert gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()

"""The command line of the model server: what cannot be is one line, and settings arrive where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from monolith.cli.main import app
from monolith.cli.serve import _batching, _channel_arguments, _metrics_path, _security
from monolith.core.errors import ConfigError
from monolith.serving import BatchSettings


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x", "--canary", "--canary-record-kind", "csv"), "--canary-record-kind is 'csv'; give one of instance"),
        (("x", "--canary-records", "absent.pb"), "canary_records is 'absent.pb', which cannot be read"),
        (("x", "--canary", "--canary-max-nan-rate", "-1"), "limit of nan_rate is -1.0; give 0 or more"),
        ((), "give either the folder"),
        (("x", "--model_config_file=y"), "give either the folder"),
        (("--model_config_file=/nowhere/models.conf",), "/nowhere/models.conf"),
        (("x", "--enable_batching=perhaps"), "true or false"),
        (("x", "--grpc_channel_arguments=abc"), "name=value"),
        (("x", "--port=-1", "--rest-port=-1"), "both None"),
        (("x", "--tls-cert=c"), "without key_file"),
    ],
)
def test_a_wrong_command_line_is_refused_with_the_remedy(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)


def test_an_option_that_is_none_is_wrong_usage() -> None:
    done = CliRunner().invoke(app, ["serve", "x", "--model_colour=red"])
    assert done.exit_code == 2


def test_the_files_of_tensorflow_serving_are_understood(tmp_path: Path) -> None:
    batching, monitoring, ssl = (tmp_path / name for name in ("batching", "monitoring", "ssl"))
    batching.write_text("max_batch_size { value: 16 }")
    monitoring.write_text("prometheus_config { enable: true path: '/numbers' }")
    ssl.write_text("server_key: 'KEY' server_cert: 'CERT' custom_ca: 'CA' client_verify: true")
    assert _batching(BatchSettings(), True, batching).max_rows == 16
    assert _batching(BatchSettings(wait_s=1.0), False, batching) == BatchSettings(max_rows=1)
    assert _metrics_path(monitoring) == "/numbers"
    assert _metrics_path(None) == "/monitoring/prometheus/metrics"
    with _security(None, None, None, ssl, "t") as security:
        assert [security.read(field) for field in ("key_file", "cert_file", "ca_file")] == [b"KEY", b"CERT", b"CA"]
        assert (security.is_mutual, security.token) == (True, "t")
    assert security.key_file is not None
    assert not security.key_file.exists()
    with pytest.raises(ConfigError, match="one of them"), _security(tmp_path, tmp_path, None, ssl, ""):
        pass


def test_channel_arguments_are_numbers_where_they_look_like_it() -> None:
    assert _channel_arguments("grpc.max_connection_age_ms=5000,grpc.lb_policy_name=pick") == [
        ("grpc.max_connection_age_ms", 5000),
        ("grpc.lb_policy_name", "pick"),
    ]

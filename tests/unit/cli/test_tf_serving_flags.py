"""The flags of tensorflow_model_server mean the same to ``monolith serve``."""

from __future__ import annotations

import pytest

from monolith.cli._tf_serving_flags import translate
from monolith.core.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--port=8500"], ["--port=8500"]),
        (["--port", "8500", "base"], ["--port", "8500", "base"]),
        (["--rest_api_port=8501"], ["--rest-port=8501"]),
        (["--rest-api-port", "8501"], ["--rest-port=8501"]),
        (["--rest_api_port=0"], ["--rest-port=-1"]),
        (["--model_name=m", "--model_base_path", "/m"], ["--name=m", "--model-base-path=/m"]),
        (["--model_config_file=/c"], ["--model-config-file=/c"]),
        (["--model_config_file_poll_wait_seconds=60"], ["--config-poll-s=60"]),
        (["--file_system_poll_wait_seconds=-1"], ["--version-poll-s=0"]),
        (["--enable_batching"], ["--batching"]),
        (["--enable_batching=false", "--enable-model-warmup=true"], ["--no-batching", "--warm-up"]),
        (["--batching_parameters_file=b"], ["--batching-parameters-file=b"]),
        (["--grpc_channel_arguments=a=1,b=2"], ["--grpc-channel-arguments=a=1,b=2"]),
        (["--rest_api_timeout_in_ms=2500"], ["--request-timeout-s=2.5"]),
        (["--load_retry_interval_micros=500000"], ["--load-retry-interval-s=0.5"]),
        (["--num_load_threads=0", "--max_num_load_retries=3"], ["--load-retries=3"]),
        (["--ssl_config_file=s", "--monitoring_config_file=m"], ["--ssl-config-file=s", "--monitoring-config-file=m"]),
        (["--batch-wait-ms", "2", "--json"], ["--batch-wait-ms", "2", "--json"]),
        (["--", "--model_name=m"], ["--", "--model_name=m"]),
    ],
)
def test_a_flag_of_theirs_is_one_of_ours(given: list[str], expected: list[str]) -> None:
    assert translate(given) == (expected, [])


def test_a_flag_without_a_counterpart_is_dropped_and_named() -> None:
    given = ["--tensorflow_session_parallelism=4", "--archon_port=7", "--platform_config_file", "p.cfg", "--port=1"]
    ours, ignored = translate(given)
    assert ours == ["--port=1"]
    assert ignored == ["--tensorflow_session_parallelism", "--archon_port", "--platform_config_file"]


@pytest.mark.parametrize("given", ["--enable_batching=maybe", "--rest_api_timeout_in_ms=soon"])
def test_an_invalid_value_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=given.partition("=")[2]):
        translate([given])

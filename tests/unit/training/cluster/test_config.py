from __future__ import annotations

import pytest

from monolith.core.errors import ConfigError
from monolith.discovery import Discovery
from monolith.sync.push_targets import canonical_target, parse_targets
from monolith.training.cluster import DistributedConfig, from_cluster, run_role
from monolith.training.config import RunnerConfig
from scripted_discovery import ScriptedDiscovery

WORKER_ONLY = [
    {"retry_backoff_ms": 0},
    {"barrier_timeout_ms": 0},
    {"discovery_service_type_worker": ""},
    {"discovery_service_type_worker": "PS"},
]


def test_the_default_is_sound_for_every_role() -> None:
    for role in ("ps", "worker", "evaluator"):
        DistributedConfig(role=role).check()


@pytest.mark.parametrize("values", WORKER_ONLY, ids=str)
def test_rules_of_workers_do_not_bind_servers(values: dict[str, object]) -> None:
    DistributedConfig(role="ps", **values).check()
    with pytest.raises(ConfigError, match=r"^distributed config requires "):
        DistributedConfig(role="worker", **values).check()


@pytest.mark.parametrize("values", [{"num_ps": 0}, {"index": 5}, {"table_name": "a b"}], ids=str)
def test_a_wrong_configuration_is_refused_before_discovery_is_called(values: dict[str, object]) -> None:
    discovery = ScriptedDiscovery()
    assert isinstance(discovery, Discovery)
    with pytest.raises(ConfigError, match="distributed config requires"):
        run_role(discovery, DistributedConfig(**values), lambda session: pytest.fail("the role must not run"))
    assert discovery.calls == []


def test_no_backoff_is_needed_without_retries() -> None:
    DistributedConfig(connect_retries=0, retry_backoff_ms=0).check()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("serving:8500", "http://serving:8500"),
        ("HTTP://Serving:8500", "serving:8500"),
        ("http://serving", "serving:80"),
        ("https://serving/", "HTTPS://SERVING:443"),
        ("http://[::1]:80", "[::1]"),
    ],
)
def test_targets_that_mean_the_same_are_the_same(one: str, other: str) -> None:
    assert canonical_target(one) == canonical_target(other)
    with pytest.raises(ConfigError, match="twice"):
        parse_targets((one, other))


def test_targets_that_differ_are_kept_apart() -> None:
    assert len(parse_targets(("http://serving:443", "https://other:443", "http://serving:80"))) == 3


def test_the_settings_of_a_job_describe_each_process() -> None:
    job = RunnerConfig(
        server_type="ps", index=1, num_ps=3, num_workers=2, discovery_service_type_ps="server",
        heartbeat_interval_secs=None, discovery_operation_timeout_ms=70, discovery_cleanup_timeout_ms=30,
        connect_retries=2, retry_backoff_ms=10, bind_host="0.0.0.0", bind_port=12, advertised_host="one",
    )  # fmt: skip
    assert from_cluster(job.cluster, job.runtime) == DistributedConfig(
        role="ps", index=1, num_ps=3, num_workers=2, discovery_service_type_ps="server", heartbeat_interval_s=None,
        discovery_operation_timeout_ms=70, discovery_cleanup_timeout_ms=30, connect_retries=2, retry_backoff_ms=10,
        bind_host="0.0.0.0", bind_port=12, advertised_host="one",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (DistributedConfig(role="ps", index=2), ("ps-2", "ps")),
        (DistributedConfig(role="worker", index=1, discovery_service_type_worker="trainer"), ("worker-1", "trainer")),
        (DistributedConfig(role="evaluator"), ("evaluator-0", "evaluator")),
    ],
)
def test_a_process_has_a_name_and_a_type(config: DistributedConfig, names: tuple[str, str]) -> None:
    assert (config.service_id, config.service_type) == names

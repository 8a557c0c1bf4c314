"""The rules of a distributed configuration, word for word, in the order in which they are checked."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.training.cluster import DistributedConfig
from monolith.training.cluster.job_config import ClusterJobConfig

P = "distributed config "
BLANKS = {
    "": "non-empty {f}",
    " {v}": "{f} without leading/trailing whitespace",
    "a b": "{f} without whitespace characters",
}


def names(role: str, field: str, when: str = "", **more: Any) -> list[tuple[str, dict[str, Any], str]]:
    return [
        (role, {field: value.format(v="x"), **more}, f"{P}requires {rule.format(f=field)}{when}")
        for value, rule in BLANKS.items()
    ]


RULES: list[tuple[str, dict[str, Any], str]] = [
    *[(role, {"num_ps": 0}, f"{P}requires num_ps > 0") for role in ("ps", "worker")],
    *[(role, {"num_workers": 0}, f"{P}requires num_workers > 0") for role in ("ps", "worker")],
    ("ps", {"index": 2, "num_ps": 2}, f"{P}requires index < num_ps for ps role (index=2 num_ps=2)"),
    ("worker", {"index": 3, "num_workers": 3},
     f"{P}requires index < num_workers for worker role (index=3 num_workers=3)"),
    *[(role, {"dim": 0}, f"{P}requires dim > 0") for role in ("ps", "worker")],
    ("worker", {"retry_backoff_ms": 0}, f"{P}requires retry_backoff_ms > 0 when connect_retries > 0"),
    *[("worker", {"barrier_timeout_ms": ms}, f"{P}requires barrier_timeout_ms > 0") for ms in (0, -1)],
    *[(role, {"discovery_operation_timeout_ms": 0}, f"{P}requires discovery_operation_timeout > 0")
      for role in ("ps", "worker")],
    *[(role, {"discovery_cleanup_timeout_ms": 0}, f"{P}requires discovery_cleanup_timeout > 0")
      for role in ("ps", "worker")],
    *[(role, {"heartbeat_interval_s": 0.0}, f"{P}requires heartbeat_interval > 0 when configured")
      for role in ("ps", "worker")],
    *names("ps", "discovery_service_type_ps"),
    *names("worker", "discovery_service_type_ps"),
    *names("worker", "discovery_service_type_worker"),
    ("worker", {"discovery_service_type_ps": "Node", "discovery_service_type_worker": "nODE"},
     f"{P}requires distinct discovery_service_type_ps and discovery_service_type_worker"),
    *names("ps", "table_name"),
    *names("worker", "table_name"),
]  # fmt: skip


TARGETS: list[tuple[dict[str, Any], str]] = [
    ({"publish_interval_s": 0}, "publish_interval_s is 0"),
    ({"sync_targets": ("",)}, "sync_targets is"),
    ({"sync_targets": (" a:1",)}, "sync_targets has the entry ' a:1'"),
    ({"sync_targets": ("a:1 ",)}, "sync_targets has the entry 'a:1 '"),
    ({"sync_targets": ("ftp://a:1",)}, "entry 'ftp://a:1': endpoint scheme must be http or https"),
    ({"sync_targets": ("http://a:1/v1",)}, "endpoint must not include a URL path or query"),
    ({"sync_targets": ("a:1?x",)}, "endpoint must not include a URL path or query"),
    ({"sync_targets": ("http://",)}, "endpoint is missing host:port authority"),
    ({"sync_targets": ("http://me:secret@a:1",)}, "endpoint must not include userinfo"),
    ({"sync_targets": ("a:1", "HTTP://A:1/")}, "sync_targets has 'HTTP://A:1/' twice"),
    ({"sync_model_name": ""}, "sync_model_name is ''"),
    ({"sync_model_name": " x"}, "sync_model_name is ' x'"),
    ({"sync_model_name": "a b"}, "sync_model_name is 'a b'"),
    ({"sync_signature_name": ""}, "sync_signature_name is ''"),
    ({"sync_signature_name": " x"}, "sync_signature_name is ' x'"),
    ({"sync_signature_name": "a b"}, "sync_signature_name is 'a b'"),
]


@pytest.mark.parametrize(("values", "message"), TARGETS, ids=lambda value: str(value)[:60])
def test_a_job_refuses_the_targets_that_the_original_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ClusterJobConfig(num_ps=1, model_dir="run", **{"sync_targets": ("serving:8500",), **values})


@pytest.mark.parametrize(("role", "values", "message"), RULES, ids=lambda value: str(value)[:60])
def test_every_rule_has_its_words(role: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        DistributedConfig(role=role, **values).check()
    assert str(raised.value) == message


@pytest.mark.parametrize("role", ["ps", "worker"])
def test_the_rules_are_checked_in_their_order(role: Any) -> None:
    mine = [(values, message) for for_role, values, message in RULES if for_role == role]
    for (values, message), (later, _) in itertools.pairwise(mine):
        with pytest.raises(ConfigError) as raised:
            DistributedConfig(role=role, **{**later, **values}).check()
        assert str(raised.value) == message

from __future__ import annotations

import json
from typing import Any

import pytest

from monolith.core.errors import ClusterError, ConfigError
from monolith.discovery import Discovery, Event, ServiceInfo, TfConfigDiscovery

CLUSTER = {"ps": ["a:1", "b:2"], "worker": ["c:3"]}


def opened(cluster: Any, task: Any) -> TfConfigDiscovery:
    discovery = TfConfigDiscovery(json.dumps({"cluster": cluster, "task": task}))
    discovery.connect()
    return discovery


def test_registering_changes_nothing() -> None:
    discovery = opened(CLUSTER, {"type": "ps", "index": 0})
    assert isinstance(discovery, Discovery)
    discovery.register(ServiceInfo(service_type="ps", index=7, host="h", port=1))
    discovery.deregister("ps-0")
    discovery.heartbeat("anything")
    assert [one.address for one in discovery.query("ps")] == ["a:1", "b:2"]


def test_a_watch_reports_the_listed_services() -> None:
    events: list[Event] = []
    with opened(CLUSTER, {"type": "ps", "index": 0}).watch("ps", events.append):
        assert [event.service.id for event in events] == ["ps-0", "ps-1"]


def test_an_evaluator_finds_others_and_has_no_address() -> None:
    discovery = opened(CLUSTER, {"type": "evaluator", "index": 0})
    assert (discovery.server_type, discovery.index) == ("evaluator", 0)
    with pytest.raises(ConfigError, match="'evaluator', which cluster does not list"):
        _ = discovery.address


def test_it_must_be_connected_and_not_closed() -> None:
    discovery = TfConfigDiscovery(json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}}))
    with pytest.raises(ClusterError, match="not connected"):
        discovery.query("ps")
    discovery.connect()
    discovery.close()
    discovery.close()
    with pytest.raises(ClusterError, match="is closed"):
        discovery.query("ps")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "TF_CONFIG is required for Primus discovery"),
        ("{", "TF_CONFIG is invalid JSON"),
        ("[]", "TF_CONFIG is a list"),
        ('{"task": {}}', "TF_CONFIG cluster is None"),
        ('{"cluster": {"ps": "a:1"}, "task": {"type": "ps", "index": 0}}', "cluster.ps is 'a:1'"),
        ('{"cluster": {"ps": ["a"]}, "task": {"type": "ps", "index": 0}}', "cluster.ps: address is 'a'"),
        ('{"cluster": {"ps": [7]}, "task": {"type": "ps", "index": 0}}', "cluster.ps: address is 7"),
        ('{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps"}}', "task.index is None"),
        ('{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": true}}', "task.index is True"),
        ('{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 1}}', "task.index is 1, but cluster.ps has 1"),
        ('{"cluster": {"ps": ["a:1"]}, "task": {"index": 1}}', "task.type is None"),
    ],
)
def test_a_wrong_text_names_the_field(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TfConfigDiscovery(text)

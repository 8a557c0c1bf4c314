from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from monolith.core.errors import ConfigError
from monolith.discovery import DiscoverySettings, open_discovery

TF_CONFIG = json.dumps({"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}})


@pytest.mark.parametrize(
    ("settings", "environment"),
    [
        (DiscoverySettings(discovery_type="file", folder=Path("x")), {}),
        (DiscoverySettings(discovery_type="tf_config", tf_config=TF_CONFIG), {}),
        (DiscoverySettings(discovery_type="tf_config"), {"TF_CONFIG": TF_CONFIG}),
        (DiscoverySettings(discovery_type="mlp"), {"MLP_ROLE": "ps"}),
        (DiscoverySettings(discovery_type="zookeeper", job="j", zk_server="h:1,[::1]:2,k"), {"ZK_AUTH": "u:p"}),
        (DiscoverySettings(discovery_type="zookeeper", job="j"), {"zk_servers": "h:1"}),
        (DiscoverySettings(discovery_type="consul", job="j"), {}),
    ],
)
def test_the_settings_choose_the_backend(settings: DiscoverySettings, environment: dict[str, str]) -> None:
    discovery = open_discovery(settings, environment)
    assert discovery is not None
    assert discovery.kind == settings.discovery_type
    discovery.close()


def test_one_process_needs_none() -> None:
    assert open_discovery(DiscoverySettings(), {}) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"discovery_type": "etcd"}, "discovery_type is 'etcd'; give one of file, tf_config, mlp, zookeeper, consul"),
        ({"discovery_type": "file"}, "folder is None"),
        ({"discovery_type": "tf_config"}, "TF_CONFIG is required for Primus discovery"),
        ({"discovery_type": "mlp"}, "MLP_ROLE is not set"),
        ({"discovery_type": "zookeeper", "zk_server": "h:1"}, "job is None"),
        ({"discovery_type": "zookeeper", "job": "j"}, "ZooKeeper connect invalid hosts: '' names none"),
        ({"discovery_type": "zookeeper", "job": "j", "zk_server": "h:x"}, "ZooKeeper connect invalid hosts: .*'h:x'"),
        ({"discovery_type": "zookeeper", "job": "j", "zk_server": "h:1,,k:2"}, "invalid hosts: host is ''"),
        (
            {"discovery_type": "zookeeper", "job": "j", "zk_server": "h:1", "zk_root": "monolith"},
            "ZooKeeper connect invalid base_path: 'monolith'",
        ),
        ({"discovery_type": "consul"}, "psm is required for Consul discovery"),
        ({"discovery_type": "consul", "job": "a/b"}, "job is 'a/b'"),
        ({"discovery_type": "consul", "job": "j", "consul_server": "h:x"}, "Consul connect invalid address: 'h:x'"),
    ],
)
def test_a_missing_or_invalid_setting_is_named(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_discovery(DiscoverySettings(**settings), {})  # type: ignore[arg-type]


def test_a_credential_without_a_colon_is_refused_and_not_shown() -> None:
    settings = DiscoverySettings(discovery_type="zookeeper", job="j", zk_server="h:1")
    with pytest.raises(ConfigError, match="give user:password") as caught:
        open_discovery(settings, {"ZK_AUTH": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_discovery_loads_neither_torch_nor_grpc_nor_kazoo() -> None:
    code = "import sys, monolith.discovery; print({'torch', 'grpc', 'kazoo', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_without_kazoo_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    discovery = open_discovery(DiscoverySettings(discovery_type="zookeeper", job="j", zk_server="h:1"), {})
    assert discovery is not None
    with pytest.raises(ConfigError, match=r"pip install 'monolith\[zookeeper\]'"):
        discovery.connect()

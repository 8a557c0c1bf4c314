"""Names and service info of the own container."""

from __future__ import annotations

import json

import pytest

from monolith.agent.config import AgentConfig, resolve
from monolith.agent.containers import make_container, make_service_info
from monolith.agent.environment import read_environment
from monolith.agent.hosts import OwnHost
from monolith.agent.records import Container, ContainerServiceInfo
from monolith.agent.settings import DeployType
from monolith.core.errors import ConfigError

HOST = OwnHost(ipv4="10.0.0.7", ipv6="::", is_ipv6_only=False)
PORTS = {"PORT": "9000", "PORT2": "9002", "PORT3": "9003", "PORT4": "9004"}


def configured(variables: dict[str, str]) -> AgentConfig:
    config = AgentConfig(bzid="gip", deploy_type=DeployType.UNIFIED, layout_pattern="l", layout_filters=("ps_{i}",))
    return resolve(config, read_environment({**PORTS, **variables}))


def test_a_container_is_named_by_its_pod_or_its_address() -> None:
    variables = {"TCE_PSM": "p", "TCE_INTERNAL_IDC": "LF", "TCE_CLUSTER": "default"}
    assert make_container(configured({**variables, "MY_POD_NAME": "pod-7"}), HOST) == Container("p;lf;default", "pod-7")
    assert make_container(configured({}), HOST) == Container("unknown;None;None", "10.0.0.7")
    for bad in ({"TCE_PSM": "a:b"}, {"TCE_PSM": "a/b"}, {"MY_POD_NAME": "a/b"}):
        with pytest.raises(ConfigError, match="expected no '/'"):
            make_container(configured(bad), HOST)


def test_service_info_has_the_ports_and_the_filters() -> None:
    info = make_service_info(configured({"TCE_INTERNAL_IDC": "LF"}), HOST)
    assert info == ContainerServiceInfo(
        grpc="10.0.0.7:9003",
        http="10.0.0.7:9004",
        archon="10.0.0.7:9000",
        agent="10.0.0.7:9002",
        idc="lf",
        debug_info=info.debug_info,
    )
    assert json.loads(str(info.debug_info)) == {
        "layout_path": "/gip/layouts/l",
        "layout_filters": [r"ps_(?P<i>\d+);True"],
    }

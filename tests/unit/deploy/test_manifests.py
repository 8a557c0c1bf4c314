"""The manifests of ``deploy/`` are what Kubernetes accepts, and agree with each other and with the settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from monolith.agent.config import load_config
from monolith.core.config import load
from monolith.discovery import TfConfigDiscovery
from monolith.training.cluster.config import from_cluster
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.roles.process import _place

KUBERNETES = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
BASE = KUBERNETES / "base"
OBJECTS = [
    pytest.param(one, id=f"{path.parent.name}/{path.name}:{one['kind']}")
    for path in sorted(KUBERNETES.glob("*/*.yaml"))
    for one in yaml.safe_load_all(path.read_text())
    if one["kind"] != "Kustomization"
]


def read(name: str, kind: str) -> Any:
    (found,) = [one for one in yaml.safe_load_all((BASE / name).read_text()) if one["kind"] == kind]
    return found


SERVERS, WORKERS = read("servers.yaml", "StatefulSet"), read("workers.yaml", "Job")


def job() -> ClusterJobConfig:
    settings = yaml.safe_load(read("job.yaml", "ConfigMap")["data"]["job.yaml"])
    return load(ClusterJobConfig, code=settings).config


def container(owner: Any) -> Any:
    (one,) = owner["spec"]["template"]["spec"]["containers"]
    return one


def tf_config(owner: Any, index: int) -> str:
    """The environment as a pod sees it: Kubernetes puts the values of earlier variables in."""
    names = [one["name"] for one in container(owner)["env"]]
    assert names == ["POD_INDEX", "TF_CONFIG"], "a variable can only use those before it"
    text: str = container(owner)["env"][1]["value"]
    return text.replace("$(POD_INDEX)", str(index))


@pytest.mark.parametrize("version", ["1.28", "1.34"])
@pytest.mark.parametrize("one", OBJECTS)
def test_kubernetes_accepts_every_object(one: Any, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate==1.37.0")
    validate.validate(one, version, strict=True)


def test_a_mistake_would_be_found() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate==1.37.0")
    with pytest.raises(validate.ValidationError):
        validate.validate({**SERVERS, "spec": {**SERVERS["spec"], "replica": 2}}, "1.34", strict=True)


@pytest.mark.parametrize("folder", ["base", "evaluator", "fleet"])
def test_the_kustomization_names_every_file(folder: str) -> None:
    listed = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())["resources"]
    files = {path.name for path in (KUBERNETES / folder).glob("*.yaml")} - {"kustomization.yaml"}
    assert {name for name in listed if name.endswith(".yaml")} == files
    assert all((KUBERNETES / folder / name).exists() for name in listed)


def test_the_counts_agree() -> None:
    config = job()
    cluster = json.loads(tf_config(SERVERS, 0))["cluster"]
    assert config.cluster.num_ps == SERVERS["spec"]["replicas"] == len(cluster["ps"])
    assert config.run.runtime.num_workers == WORKERS["spec"]["completions"] == len(cluster["worker"])
    assert WORKERS["spec"]["parallelism"] == WORKERS["spec"]["completions"], "workers wait for each other"


@pytest.mark.parametrize(("owner", "role"), [(SERVERS, "ps"), (WORKERS, "worker")], ids=["servers", "workers"])
def test_every_pod_finds_its_place_and_all_servers(owner: Any, role: str) -> None:
    name, service = owner["metadata"]["name"], read("services.yaml", "NetworkPolicy")["metadata"]["name"]
    assert SERVERS["spec"]["serviceName"] == service
    for index in range(2):
        discovery = TfConfigDiscovery(tf_config(owner, index))
        placed = _place(job(), discovery)
        from_cluster(placed.cluster, placed.run.runtime).check()
        assert (placed.cluster.server_type, placed.run.runtime.index) == (role, index)
        assert placed.cluster.listen.advertised_host == f"{name}-{index}.{name}"
        discovery.connect()
        assert [one.address for one in discovery.query("ps")] == [f"{service}-{i}.{service}:7001" for i in range(2)]


def test_probes_and_ports_are_those_of_the_settings() -> None:
    config, pod = job(), container(SERVERS)
    ports = {one["name"]: one["containerPort"] for one in pod["ports"]}
    assert ports == {"grpc": 7001, "metrics": config.cluster.ps.ps_metrics_port}
    assert pod["startupProbe"]["httpGet"] == pod["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert config.cluster.listen.bind_host == "0.0.0.0", "the other pods are not on this machine"
    assert config.cluster.ps.ps_memory_limit_mb is not None
    assert config.cluster.ps.ps_memory_limit_mb * 4 <= 3 * 1024 * int(
        pod["resources"]["limits"]["memory"].removesuffix("Gi")
    )


def test_the_token_and_the_folder_are_mounted_where_the_settings_say() -> None:
    config = job()
    for owner in (SERVERS, WORKERS):
        mounts = {one["mountPath"] for one in container(owner)["volumeMounts"]}
        assert str(Path(str(config.cluster.security.ps_token_file)).parent) in mounts
        assert any(str(config.run.model_dir).startswith(f"{path}/") for path in mounts)
        assert container(owner)["securityContext"]["readOnlyRootFilesystem"] is True


# --- fleet ---


def fleet_objects(name: str, kind: str) -> list[Any]:
    objects = yaml.safe_load_all((KUBERNETES / "fleet" / name).read_text())
    return [one for one in objects if one["kind"] == kind]


def agent_variables(owner: Any, index: int) -> dict[str, str]:
    """The environment of a pod's agent."""
    found = {"metadata.name": f"{owner['metadata']['name']}-{index}", "status.podIP": "10.0.0.7"}
    variables = {}
    for each in container(owner)["env"]:
        source = each.get("valueFrom", {})
        path = source.get("fieldRef", {}).get("fieldPath", "")
        value = each.get("value") or found.get(path) or (str(index) if "pod-index" in path else str(8 << 30))
        variables[each["name"]] = value
    return variables


def test_the_agents_of_a_fleet_accept_their_configuration_and_cover_all_shards(tmp_path: Path) -> None:
    (config_map,) = fleet_objects("agent.yaml", "ConfigMap")
    for name, text in config_map["data"].items():
        (tmp_path / name).write_text(text)
    owners = [*fleet_objects("entries.yaml", "Deployment"), *fleet_objects("shards.yaml", "StatefulSet")]
    assert len(owners) == 3
    for owner in owners:
        arguments = container(owner)["args"]
        conf = tmp_path / Path(arguments[arguments.index("--conf") + 1]).name
        shards: set[str] = set()
        for index in range(owner["spec"]["replicas"]):
            config = load_config(conf, agent_variables(owner, index))
            assert (
                config.ports.unified.tfs_port_grpc,
                config.ports.unified.tfs_port_http,
                config.ports.agent_port,
            ) == (8500, 8501, 7003)
            shards |= set(config.make_layout_filters().select(["entry", "ps_0", "ps_1"]))
        expected = {"entry"} if owner["kind"] == "Deployment" else {"ps_0", "ps_1"}
        assert shards == expected
        selector = owner["spec"]["selector"]["matchLabels"]
        assert selector == owner["spec"]["template"]["metadata"]["labels"]
    (service,) = fleet_objects("agent.yaml", "Service")
    assert service["spec"]["selector"] == owners[0]["spec"]["selector"]["matchLabels"]

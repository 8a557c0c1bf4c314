"""Configuration errors name file, line, field, value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from monolith.agent.config import AgentConfig, load_config, read_config, resolve
from monolith.agent.environment import read_environment
from monolith.agent.settings import DeployType
from monolith.core.config_sections import read_setting
from monolith.core.errors import ConfigError

HOST = {"MY_HOST_IP": "127.0.0.1"}
MINIMAL = "bzid b\nbase_name m\nbase_path /models/m\nzk_servers 127.0.0.1:2181\ndeploy_type ps\n"


def conf(folder: Path, text: str, name: str = "agent.conf") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_minimal_file_is_enough_and_ports_are_free_and_distinct(tmp_path: Path) -> None:
    config = load_config(conf(tmp_path, MINIMAL), HOST)
    ports = [
        config.ports.ps.tfs_ps_port,
        config.ports.ps.tfs_ps_http_port,
        config.ports.ps.tfs_ps_archon_port,
        config.ports.agent_port,
    ]
    assert len({*ports}) == 4
    assert all(port for port in ports)
    assert config.ports.entry.tfs_entry_port is None
    assert config.ports.proxy_port is None
    assert config.own_ps_indices() == [0]


def test_the_file_wins_over_the_environment(tmp_path: Path) -> None:
    text = MINIMAL + "tfs_ps_port 7001\nagent_port 7002\nreplica_id 5\n"
    variables = {**HOST, "PORT3": "9003", "PORT2": "9002", "REPLICA_ID": "9", "MY_POD_NAME": "pod"}
    config = load_config(conf(tmp_path, text), variables)
    assert (config.ports.ps.tfs_ps_port, config.ports.agent_port, config.service.replica_id) == (7001, 7002, 5)
    config = load_config(conf(tmp_path, MINIMAL), variables)
    assert (config.ports.ps.tfs_ps_port, config.ports.agent_port, config.service.replica_id) == (9003, 9002, 9)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("num_pss 4\n", ("agent.conf:6", "num_pss", "'4'", "did you mean num_ps?")),
        ("zzzzzz 4\n", ("agent.conf:6", "zzzzzz", "remove it")),
        ("num_ps four\n", ("agent.conf:6", "num_ps is 'four'", "column 1")),
        ("num_ps 1.5\n", ("agent.conf:6", "num_ps is '1.5'", "whole number")),
        ("num_ps 1e999\n", ("agent.conf:6", "num_ps is '1e999' = inf", "a finite number")),
        ("per_process_gpu_memory_fraction 1e999\n", ("agent.conf:6", "is '1e999' = inf", "a finite number")),
        ("num_ps none\n", ("agent.conf:6", "num_ps is 'none'")),
        ("num_ps 0\n", ("agent.conf:6", "num_ps is 0", "at least 1")),
        ("agent_port 70000\n", ("agent.conf:6", "agent_port is 70000", "65535")),
        ("tfs_ps_port 7000\nagent_port 7000\n", ("agent_port is 7000", "tfs_ps_port")),
        ("rough_sort_model_loaded_server proxy\n", ("agent.conf:6", "'proxy'", "entry, ps or dense")),
        ("version_policy newest\n", ("agent.conf:6", "version_policy is 'newest'", "latest_once")),
        ("dc_aware true\n", ("agent.conf:6", "dc_aware", "TCE_INTERNAL_IDC")),
        ("layout_filters ps_{i}; j > 1\n", ("agent.conf:6", "layout_filters", "'j'", "binds i")),
        ("layout_filters ps_(; True\n", ("agent.conf:6", "layout_filters", "pattern is invalid")),
        ("dense_service_num {{n}}\n", ("agent.conf:6", "dense_service_num", "template")),
        ("justakey\n", ("agent.conf:6", "'justakey'", "expected a key and a value")),
        ("include missing.conf\n", ("agent.conf:6", "missing.conf", "cannot be read")),
        ("deploy_type\tps\n", ("deploy_type is given 2 times", "agent.conf:5", "agent.conf:6")),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(conf(tmp_path, MINIMAL + text), HOST)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["bzid", "base_name", "base_path", "zk_servers", "deploy_type"])
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    text = "".join(line for line in MINIMAL.splitlines(keepends=True) if not line.startswith(name))
    with pytest.raises(ConfigError, match=f"{name} is None, expected"):
        load_config(conf(tmp_path, text), HOST)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("bzid a/b", "bzid is 'a/b'"),
        ("base_name m.v2", "base_name is 'm.v2'"),
        ("zk_servers 127.0.0.1:99999", "99999"),
        ("deploy_type server", "mixed"),
        ("deploy_type dense", "dense_alone"),
    ],
)
def test_a_value_that_breaks_a_rule_is_named(tmp_path: Path, line: str, part: str) -> None:
    name = line.partition(" ")[0]
    lines = [each for each in MINIMAL.splitlines() if not each.startswith(name)]
    with pytest.raises(ConfigError) as caught:
        load_config(conf(tmp_path, "\n".join([*lines, line])), HOST)
    assert part in str(caught.value)
    assert name in str(caught.value)


def test_unified_needs_a_layout_or_a_base_path(tmp_path: Path) -> None:
    text = "bzid b\nzk_servers 127.0.0.1:2181\ndeploy_type unified\nagent_version 3\n"
    with pytest.raises(ConfigError, match="layout_pattern"):
        load_config(conf(tmp_path, text), HOST)
    assert load_config(conf(tmp_path, text + "layout_pattern l\n"), HOST).layout_path == "/b/layouts/l"
    assert load_config(conf(tmp_path, text + "base_path /models\n"), HOST).layout_path is None


def test_includes_are_relative_to_their_file_and_may_not_loop(tmp_path: Path) -> None:
    conf(tmp_path, "num_ps 3\ninclude deeper.conf\n", "parts/more.conf")
    conf(tmp_path, "dense_service_num 2\n", "parts/deeper.conf")
    config = read_config(conf(tmp_path, "include parts/more.conf # more\nbzid b\n"), {})
    assert (config.service.num_ps, config.dense.dense_service_num, config.service.bzid) == (3, 2, "b")
    conf(tmp_path, "include ../agent.conf\n", "parts/deeper.conf")
    with pytest.raises(ConfigError, match=r"deeper\.conf:1.*which is being read"):
        read_config(tmp_path / "agent.conf", {})


def test_a_key_that_begins_with_include_is_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="includes is an unknown field"):
        read_config(conf(tmp_path, "includes more.conf\n"), {})


def test_a_file_without_valid_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.conf"
    path.write_bytes(b"bzid \xff\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_config(path, {})
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(ConfigError, match="above 1000000 bytes"):
        read_config(path, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path, {})


def test_none_is_not_set(tmp_path: Path) -> None:
    config = read_config(conf(tmp_path, "num_shard NONE\nrough_sort_model_loaded_server none\nbase_path None\n"), {})
    assert (config.service.num_shard, config.rough_sort.rough_sort_model_loaded_server, config.service.base_path) == (
        1,
        None,
        None,
    )


def test_the_old_name_of_deploy_type_counts_only_alone(tmp_path: Path) -> None:
    assert read_config(conf(tmp_path, "server_type ENTRY\n"), {}).service.deploy_type is DeployType.ENTRY
    assert read_config(conf(tmp_path, "server_type entry\ndeploy_type ps\n"), {}).service.deploy_type is DeployType.PS


def test_shards_of_file_and_environment_must_agree(tmp_path: Path) -> None:
    path = conf(tmp_path, "num_shard 4\n")
    assert read_config(path, {"MONOLITH_HOST_SHARD_N": "4"}).service.num_shard == 4
    assert read_config(path, {}).service.num_shard == 4
    with pytest.raises(ConfigError, match=r"agent\.conf:1: num_shard is 4.*MONOLITH_HOST_SHARD_N is 2"):
        read_config(path, {"MONOLITH_HOST_SHARD_N": "2"})
    assert read_config(conf(tmp_path, "num_ps 1\n"), {"byterec_host_shard_n": "3"}).service.num_shard == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT3", "http"),
        ("PORT2", "70000"),
        ("SHARD_ID", "-2"),
        ("MONOLITH_HOST_SHARD_N", "0"),
        ("MY_CPU_LIMIT", "all"),
    ],
)
def test_a_bad_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is '{value}'"):
        read_environment({name: value})


def test_secrets_are_not_logged() -> None:
    environment = read_environment({"ZK_AUTH": "user:secret", "PORT2": "9002", "HOME": "/root"})
    assert environment.loggable == {"PORT2": "9002"}
    assert "secret" not in repr(environment)
    assert environment.zookeeper_auth == "user:secret"


def test_derived_names_of_a_container() -> None:
    assert resolve(AgentConfig(), read_environment({})).container_cluster == "unknown;None;None"
    variables = {"TCE_PSM": "p", "TCE_INTERNAL_IDC": "LF", "TCE_LOGICAL_CLUSTER": "", "TCE_CLUSTER": "Default"}
    config = resolve(AgentConfig(), read_environment(variables))
    assert (config.container_cluster, config.location) == ("p;lf;default", "lf:default")
    assert config.environment.location.cluster_flag == "Default"


def test_a_free_port_is_never_one_that_another_field_has() -> None:
    config = resolve(AgentConfig(deploy_type=DeployType.MIXED, dense_alone=True), read_environment({}))
    names = [f"tfs_{kind}_{port}" for kind in ("entry", "ps", "dense") for port in ("port", "http_port", "archon_port")]
    assert len({read_setting(config, name) for name in [*names, "agent_port"]}) == 10

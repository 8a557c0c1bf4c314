"""Commands and files of the servers that an agent starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monolith.agent.config import AgentConfig, resolve
from monolith.agent.environment import read_environment
from monolith.agent.hosts import OwnHost, find_own_host
from monolith.agent.layout_filters import LayoutFilters
from monolith.agent.messages import BatchingParameters, ModelServerConfig, parse_text
from monolith.agent.model_configs import (
    fixed_model_configs,
    make_model_config,
    make_server_config,
    model_config_text,
    versions_in,
)
from monolith.agent.platform_config import batching_parameters_text, write_platform_config
from monolith.agent.server_command import (
    check_server,
    foreign_unified_command,
    has_grpc_remote_operator,
    serve_command,
)
from monolith.agent.settings import DeployType
from monolith.cli import _tf_serving_flags
from monolith.core.errors import ConfigError

PORTS = {"PORT": "9000", **{f"PORT{number}": str(9000 + number) for number in range(2, 11)}}


def configured(variables: dict[str, str] | None = None, **fields: object) -> AgentConfig:
    return resolve(AgentConfig(**fields), read_environment({**PORTS, **(variables or {})}))  # type: ignore[arg-type]


def test_our_server_gets_an_argument_list() -> None:
    config = configured(deploy_type=DeployType.ENTRY, grpc_max_threads=16, places={"fetch_ps_timeout_ms": "a:1"})
    command = serve_command(config, "entry", model_config_file="/a b/models", addresses_file="/a b/addresses")
    assert command == [
        *(sys.executable, "-m", "monolith", "serve", "--host", "0.0.0.0", "--model-config-file", "/a b/models"),
        *("--config-poll-s", "0", "--port", "9003", "--rest-port", "9004", "--version-poll-s", "1", "--no-batching"),
        *("--load-retries", "5", "--load-retry-interval-s", "60", "--warm-up", "--grpc-threads", "16"),
        *("--remote-file", "/a b/addresses", "--remote-timeout-ms", "200"),
    ]


def test_a_parameter_server_looks_once_for_versions_in_version_1_only() -> None:
    for version, poll in ((1, "0"), (2, "1")):
        config = configured(deploy_type=DeployType.PS, agent_version=version)
        command = serve_command(config, "ps", model_config_file="m", addresses_file="x")
        assert command[command.index("--version-poll-s") + 1] == poll
        assert "--remote-file" not in command


def test_a_unified_server_reads_its_models_each_minute() -> None:
    config = configured(deploy_type=DeployType.UNIFIED, agent_version=3, enable_batching=True)
    command = serve_command(
        config, "unified", model_config_file="m", addresses_file="a", batching_parameters_file="b", listen_address="::"
    )
    assert command[command.index("--config-poll-s") + 1] == "60"
    assert command[command.index("--host") + 1] == "::"
    assert command[command.index("--batching-parameters-file") + 1] == "b"
    assert "--batching" in command
    assert "--remote-timeout-ms" not in command


def test_flags_of_a_foreign_unified_server(tmp_path: Path) -> None:
    binary = tmp_path / "tfs"
    binary.write_bytes(b"\0" * (1 << 20) + b"\0PredictionServiceGrpc\0")
    config = configured(
        {"TCE_PSM": "p"},
        deploy_type=DeployType.UNIFIED,
        agent_version=3,
        allow_growth=False,
        version="7",
        num_load_threads=2,
    )
    command = foreign_unified_command(config, binary=str(binary), model_config_file="/m")
    assert command[1:] == [
        "--model_config_file=/m",
        "--port=9003",
        "--rest_api_port=9004",
        "--model_config_file_poll_wait_seconds=60",
        "--archon_port=9000",
        "--archon_rpc_psm=p",
        "--archon_rpc_cluster=",
        "--metrics_namespace_prefix=p",
        "--conf_file=conf/service.conf",
        "--log_conf=conf/log4j.properties",
        "--num_load_threads=2",
        "--platform_config_file=conf/platform_config_file.cfg",
    ]
    binary.write_bytes(b"nothing")
    command = foreign_unified_command(config, binary=str(binary), model_config_file="/m")
    assert "--archon_entry_to_ps_rpc_timeout=200" in command
    assert _tf_serving_flags.translate(command[1:])[0][:3] == [
        "--model-config-file=/m",
        "--port=9003",
        "--rest-port=9004",
    ]


def test_the_remote_operator_is_found_across_blocks(tmp_path: Path) -> None:
    binary = tmp_path / "tfs"
    binary.write_bytes(b"\0" * ((1 << 20) - 5) + b"PredictionServiceGrpc")
    assert has_grpc_remote_operator(str(binary))
    assert has_grpc_remote_operator(None)


def test_a_foreign_server_must_be_a_program(tmp_path: Path) -> None:
    assert check_server(read_environment({})) is None
    assert check_server(read_environment({"MONOLITH_TFS_BINARY": "/bin/sh"})) == "/bin/sh"
    with pytest.raises(ConfigError, match=r"MONOLITH_TFS_BINARY is '.*/none'"):
        check_server(read_environment({"MONOLITH_TFS_BINARY": str(tmp_path / "none")}))


@pytest.mark.parametrize(
    ("server_type", "loaded", "fields", "extra"),
    [
        ("ps", "ps", {}, [("ps_item_embedding_0", "/local/rough/ps_item_embedding_0")]),
        ("entry", "entry", {}, [("entry_item_embedding_0", "/local/rough/entry_item_embedding_0")]),
        (
            "entry",
            "entry",
            {"rough_sort_resource_constrained": True},
            [("entry_item_embedding_0", "/m/entry_item_embedding_0")],
        ),
        ("dense", "dense", {}, [("dense_item_embedding_0", "/local/rough/dense_item_embedding_0")]),
        ("dense", "entry", {}, []),
        ("entry", None, {}, []),
    ],
)
def test_only_the_named_server_loads_the_item_embeddings(
    server_type: str, loaded: str | None, fields: dict[str, bool], extra: list[tuple[str, str]]
) -> None:
    config = configured(
        deploy_type=DeployType.MIXED,
        dense_alone=True,
        base_path="/m",
        rough_sort_model_name="rough",
        rough_sort_model_local_path="/local",
        rough_sort_model_loaded_server=loaded,
        **fields,
    )
    configs = fixed_model_configs(config, server_type).model_config_list.config
    assert [(each.name, each.base_path) for each in configs][1:] == extra


def test_latest_once_of_a_foreign_server_is_the_newest_version_now(tmp_path: Path) -> None:
    for version in ("9", "10", "tmp"):
        (tmp_path / "m" / version).mkdir(parents=True)
    assert versions_in(str(tmp_path / "m")) == [9, 10]
    ours = make_model_config("m", str(tmp_path / "m"), version_policy="latest_once").model_version_policy
    assert ours.latest_once.num_versions == 1
    theirs = make_model_config("m", str(tmp_path / "m"), version_policy="latest_once", is_foreign=True)
    assert list(theirs.model_version_policy.specific.versions) == [10]
    empty = make_model_config("m", str(tmp_path / "n"), version_policy="latest_once", is_foreign=True)
    assert empty.model_version_policy.latest.num_versions == 1


def test_the_text_of_a_model_config_is_read_back() -> None:
    assert model_config_text(make_server_config([])) == "model_config_list {}\n"
    config = make_server_config([make_model_config("m:ps_0", "/x", version_policy="all")])
    message = ModelServerConfig()
    parse_text(model_config_text(config), message, "text")
    assert message == config


def test_the_platform_config_goes_to_the_agent_when_its_folder_cannot_be_written(tmp_path: Path) -> None:
    config = configured(platform_config_file=str(tmp_path / "none" / "platform.cfg"))
    path = write_platform_config(config, tmp_path)
    assert path == tmp_path / "platform_config_file.cfg"
    assert "allow_soft_placement: true" in path.read_text()
    config = configured(platform_config_file=str(tmp_path / "platform.cfg"), dense_alone=True, enable_batching=True)
    assert "max_enqueued_batches { value: 100000 }" in write_platform_config(config, tmp_path).read_text()
    config = configured(platform_config_file=str(tmp_path / "none" / "platform.cfg"))
    with pytest.raises(ConfigError, match="platform_config_file is"):
        write_platform_config(config, tmp_path / "none")


def test_batching_parameters_of_our_server_bound_its_queue() -> None:
    message = BatchingParameters()
    parse_text(batching_parameters_text(), message, "text")
    assert message.max_batch_size.value * message.max_enqueued_batches.value == 1 << 20


def test_a_condition_that_fails_for_one_sub_graph_rejects_it(caplog: pytest.LogCaptureFixture) -> None:
    filters = LayoutFilters(["ps_{i}; 6 % i == 0"])
    assert filters.select(["ps_0", "ps_2", "ps_0", "ps_4"]) == ["ps_2"]
    assert caplog.text.count("sub-graph rejected") == 1
    assert filters.texts == [r"ps_(?P<i>\d+);6 % i == 0"]


def test_own_host_takes_the_environment_as_it_stands() -> None:
    host = find_own_host(
        read_environment({"MY_HOST_IP": "127.0.0.1", "MY_HOST_IPV6": "[fd::1]"}), resolve=lambda _: None
    )
    assert host == OwnHost(ipv4="127.0.0.1", ipv6="fd::1", is_ipv6_only=False)
    assert (host.address(5), host.address_ipv6(5), host.reachable_address(5)) == (
        "127.0.0.1:5",
        "[fd::1]:5",
        "127.0.0.1:5",
    )
    host = find_own_host(read_environment({"MY_HOST_IPV6": "fd::1"}), resolve=lambda _: None)
    assert (host.name, host.listen_address, host.reachable_address(5)) == ("fd::1", "::", "[fd::1]:5")
    nowhere = find_own_host(read_environment({}), resolve=lambda _: None)
    assert (nowhere.address(1), nowhere.address_ipv6(1)) == ("0.0.0.0:1", "[::]:1")

"""Vectors of the original for configuration, paths, filters and command lines of agents."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monolith.agent.config import AgentConfig, load_config, read_config, resolve
from monolith.agent.config_file import parse_line
from monolith.agent.environment import pod_replica_id, read_environment
from monolith.agent.expressions import compute_number
from monolith.agent.hosts import check_servers_reachable, is_ipv6_only
from monolith.agent.layout_filters import LayoutFilters, normalise_pattern
from monolith.agent.messages import make_model_spec, make_status, make_version_status
from monolith.agent.model_configs import fixed_model_configs, make_model_config
from monolith.agent.node_paths import ServicePath
from monolith.agent.platform_config import platform_config_text
from monolith.agent.prediction import make_instance_tensor, make_record_tensor
from monolith.agent.records import ModelState
from monolith.agent.server_command import foreign_command
from monolith.agent.settings import DeployType
from monolith.core.errors import ConfigError
from monolith.data.records import messages
from monolith.data.records.formatter import parse_record

PORTS = {"PORT": "9000", **{f"PORT{number}": str(9000 + number) for number in range(2, 11)}}
MINIMAL = "bzid b\nbase_name m\nbase_path /models/m\nzk_servers 127.0.0.1:2181\n"


def written(folder: Path, text: str, name: str = "agent.conf") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def configured(variables: dict[str, str] | None = None, **fields: Any) -> AgentConfig:
    return resolve(AgentConfig(**fields), read_environment(variables or {}))


@pytest.fixture
def agent_conf(sample: Callable[[str], str], tmp_path: Path) -> AgentConfig:
    return read_config(written(tmp_path, sample("agent.conf")), {}, chooses_ports=False)


class TestMessages:
    # T1
    def test_t1_a_model_spec_has_name_version_and_signature(self) -> None:
        spec = make_model_spec("model", 1, "predict")
        assert (spec.name, spec.version.value, spec.signature_name) == ("model", 1, "predict")

    # T2
    def test_t2_a_model_config_has_path_policy_and_labels(self) -> None:
        config = make_model_config("model", "/tmp/model/saved_model", version_data=2, labels={"v0": 0, "v1": 1})
        assert (config.name, config.base_path) == ("model", "/tmp/model/saved_model")
        assert config.model_version_policy.latest.num_versions == 2
        assert dict(config.version_labels) == {"v0": 0, "v1": 1}

    # T3
    def test_t3_a_status_has_code_and_message(self) -> None:
        status = make_status(1, "CANCELLED")
        assert (status.error_code, status.error_message) == (1, "CANCELLED")

    # T4
    def test_t4_a_version_status_has_version_and_state(self) -> None:
        status = make_version_status(1, ModelState.START, 5, "NOT_FOUND")
        assert (status.version, status.state, status.status.error_code) == (1, 10, 5)


class TestTensors:
    # T7, T8, T9
    @pytest.mark.parametrize("name", ["inst.json", "inst.pbtext", "inst.dump"])
    def test_t7_t8_t9_an_instance_in_each_style_becomes_a_tensor(self, sample: Callable[[str], str], name: str) -> None:
        tensor = make_instance_tensor(sample(name), 5)
        assert (tensor.dtype, tensor.tensor_shape.dim[0].size, len(tensor.string_val)) == (7, 5, 5)
        instance = messages.Instance.FromString(tensor.string_val[4])
        assert instance == parse_record(sample(name), "instance")
        assert list(instance.label) == [0, 1]

    def test_a_tensor_needs_a_record(self) -> None:
        with pytest.raises(ConfigError, match="at least one"):
            make_record_tensor([])


class TestFile:
    # T5, T6
    def test_t5_t6_the_fixture_is_stand_alone_with_two_filters(self, agent_conf: AgentConfig) -> None:
        assert agent_conf.service.stand_alone_serving is True
        assert list(agent_conf.layout.layout_filters) == ["ps_0", "ps_1"]

    # D9
    def test_d9_the_fixture_without_environment(self, agent_conf: AgentConfig) -> None:
        expected = AgentConfig(
            bzid="predict_ctr",
            base_name="predict_ctr",
            base_path="hdfs:///test/data",
            num_ps=10,
            zk_servers="127.0.0.1:12345",
            deploy_type=DeployType.MIXED,
            stand_alone_serving=True,
            max_waiting_sec=600,
            update_model_status_interval=10,
            load_retry_interval_micros=60000000,
            layout_filters=("ps_0", "ps_1"),
            num_shard=1,
            dc_aware=True,
            replica_id=-1,
        )
        assert agent_conf == expected
        assert agent_conf.server.tensorflow.saved_model_tags is None
        assert agent_conf.server.grpc.grpc_channel_arguments is None

    # D10
    @pytest.mark.parametrize(
        ("line", "pair"),
        [
            ("a = b", ("a", "b")),
            ("a=b", ("a", "b")),
            ("a\tb", ("a", "b")),
            ("a == b", ("a", "b")),
            ("k 60 * 1000", ("k", "60 * 1000")),
            ("layout_filters ps_{i}; i % 2 == 1", ("layout_filters", "ps_{i}; i % 2 == 1")),
        ],
    )
    def test_d10_lines(self, line: str, pair: tuple[str, str]) -> None:
        assert parse_line(line) == pair

    # D10
    @pytest.mark.parametrize("line", ["x", "x ="])
    def test_d10_lines_without_a_value_are_errors(self, line: str) -> None:
        with pytest.raises(ConfigError, match="expected a key and a value"):
            parse_line(line)

    # D11, D12, D13
    def test_d11_d12_d13_trailing_comments_and_many_filters(self, tmp_path: Path) -> None:
        text = (
            "enable_batching false # off\ndeploy_type Unified # always\n"
            "layout_filters a\nlayout_filters b\nlayout_filters c\n"
        )
        config = read_config(written(tmp_path, text), {})
        assert config.server.batching.enable_batching is False
        assert config.service.deploy_type is DeployType.UNIFIED
        assert config.layout.layout_filters == ("a", "b", "c")

    # D14
    def test_d14_a_value_twice_names_both_lines(self, tmp_path: Path) -> None:
        written(tmp_path, "# shared\nnum_ps 8\n", "base.conf")
        path = written(tmp_path, "num_ps 4\ninclude base.conf\n")
        with pytest.raises(ConfigError, match=r"num_ps is given 2 times.*agent\.conf:1.*base\.conf:2"):
            read_config(path, {})

    # D15
    @pytest.mark.parametrize("text", ["TRUE", "y", "T", "Yes", "1"])
    def test_d15_true(self, tmp_path: Path, text: str) -> None:
        assert read_config(written(tmp_path, f"dc_aware {text}\n"), {}).service.dc_aware is True

    # D15
    @pytest.mark.parametrize("text", ["FALSE", "n", "F", "No", "0"])
    def test_d15_false(self, tmp_path: Path, text: str) -> None:
        assert (
            read_config(written(tmp_path, f"enable_profiler {text}\n"), {}).server.tensorflow.enable_profiler is False
        )

    # D15
    def test_d15_other_texts_are_errors(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"agent\.conf:1: dc_aware is 'maybe'"):
            read_config(written(tmp_path, "dc_aware maybe\n"), {})

    # D16
    def test_d16_numbers(self) -> None:
        assert compute_number("60*1000*1000") == 60000000
        assert compute_number("2**10") == 1024

    # D16
    @pytest.mark.parametrize(("text", "column"), [("1/0", 1), ("os.getpid()", 1), ('1 + __import__("os")', 5)])
    def test_d16_errors_show_the_position(self, text: str, column: int) -> None:
        with pytest.raises(ConfigError, match=f"at column {column}") as caught:
            compute_number(text)
        lines = str(caught.value).splitlines()
        assert lines[1:] == [f"  {text}", f"  {' ' * (column - 1)}^"]


class TestEnvironment:
    # D17
    @pytest.mark.parametrize(
        ("name", "number"),
        [
            ("monolith-ps-0", 799262774729),
            ("monolith-entry-0", 6136565833),
            ("pod_name", 403042163166),
            ("a", 1038151594435),
            (None, -1),
        ],
    )
    def test_d17_replica_id_of_a_pod(self, name: str | None, number: int) -> None:
        assert pod_replica_id(name) == number
        assert configured({"MY_POD_NAME": name} if name else {}).service.replica_id == number

    # D18
    def test_d18_ports_of_the_environment(self) -> None:
        mixed = configured(PORTS, deploy_type=DeployType.MIXED, dense_alone=True)
        assert (
            mixed.ports.entry.tfs_entry_port,
            mixed.ports.entry.tfs_entry_http_port,
            mixed.ports.entry.tfs_entry_archon_port,
        ) == (9003, 9004, 9000)
        assert (mixed.ports.ps.tfs_ps_port, mixed.ports.ps.tfs_ps_http_port, mixed.ports.ps.tfs_ps_archon_port) == (
            9005,
            9006,
            9007,
        )
        assert (
            mixed.ports.dense.tfs_dense_port,
            mixed.ports.dense.tfs_dense_http_port,
            mixed.ports.dense.tfs_dense_archon_port,
        ) == (9008, 9009, 9010)
        assert mixed.ports.agent_port == 9002
        ps = configured(PORTS, deploy_type=DeployType.PS)
        assert (ps.ports.ps.tfs_ps_port, ps.ports.ps.tfs_ps_http_port, ps.ports.ps.tfs_ps_archon_port) == (
            9003,
            9004,
            9000,
        )
        unified = configured(PORTS, deploy_type=DeployType.UNIFIED)
        assert (
            unified.ports.unified.tfs_port_grpc,
            unified.ports.unified.tfs_port_http,
            unified.ports.unified.tfs_port_archon,
        ) == (9003, 9004, 9000)

    # D19
    def test_d19_a_later_dense_process_takes_free_ports(self) -> None:
        dense = configured({**PORTS, "DENSE_SERVICE_IDX": "1"}, deploy_type=DeployType.DENSE, dense_alone=True)
        ports = {
            dense.ports.dense.tfs_dense_port,
            dense.ports.dense.tfs_dense_http_port,
            dense.ports.dense.tfs_dense_archon_port,
            dense.ports.agent_port,
        }
        assert len(ports) == 4
        assert not ports & set(range(9000, 9011))

    # D20
    @pytest.mark.parametrize(
        ("shards", "shard", "indices"),
        [("4", "1", [1, 5, 9]), ("4", "3", [3, 7]), (None, None, list(range(10)))],
    )
    def test_d20_own_sub_models(self, shards: str | None, shard: str | None, indices: list[int]) -> None:
        variables = {"MONOLITH_HOST_SHARD_N": shards, "SHARD_ID": shard} if shards and shard else {}
        assert configured(variables, deploy_type=DeployType.PS, num_ps=10).own_ps_indices() == indices

    # D20
    def test_d20_several_shards_need_a_shard_id(self) -> None:
        config = configured({"MONOLITH_HOST_SHARD_N": "4"}, deploy_type=DeployType.PS, num_ps=10)
        with pytest.raises(ConfigError, match="SHARD_ID is None with 4 shards"):
            config.own_ps_indices()

    # D21
    def test_d21_server_type_of_a_call(self) -> None:
        assert DeployType.MIXED.server_type("ps") == "ps"
        assert DeployType.PS.server_type(None) == "ps"
        assert DeployType.ENTRY.server_type("mixed") == "entry"
        for deploy_type, wanted in ((DeployType.MIXED, None), (DeployType.PS, "entry")):
            with pytest.raises(ConfigError, match="DeployType and ServerType is not compatable!"):
                deploy_type.server_type(wanted)

    # D22
    def test_d22_paths(self) -> None:
        assert AgentConfig(bzid="gip", layout_pattern="mixed").layout_path == "/gip/layouts/mixed"
        assert AgentConfig(bzid="gip", layout_pattern="/gip/layout").layout_path == "/gip/layout"
        config = configured(
            {"TCE_INTERNAL_IDC": "LF", "TCE_CLUSTER": "Default"}, bzid="b", base_name="m", dc_aware=True
        )
        assert config.path_prefix == "/b/service/m/lf:default"

    # D28
    def test_d28_threads_of_the_platform_config(self) -> None:
        text = platform_config_text(configured({"MY_CPU_LIMIT": "8"}))
        assert "intra_op_parallelism_threads: 8\n" in text
        assert "inter_op_parallelism_threads: 8\n" in text
        text = platform_config_text(configured(tensorflow_intra_op_parallelism=4))
        assert "intra_op_parallelism_threads: 4\n" in text
        assert "inter_op_parallelism_threads: 16\n" in text

    # D29
    @pytest.mark.parametrize(
        ("variables", "is_only"),
        [({"MY_HOST_IPV6": "fd::1"}, True), ({"MY_HOST_IP": "10.0.0.7"}, False), ({"MY_HOST_IP": ""}, True)],
    )
    def test_d29_ipv6_only(self, variables: dict[str, str], is_only: bool) -> None:
        assert is_ipv6_only(read_environment(variables)) is is_only

    # D29
    def test_d29_ipv4_servers_are_refused_on_such_a_host(self) -> None:
        with pytest.raises(ConfigError, match=r"'127\.0\.0\.1:2181' is IPv4"):
            check_servers_reachable("127.0.0.1:2181", host_is_ipv6_only=True)
        check_servers_reachable("[::1]:2181", host_is_ipv6_only=True)
        assert is_ipv6_only(read_environment({}), resolve=lambda family: None)
        assert not is_ipv6_only(
            read_environment({}), resolve=lambda family: "10.0.0.1" if family == socket.AF_INET else None
        )


class TestCommands:
    # T10
    def test_t10_version_2_reads_its_model_config_once(self, agent_conf: AgentConfig) -> None:
        config = dataclasses.replace(agent_conf, agent_version=2)
        command = foreign_command(config, "ps", binary="tensorflow_model_server", model_config_file="/tmp/models")
        assert "--model_config_file_poll_wait_seconds=0" in command

    @pytest.fixture
    def d23(self) -> AgentConfig:
        variables = {
            **PORTS,
            "MONOLITH_HOST_SHARD_N": "2",
            "SHARD_ID": "1",
            "TCE_PSM": "p.s.m",
            "TCE_CLUSTER": "default",
        }
        return configured(
            variables,
            deploy_type=DeployType.MIXED,
            num_ps=4,
            dense_alone=True,
            enable_batching=True,
            base_path="/models/m",
        )

    # D23
    @pytest.mark.parametrize(
        ("server_type", "flags"),
        [
            (
                "ps",
                "--archon_rpc_psm=p.s.m_ps --archon_rpc_cluster=default --metrics_namespace_prefix=p.s.m_ps "
                "--log_conf=../conf/log4j_ps.properties --port=9005 --rest_api_port=9006 --archon_port=9007 "
                "--enable_batching=true --file_system_poll_wait_seconds=0 "
                "--platform_config_file=/opt/tiger/monolith_serving/conf/platform_config_file.cfg",
            ),
            (
                "entry",
                "--archon_rpc_psm=p.s.m --archon_rpc_cluster=default --metrics_namespace_prefix=p.s.m "
                "--log_conf=../conf/log4j.properties --port=9003 --rest_api_port=9004 --archon_port=9000 "
                "--archon_entry_to_ps_rpc_timeout=200 --archon_entry_to_ps_long_conn_num=100 "
                "--archon_entry_to_ps_rpc_retry=2 --archon_async_dispatcher_threads=30 --enable_batching=true "
                "--platform_config_file=/opt/tiger/monolith_serving/conf/platform_config_file.cfg",
            ),
            (
                "dense",
                "--archon_rpc_psm=p.s.m_dense --archon_rpc_cluster=default --metrics_namespace_prefix=p.s.m_dense "
                "--log_conf=../conf/log4j_dense.properties --port=9008 --rest_api_port=9009 --archon_port=9010 "
                "--archon_entry_to_ps_rpc_timeout=200 --archon_entry_to_ps_long_conn_num=100 "
                "--archon_entry_to_ps_rpc_retry=2 --archon_async_dispatcher_threads=30 --enable_batching=true "
                "--platform_config_file=/opt/tiger/monolith_serving/conf/platform_config_file.cfg",
            ),
        ],
    )
    def test_d23_flags(self, d23: AgentConfig, server_type: str, flags: str) -> None:
        command = foreign_command(d23, server_type, binary="tfs", model_config_file="/tmp/models")
        assert command == ["tfs", "--model_config_file=/tmp/models", *flags.split()]

    # D24
    def test_d24_model_configs(self, d23: AgentConfig) -> None:
        ps = fixed_model_configs(d23, "ps").model_config_list.config
        assert [(each.name, each.base_path) for each in ps] == [("ps_1", "/models/m/ps_1"), ("ps_3", "/models/m/ps_3")]
        assert [each.model_version_policy.latest.num_versions for each in ps] == [1, 1]
        dense = fixed_model_configs(d23, "dense").model_config_list.config
        assert [(each.name, each.base_path) for each in dense] == [("dense_0", "/models/m/dense_0")]
        assert {each.model_platform for each in [*ps, *dense]} == {"tensorflow"}

    # D25
    def test_d25_policies(self) -> None:
        latest = make_model_config("m", "/m", version_policy="LATEST", version_data=2).model_version_policy
        assert latest.latest.num_versions == 2
        one = make_model_config("m", "/m", version_policy="specific", version_data=5).model_version_policy
        assert list(one.specific.versions) == [5]
        two = make_model_config("m", "/m", version_policy="specific", version_data=[3, 1]).model_version_policy
        assert list(two.specific.versions) == [3, 1]
        with pytest.raises(ConfigError, match="foo is not allowed!"):
            make_model_config("m", "/m", version_policy="foo")


class TestFilters:
    # D26
    @pytest.mark.parametrize(
        ("pattern", "expression"),
        [
            ("ps_{i}", r"ps_(?P<i>\d+)"),
            ("a{x}b{y}", r"a(?P<x>\d+)b(?P<y>\d+)"),
            ("{i", "{i"),
            ("entry", "entry"),
        ],
    )
    def test_d26_patterns(self, pattern: str, expression: str) -> None:
        assert normalise_pattern(pattern) == expression

    # D27
    def test_d27_filters(self) -> None:
        names = ["entry", "ps_0", "ps_1", "ps_2", "ps_11", "dense_0"]
        assert LayoutFilters(["entry; True", "ps_{i}; i % 2 == 1"]).select(names) == ["entry", "ps_1", "ps_11"]
        assert LayoutFilters([]).select(names) == names
        shards = ["ps_{i}; i % ${shard_num} == ${shard_id}"]
        six = [f"ps_{index}" for index in range(6)]
        assert LayoutFilters(shards, shard_id=1, shard_count=3).select(six) == ["ps_1", "ps_4"]
        assert LayoutFilters(shards, shard_id=None, shard_count=1).select(six) == six
        assert LayoutFilters(["ps_0"]).select(["ps_0", "ps_01", "ps_1"]) == ["ps_0", "ps_01"]
        assert LayoutFilters(["entry; True"]).select(["entry_item_embedding_0"]) == ["entry_item_embedding_0"]


LONG = "1_20001223_44ce735e-d05c-11ec-ba29-00163e356637"
LONG_NAME = "20001223_zm_test_realtime_training_1328_v4_r982567_0"


class TestServicePath:
    # T11, T12, T13, T14, T15, D30
    @pytest.mark.parametrize(
        ("path", "parts", "location", "task"),
        [
            (
                "/bzid/service/base_name/idc:cluster/server_type:0/1",
                ("bzid", "base_name", "idc", "cluster", "server_type", "0", "1"),
                "idc:cluster",
                "server_type:0",
            ),
            (
                "/bzid/service/base_name/idc:cluster/server_type:0",
                ("bzid", "base_name", "idc", "cluster", "server_type", "0", None),
                "idc:cluster",
                "server_type:0",
            ),
            (
                "/bzid/service/base_name/server_type:0/1",
                ("bzid", "base_name", None, None, "server_type", "0", "1"),
                None,
                "server_type:0",
            ),
            (
                "/bzid/service/base_name/server_type:0",
                ("bzid", "base_name", None, None, "server_type", "0", None),
                None,
                "server_type:0",
            ),
            (f"/{LONG}/service/{LONG_NAME}/ps:1", (LONG, LONG_NAME, None, None, "ps", "1", None), None, "ps:1"),
            ("/b/service/m/ps:0/00000000007", ("b", "m", None, None, "ps", "0", "00000000007"), None, "ps:0"),
            (
                "/b/service/m/cn-beijing-b:default/dense:0/12",
                ("b", "m", "cn-beijing-b", "default", "dense", "0", "12"),
                "cn-beijing-b:default",
                "dense:0",
            ),
            ("/b/service/m/lf:1", ("b", "m", None, None, "lf", "1", None), None, "lf:1"),
        ],
    )
    def test_t11_to_t15_and_d30(
        self, path: str, parts: tuple[str | None, ...], location: str | None, task: str | None
    ) -> None:
        parsed = ServicePath.parse(path)
        assert dataclasses.astuple(parsed) == parts
        assert (parsed.location, parsed.task) == (location, task)
        assert parsed.ship_in(None, None)
        assert parsed.ship_in(parsed.idc, parsed.cluster)

    # D30
    @pytest.mark.parametrize(
        "path",
        [
            "/b/service/m/ps:0/-1",
            "/b/service/m.v2/ps:0/1",
            "/b/service/m/lf:default",
            "/b/portal/m",
            "/b/service/m/ps:0/1/",
            "/b/service/m/ps_0/1",
            "",
            None,
        ],
    )
    def test_d30_other_paths_have_no_parts(self, path: str | None) -> None:
        parsed = ServicePath.parse(path)
        assert set(dataclasses.astuple(parsed)) == {None}
        assert (parsed.location, parsed.task) == (None, None)

    # D30
    def test_d30_another_cluster_is_not_shipped_in(self) -> None:
        path = ServicePath.parse("/bzid/service/base_name/idc:cluster/server_type:0")
        assert path.ship_in("idc", "cluster")
        assert not path.ship_in("idc", "other")


# D83
def test_d83_wrong_versions_and_deploy_types_are_refused(tmp_path: Path) -> None:
    for text, reason in (
        ("deploy_type unified\n", "agent_version 3"),
        ("deploy_type ps\nagent_version 3\n", "unified"),
        ("deploy_type unified\nagent_version 2\n", "agent_version 3"),
        ("deploy_type ps\nagent_version 4\n", "1, 2 or 3"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load_config(written(tmp_path, MINIMAL + text), {"MY_HOST_IP": "127.0.0.1"})

"""Vectors of the original for the inputs of the tfs client and its profile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from monolith.agent.prediction import PredictionClient, make_record_tensor, random_instances, read_request
from monolith.agent.profiling import percentile, profile_servers
from monolith.core.errors import ConfigError, ShardUnavailable
from monolith.core.fid import v1_to_v2
from monolith.data.records import messages
from monolith.data.records.formatter import parse_record
from monolith.data.records.framing import Framing
from monolith.testing.fakes.fake_model_server import FakeModelServer

Sample = Callable[[str], str]


# T50
def test_t50_random_instances_make_a_tensor_of_texts() -> None:
    tensor = make_record_tensor(random_instances())
    assert (int(tensor.dtype), tensor.tensor_shape.dim[0].size, len(tensor.string_val)) == (7, 256, 256)
    instance = messages.Instance.FromString(tensor.string_val[0])
    assert len(instance.fid) == 30
    assert {value >> 54 for value in instance.fid} == set(range(1, 7))
    assert len(set(tensor.string_val)) > 200


# T7, T8, T9
@pytest.mark.parametrize(("name", "kind"), [("inst.json", "json"), ("inst.pbtext", "pbtext"), ("inst.dump", "dump")])
def test_t7_t8_t9_a_shipped_instance_is_repeated(tmp_path: Path, sample: Sample, name: str, kind: str) -> None:
    path = tmp_path / name
    path.write_text(sample(name))
    key, records = read_request(path, kind, batch_size=5)
    tensor = make_record_tensor(records)
    assert (key, int(tensor.dtype), tensor.tensor_shape.dim[0].size) == ("instances", 7, 5)
    binary = tmp_path / "one.bin"
    binary.write_bytes(records[0])
    assert read_request(binary, "binary", batch_size=5) == (key, records)


# T51, T52, D72
def test_t51_t52_d72_an_example_batch_becomes_instances(tmp_path: Path, sample: Sample) -> None:
    path = tmp_path / "example_batch.pbtxt"
    path.write_text(sample("example_batch.pbtxt"))
    _, records = read_request(path, "example_batch_to_instance")
    assert len(records) == 51
    values = {
        value for each in records for feature in messages.Instance.FromString(each).feature for value in feature.fid
    }
    assert 146369436325841889 in values
    batch = parse_record(sample("example_batch.pbtxt"), "example_batch")
    assert len(batch.named_feature_list) == 139
    v1 = {value for column in batch.named_feature_list for cell in column.feature for value in cell.fid_v1_list.value}
    assert 9376215397644962785 in v1
    assert (9376215397644962785 >> 54, v1_to_v2(9376215397644962785)) == (520, 146369436325841889)
    framed = tmp_path / "batch.bin"
    framing = Framing(lagrangex_header=True)
    framed.write_bytes(framing.frame(batch.SerializeToString()))
    assert read_request(framed, "example_batch_to_instance", framing=framing) == ("instances", records)
    assert read_request(framed, "example_batch", framing=framing) == ("example_batch", [batch.SerializeToString()])
    instances = tmp_path / "instances.bin"
    plain = Framing(sort_id=False)
    instances.write_bytes(b"".join(plain.frame(each) for each in records))
    assert read_request(instances, "instance", batch_size=3, framing=plain) == ("instances", records[:3])
    with pytest.raises(ConfigError, match="input_type is 'xml'"):
        read_request(path, "xml")


# D73
@pytest.mark.parametrize(("count", "index"), [(1, 0), (2, 1), (3, 2), (51, 50), (100, 98), (101, 99)])
def test_d73_the_place_of_p99(count: int, index: int) -> None:
    assert percentile([float(each) for each in reversed(range(count))], 0.99) == index
    assert percentile([], 0.99) == 0.0


# T38
def test_t38_a_client_asks_and_profiles_a_server() -> None:
    inputs = [("instances", random_instances(2))]
    with FakeModelServer.with_model("m", 2) as server:
        with PredictionClient(server.address) as client:
            assert {each.version for each in client.status("m").model_version_status} == {1, 2}
            assert client.metadata("m").model_spec.name == "m"
            client.predict("m", inputs[0])
            client.reload('model_config_list { config { name: "n" base_path: "/n" } }', "text")
            assert client.status("n").model_version_status[0].version == 1
        result = profile_servers([server.address], "m", inputs, threads=2, duration_s=0.3)
        assert result.count > 0
        assert result.failed == 0
        assert result.qps > 0
        assert 0 < result.p50_ms <= result.p99_ms
        assert "p99=" in str(result)
        address = server.address
    with pytest.raises(ShardUnavailable), PredictionClient(address, timeout_s=5) as client:
        client.status("m")
    failed = profile_servers([address], "m", inputs, duration_s=0.1, timeout_s=1)
    assert failed.count == 0
    assert failed.failed > 0

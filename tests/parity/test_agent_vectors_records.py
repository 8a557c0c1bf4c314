"""Vectors of the original for the records that agents keep in ZooKeeper."""

from __future__ import annotations

import logging

import pytest

from monolith.agent.records import (
    AddressFamily,
    BadNodes,
    ModelMeta,
    PublishMeta,
    Record,
    RecordInvalid,
    ReplicaMeta,
    ResourceSpec,
    SavedModelDeployConfig,
)


# T16, T17, T18
@pytest.mark.parametrize(
    "record",
    [
        ModelMeta(model_name="monolith", model_dir="/tmp/opt", ckpt="model.ckpt-1234", num_shard=3),
        ResourceSpec(address="localhost:123", shard_id=10, replica_id=2, memory=12345, cpu=3.5),
        ReplicaMeta(address="localhost:123", model_name="monolith", server_type="ps", task=0, replica=0),
    ],
)
def test_t16_t17_t18_records_survive_their_bytes(record: Record) -> None:
    assert type(record).from_bytes(record.to_bytes()) == record


# D32
@pytest.mark.parametrize(
    ("record", "content"),
    [
        (
            ReplicaMeta(
                address="10.0.0.7:9005",
                address_ipv6="[::]:9005",
                stat=30,
                archon_address="10.0.0.7:9007",
                archon_address_ipv6="[::]:9007",
            ),
            b'{"address": "10.0.0.7:9005", "address_ipv6": "[::]:9005", "stat": 30, "model_name": null, '
            b'"server_type": null, "task": -1, "replica": -1, "archon_address": "10.0.0.7:9007", '
            b'"archon_address_ipv6": "[::]:9007"}',
        ),
        (
            PublishMeta(
                shard_id=2,
                replica_id=0,
                model_name="m",
                num_ps=2,
                total_publish_num=2,
                sub_models={"ps_0": "/x/ps_0/12", "entry": "/x/entry/12"},
            ),
            b'{"shard_id": 2, "replica_id": 0, "model_name": "m", "num_ps": 2, "total_publish_num": 2, '
            b'"sub_models": {"ps_0": "/x/ps_0/12", "entry": "/x/entry/12"}, "ptype": 1, "is_spec": false}',
        ),
        (
            ModelMeta(model_name="m", model_dir="/x"),
            b'{"model_name": "m", "model_dir": "/x", "ckpt": null, "num_shard": -1, "action": "NONE", '
            b'"spec_replicas": []}',
        ),
        (
            SavedModelDeployConfig(model_base_path="/x/ps_0", version_policy="latest_once"),
            b'{"model_base_path": "/x/ps_0", "version_policy": "latest_once"}',
        ),
    ],
)
def test_d32_exact_bytes(record: Record, content: bytes) -> None:
    assert record.to_bytes() == content
    assert type(record).from_bytes(content) == record


# D33
def test_d33_unknown_missing_and_null_keys() -> None:
    record = ReplicaMeta.from_bytes(b'{"address": null, "stat": 30, "color": "red"}')
    assert record == ReplicaMeta(address=None, stat=30)
    assert (record.task, record.replica) == (-1, -1)


# D33
@pytest.mark.parametrize(
    "content",
    [b"[]", b"{", b'{"stat": "x"}', b'{"stat": true}', b'{"stat": 1.5}', b"\xff", b'"' + b"x" * 2_000_000 + b'"'],
)
def test_d33_invalid_content_is_refused_and_logged_once(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    bad_nodes = BadNodes()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(RecordInvalid, match="ReplicaMeta") as caught:
                ReplicaMeta.from_bytes(content)
            bad_nodes.report("/b/service/m/ps:0/1", content, caught.value)
    assert [record.getMessage().count("/b/service/m/ps:0/1") for record in caplog.records] == [1]


# D34
def test_d34_paths() -> None:
    replica = ReplicaMeta(model_name="m", server_type="ps", task=3, replica=2)
    assert replica.get_path("b") == "/b/service/m/ps:3/2"
    publish = PublishMeta(shard_id=2, replica_id=0, model_name="m")
    assert publish.get_path("/b/publish") == "/b/publish/2:0:m"
    assert ResourceSpec(shard_id=-1, replica_id=4).get_path("/b/resource") == "/b/resource/-1:4"
    assert ModelMeta(model_name="m").get_path("/b/portal") == "/b/portal/m"


# D35
@pytest.mark.parametrize(
    ("ipv4", "ipv6", "for_ipv4", "for_ipv6"),
    [
        ("10.0.0.7:1", "[fd::1]:1", "10.0.0.7:1", "[fd::1]:1"),
        ("0.0.0.0:1", "[fd::1]:1", "[fd::1]:1", "[fd::1]:1"),
        ("10.0.0.7:1", "[::]:1", "10.0.0.7:1", "10.0.0.7:1"),
        ("0.0.0.0:1", "[::]:1", None, None),
        (None, "[::1]:1", "[::1]:1", "[::1]:1"),
    ],
)
def test_d35_addresses(ipv4: str | None, ipv6: str, for_ipv4: str | None, for_ipv6: str | None) -> None:
    plain = ReplicaMeta(address=ipv4, address_ipv6=ipv6)
    archon = ReplicaMeta(archon_address=ipv4, archon_address_ipv6=ipv6)
    assert plain.get_address(address_family=AddressFamily.IPV4) == for_ipv4
    assert plain.get_address(address_family=AddressFamily.IPV6) == for_ipv6
    assert archon.get_address(use_archon=True, address_family=AddressFamily.IPV4) == for_ipv4
    assert archon.get_address(use_archon=True, address_family=AddressFamily.IPV6) == for_ipv6
    assert archon.get_address() is None
    with pytest.raises(ValueError, match="ipv5"):
        plain.get_address(address_family="ipv5")  # type: ignore[arg-type]

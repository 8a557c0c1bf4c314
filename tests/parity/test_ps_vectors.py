"""Golden facts of the parameter server: field numbers, routing, sums, and the texts that callers match on."""

from __future__ import annotations

import numpy as np
import pytest

from monolith.embedding.shard_map import deduplicate, divide, shard_of
from monolith.ps import PsClient, messages
from monolith.testing.processes.ps_servers import PsServers

FIELDS = {
    "LookupRequest": "table_name fids dim_size create_if_missing timeout_ms",
    "LookupResponse": "status_code error_message embeddings found num_found num_initialized",
    "ApplyGradientsRequest": "table_name fids gradients dim_size learning_rate global_step timeout_ms",
    "ApplyGradientsResponse": "status_code error_message num_updated num_not_found",
    "BarrierRequest": "barrier_id worker_id num_workers timeout_ms",
    "BarrierResponse": "status_code error_message num_arrived",
    "HealthCheckRequest": "component",
    "HealthCheckResponse": "status message uptime_seconds",
    "GetStatsRequest": "include_table_stats",
    "GetStatsResponse": "shard_id total_embeddings memory_bytes table_stats lookup_count apply_gradients_count "
    "avg_lookup_latency_us avg_apply_latency_us",
    "TableStats": "name num_embeddings dim_size memory_bytes",
    "BatchLookupRequest": "requests",
    "BatchLookupResponse": "responses",
    "BatchApplyGradientsRequest": "requests",
    "BatchApplyGradientsResponse": "responses",
}

OWN_FIELDS = {"GetStatsResponse": ("delta_sequence",)}
"""Our additional fields, which other clients ignore."""


@pytest.mark.parametrize("name", FIELDS)
def test_fields_have_the_numbers_that_other_clients_send(name: str) -> None:
    descriptor = getattr(messages, name).DESCRIPTOR
    assert descriptor.full_name == f"monolith.ps_training.{name}"
    numbers = {field.number: field.name for field in descriptor.fields}
    numbers = {number: called for number, called in numbers.items() if called not in OWN_FIELDS.get(name, ())}
    assert numbers == dict(enumerate(FIELDS[name].split(), 1))


def test_the_service_and_its_status_codes() -> None:
    assert messages.TRAINING_SERVICE == "monolith.ps_training.ParameterServerTraining"
    assert set(messages.TRAINING_METHODS) == {"Lookup", "ApplyGradients", "Barrier", "HealthCheck", "GetStats"}
    status = messages.HealthCheckResponse.Status
    assert {name: status.Value(name) for name in status.keys()} == {  # noqa: SIM118 - no mapping
        "UNKNOWN": 0,
        "HEALTHY": 1,
        "UNHEALTHY": 2,
        "DEGRADED": 3,
    }


def test_bytes_of_a_lookup_request() -> None:
    request = messages.LookupRequest(table_name="t", fids=[1, -1], dim_size=2, create_if_missing=True, timeout_ms=5)
    minus_one = b"\xff" * 9 + b"\x01"
    assert request.SerializeToString() == b"\x0a\x01t\x12\x0b\x01" + minus_one + b"\x18\x02\x20\x01\x28\x05"


def test_routing() -> None:
    assert [part.tolist() for part in divide(np.arange(8), 3).parts] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    # The port takes the floor-mod of the signed id, so -1 of 3 is 2 there; ours is unsigned everywhere.
    assert shard_of([-1, -(2**63), 2**63 - 1], 3).tolist() == [0, 2, 1]


def test_deduplication() -> None:
    unique, positions = deduplicate(np.array([1, 2, 1, 3, 2, 1]))
    assert (unique.tolist(), positions.tolist()) == ([1, 2, 3], [0, 1, 0, 2, 1, 0])


def test_gradients_are_summed_by_id() -> None:
    with PsServers(1) as servers, PsClient(servers.addresses) as client:
        client.lookup("t", [1, 2], 2)
        assert client.apply_gradients("t", [1, 2, 1], [[1, 2], [3, 4], [0.5, 0.5]], 1.0) == (2, 0)
        assert client.lookup("t", [1, 2], 2).tolist() == [[-1.5, -2.5], [-3, -4]]


def test_an_update_over_two_shards() -> None:
    with PsServers(2) as servers, PsClient(servers.addresses) as client:
        client.lookup("t", [0, 1, 3], 2)
        assert client.apply_gradients("t", [0, 1, 0, 3], [[0.1, 0.2]] * 4, 0.5) == (3, 0)
        assert np.allclose(client.lookup("t", [1], 2), [[-0.05, -0.1]])

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monolith.agent.address_messages import SERVICE
from monolith.agent.address_service import AddressService, LayoutAddressBook
from monolith.agent.bindings import Bindings
from monolith.rpc import grpc
from monolith.rpc.security import Security
from monolith.testing.suites.zookeeper_ensembles import MemoryEnsemble

# Field 1, server_type, is the number 7.
UNKNOWN_TYPE = b"\x08\x07"


@pytest.fixture
def port() -> Iterator[int]:
    with MemoryEnsemble() as ensemble:
        bindings = Bindings(ensemble.open(), "b")
        service = AddressService(LayoutAddressBook(bindings), "127.0.0.1:0")
        service.start()
        yield service.port
        service.stop()
        bindings.close()


@pytest.mark.parametrize("verb", ["HeartBeat", "GetReplicas"])
@pytest.mark.parametrize(("payload", "reason"), [(UNKNOWN_TYPE, "server_type is 7"), (b"\xff", "")])
def test_a_request_that_no_agent_understands_is_refused_with_a_reason(
    port: int, verb: str, payload: bytes, reason: str
) -> None:
    channel = grpc.open_channel(f"127.0.0.1:{port}", Security(), 1 << 20)
    try:
        with pytest.raises(grpc.CallError) as caught:
            channel.unary_unary(f"/{SERVICE}/{verb}")(payload, timeout=30)
    finally:
        channel.close()
    assert reason in (caught.value.details() or "")
    if reason:
        assert caught.value.code().name == "INVALID_ARGUMENT"

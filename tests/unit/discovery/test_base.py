from __future__ import annotations

from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.discovery import Health, ServiceInfo
from monolith.discovery.base import in_order


def test_a_service_has_an_id_a_name_and_an_address() -> None:
    service = ServiceInfo(service_type="ps", index=3, host="[::1]", port=80)
    assert (service.id, service.name, service.address, service.health) == ("ps-3", "ps-3", "[::1]:80", Health.UNKNOWN)
    assert ServiceInfo(service_type="ps", host="h", port=80).id == "ps-h:80"
    assert ServiceInfo(service_type="ps", index=3, host="h", port=80, id="mine").name == "mine"


def test_metadata_is_a_copy_that_cannot_be_changed() -> None:
    given = {"allow_update": "true"}
    service = ServiceInfo(service_type="ps", index=0, host="h", port=1, metadata=given)
    given.clear()
    assert service.allows_update
    with pytest.raises(TypeError):
        service.metadata["x"] = "y"  # type: ignore[index]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"service_type": ""}, "service_type is ''"),
        ({"service_type": "p s"}, "service_type is 'p s'"),
        ({"index": -1}, "index of a ps is -1"),
        ({"index": "0"}, "index of a ps is '0'"),
        ({"index": True}, "index of a ps is True"),
        ({"host": ""}, "host is ''"),
        ({"host": "h:80"}, "host is 'h:80'"),
        ({"port": 65536}, "port is 65536"),
        ({"port": -1}, "port is -1"),
        ({"port": "80"}, "port is '80'"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(wrong: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"service_type": "ps", "index": 0, "host": "h", "port": 80, **wrong}
    with pytest.raises(ConfigError, match=message):
        ServiceInfo(**fields)


def test_services_without_an_index_come_last_by_address() -> None:
    services = [
        ServiceInfo(service_type="ps", host="b", port=1),
        ServiceInfo(service_type="ps", host="a", port=1),
        ServiceInfo(service_type="ps", index=1, host="z", port=1),
    ]
    assert [one.host for one in in_order(services)] == ["z", "a", "b"]

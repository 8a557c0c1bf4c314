from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError
from monolith.discovery import Ordering, OrderingIssue, ServiceInfo, order_servers


@given(st.integers(1, 20), st.integers(0, 5), st.randoms(use_true_random=False))
def test_servers_are_ordered_by_index_in_any_input_order(count: int, spare: int, chance: random.Random) -> None:
    services = [ServiceInfo(service_type="ps", index=n, host=f"h{n}", port=1) for n in range(count + spare)]
    chance.shuffle(services)
    assert order_servers(services, count) == Ordering(addresses=tuple(f"h{n}:1" for n in range(count)))
    missing = chance.randrange(count)
    if without := [one for one in services if one.index != missing]:
        assert order_servers(without, count) == Ordering(issue=OrderingIssue.MISSING_OR_GAPPED_INDEX_SET)


def test_servers_without_index_are_taken_by_address_up_to_the_count() -> None:
    services = [ServiceInfo(service_type="ps", host=host, port=1) for host in ("c", "a", "b")]
    assert order_servers(services, 2).addresses == ("a:1", "b:1")
    assert order_servers([], 2) == Ordering()


def test_a_count_of_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="count of servers is 0"):
        order_servers([], 0)

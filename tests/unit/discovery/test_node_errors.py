from __future__ import annotations

import pytest

from monolith.core.errors import ClusterError
from monolith.discovery.zookeeper_session import NodeChanged, NodeExists, NodeMissing, NodeNotEmpty


@pytest.mark.parametrize(
    ("error", "retryable"), [(NodeChanged, True), (NodeExists, False), (NodeMissing, False), (NodeNotEmpty, False)]
)
def test_only_a_changed_node_is_worth_another_attempt(error: type[ClusterError], retryable: bool) -> None:
    assert error("/job/ps/0").retryable is retryable

"""Collective calls of a single rank; several ranks make them in tests/integration/test_synchronous_training.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from monolith.core.errors import ClusterError
from monolith.training.groups.ranks import RankConnection, RankInfo


@pytest.mark.parametrize("content", [b"", b"one", bytes(range(256)) * 40])
def test_a_rank_alone_gets_its_own_bytes(content: bytes) -> None:
    with RankConnection(RankInfo()) as connection:
        assert connection.saves.gather_bytes(content) == [content]
        assert connection.saves.broadcast_bytes(content) == content
        assert connection.saves.all_gather_ints([3, 4]).tolist() == [[3, 4]]


@pytest.mark.parametrize("made", [0, 1])
def test_a_rank_lost_between_two_channels_is_a_cluster_error_that_leaves_no_connection(
    made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[Any] = []
    new_group = dist.new_group

    def lose(**options: Any) -> Any:
        if len(groups) == made:
            raise dist.DistStoreError("wait timeout after 4000ms")
        groups.append(new_group(**options))
        return groups[-1]

    monkeypatch.setattr(dist, "new_group", lose)
    with pytest.raises(ClusterError, match=r"rank 0 of 1 did not reach the others .*wait timeout after 4000ms"):
        RankConnection(RankInfo())
    monkeypatch.undo()
    with RankConnection(RankInfo()) as connection:
        assert connection.saves.gather_bytes(b"one") == [b"one"]

"""Collective calls of a single rank; several ranks make them in tests/integration/test_synchronous_training.py."""

from __future__ import annotations

import pytest

from monolith.training.groups.ranks import RankConnection, RankInfo


@pytest.mark.parametrize("content", [b"", b"one", bytes(range(256)) * 40])
def test_a_rank_alone_gets_its_own_bytes(content: bytes) -> None:
    with RankConnection(RankInfo()) as connection:
        assert connection.saves.gather_bytes(content) == [content]
        assert connection.saves.broadcast_bytes(content) == content
        assert connection.saves.all_gather_ints([3, 4]).tolist() == [[3, 4]]

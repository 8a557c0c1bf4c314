"""Ranks: processes that step together, each with a shard of every table and a copy of the dense weights.

A rank is a process that ``torchrun``, ``mpirun`` or the like has started. There is no server and no discovery: rank 0
waits for the others at an address that all of them get from their environment.
"""

from __future__ import annotations

from monolith.embedding.ranks.rank_store import RankStore
from monolith.training.groups.ranks.connection import RankConnection
from monolith.training.groups.ranks.group import Ranks
from monolith.training.groups.ranks.rank_env import RankInfo, read_rank_env

__all__ = ["RankConnection", "RankInfo", "RankStore", "Ranks", "read_rank_env"]

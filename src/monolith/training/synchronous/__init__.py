"""Synchronous training: ranks that step together, each with a shard of every table and a copy of the dense part.

A rank is a process that ``torchrun``, ``mpirun`` or the like has started. There is no server and no discovery: rank 0
waits for the others at an address that all of them are told.
"""

from __future__ import annotations

from monolith.training.synchronous.peer_estimator import PeerEstimator
from monolith.training.synchronous.peer_store import PeerStore
from monolith.training.synchronous.peers import Peers
from monolith.training.synchronous.rank_place import RankPlace, read_place

__all__ = ["PeerEstimator", "PeerStore", "Peers", "RankPlace", "read_place"]

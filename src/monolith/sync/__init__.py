"""From training to serving: publishing cuts of tables and dense weights, and following them.

A publisher writes the delta log of :mod:`monolith.artifacts`, files of dense weights beside it, and a cut that names
one state of both. A follower takes a loaded model from cut to cut. Both need no torch, and know neither the training
loop nor the server. ``remote_rows``, which needs gRPC, publishes from parameter servers.
"""

from __future__ import annotations

from monolith.sync.base import Base, read_base, write_base
from monolith.sync.dense_versions import DenseReader, DenseWriter
from monolith.sync.follower import Follower, FollowerStatus, Target
from monolith.sync.publisher import LocalRows, Publisher, Rows, RowState

__all__ = [
    # what is published
    "Base",
    "DenseReader",
    "DenseWriter",
    "read_base",
    "write_base",
    # who publishes
    "LocalRows",
    "Publisher",
    "RowState",
    "Rows",
    # who follows
    "Follower",
    "FollowerStatus",
    "Target",
]

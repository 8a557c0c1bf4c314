"""Publish training state and follow it: the link from training to serving.

A ``Publisher`` writes the delta log of :mod:`monolith.artifacts`, files of dense weights, and a cut that names one
state of both. A ``Follower`` moves a loaded model from cut to cut. ``feed_server`` and ``subscription`` carry a
published folder over gRPC. ``push`` sends rows to model servers that do not follow. ``remote_rows`` publishes from
parameter servers. No module needs torch, the training loop or the model server.
"""

from __future__ import annotations

from monolith.sync.base_snapshot import BaseSnapshot, read_base, write_base
from monolith.sync.dense_versions import DenseReader, DenseWriter
from monolith.sync.follower import Follower, FollowerStatus, Target
from monolith.sync.publisher import LocalRowLog, LogPositions, Publisher, RowLogs

__all__ = [
    # published files
    "BaseSnapshot",
    "DenseReader",
    "DenseWriter",
    "read_base",
    "write_base",
    # publishing
    "LocalRowLog",
    "LogPositions",
    "Publisher",
    "RowLogs",
    # following
    "Follower",
    "FollowerStatus",
    "Target",
]

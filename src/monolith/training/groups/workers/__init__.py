"""Workers: partially synchronous processes. Tables are on parameter servers; dense weights are equal at all workers."""

from __future__ import annotations

from monolith.training.groups.workers.group import Workers
from monolith.training.groups.workers.sync_group import SyncGroup

__all__ = ["SyncGroup", "Workers"]

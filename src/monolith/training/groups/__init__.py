"""Groups: the processes that train one model together, as one of them sees the group.

``Solo`` is a process alone, ``ranks.Ranks`` are processes of ``torchrun`` that hold the tables, ``workers.Workers`` are
partially synchronous workers whose tables are on parameter servers. An estimator takes one of them as ``group=``.
"""

from __future__ import annotations

from monolith.training.groups.base import Group
from monolith.training.groups.solo import Solo

__all__ = ["Group", "Solo"]

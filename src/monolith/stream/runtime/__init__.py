"""Run a join: partition groups that read topics, keep durable state, and write rows exactly once.

``JoinGroup`` joins one partition group. ``StateFolder`` holds its snapshots and journal. ``JoinInput`` and ``JoinSink``
are the Protocols of its topics. ``JoinRun`` runs several groups in one process.
"""

from __future__ import annotations

from monolith.stream.runtime.group import GroupOptions, GroupStatus, JoinGroup
from monolith.stream.runtime.job import JoinRun
from monolith.stream.runtime.ports import JoinInput, JoinSink, Lot
from monolith.stream.runtime.state_folder import StateFolder

__all__ = ["GroupOptions", "GroupStatus", "JoinGroup", "JoinInput", "JoinRun", "JoinSink", "Lot", "StateFolder"]

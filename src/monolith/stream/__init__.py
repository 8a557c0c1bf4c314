"""Join impressions with user actions into labelled training examples.

``EventParser`` reads records of the input topics. ``WatermarkTracker`` derives the watermark from their times.
``ReferenceJoiner`` applies the rules of the join and returns rows. ``RowAssembler`` writes rows as Examples.
``RecordJoiner`` composes the four. ``JoinCore`` is the Protocol of the rules, so that a native core can replace the
reference. ``KeyRules`` applies the same rules to the state of one request key, for engines that own the state.

No module reads a clock or draws random numbers: equal inputs give equal outputs, so a replay repeats its rows.
"""

from __future__ import annotations

from monolith.stream.assembly import AssembledRow, RowAssembler
from monolith.stream.core import JoinCore, ReferenceJoiner
from monolith.stream.events import END_OF_TIME, INVALID, Action, Event, Impression, Row, Watermark
from monolith.stream.hashes import choose_partition, draw_uniform
from monolith.stream.key_rules import KeyRules, KeyState
from monolith.stream.native_core import JoinBatch, NativeJoiner
from monolith.stream.parsing import DeadLetter, EventParser, RecordPlace
from monolith.stream.record_joiner import JoinedRecord, RecordJoiner
from monolith.stream.settings import JoinSettings, parse_tasks
from monolith.stream.watermark import WatermarkTracker

__all__ = [
    # settings
    "JoinSettings",
    "parse_tasks",
    # events and rows
    "Action",
    "END_OF_TIME",
    "Event",
    "INVALID",
    "Impression",
    "Row",
    "Watermark",
    # rules
    "JoinCore",
    "KeyRules",
    "KeyState",
    "NativeJoiner",
    "ReferenceJoiner",
    # records
    "AssembledRow",
    "DeadLetter",
    "EventParser",
    "JoinBatch",
    "JoinedRecord",
    "RecordJoiner",
    "RecordPlace",
    "RowAssembler",
    # time and placement
    "WatermarkTracker",
    "choose_partition",
    "draw_uniform",
]

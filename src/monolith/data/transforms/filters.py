"""Filters by ids, slots, actions and labels.

Filters by values are in ``values``, those by data source in ``data_source``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monolith import _native
from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data.transforms import _arguments as arguments
from monolith.data.transforms.base import BuildContext, RowTransform

__all__ = ["FilterByAction", "FilterByFids", "FilterByLabel"]


@dataclass(frozen=True, kw_only=True)
class FilterByFids(RowTransform):
    """Keep rows by the ids, slots, actions and request time they have. An empty list asks nothing.

    All ids of the row count: the flat ones of an Instance, and those of every feature, lists of lists included. They
    are compared as written in the record, a v1 id as v1; the slot of an id follows its version.
    """

    filter_fids: Sequence[int] | str = ()
    """Drop the row when it has any of these."""
    has_fids: Sequence[int] | str = ()
    """Keep the row only when it has any of these."""
    select_fids: Sequence[int] | str = ()
    """Keep the row only when it has all of these."""
    has_actions: arguments.Ints = ()
    """Keep the row only when LineId.actions has any of these."""
    req_time_min: int = 0
    """Drop the row when LineId.req_time (0 when absent) is smaller."""
    select_slots: arguments.Ints = ()
    """Keep the row only when it has an id in each of these slots."""

    def __post_init__(self) -> None:
        for name in ("filter_fids", "has_fids", "select_fids"):
            arguments.fids(self, name)
        arguments.wholes(self, "has_actions")
        arguments.whole(self, "req_time_min")
        for slot in arguments.wholes(self, "select_slots"):
            if not 0 <= slot < fid.V2_SLOTS:
                raise ConfigError(f"FilterByFids.select_slots has {slot}; slots are 0 to {fid.V2_SLOTS - 1}")

    @property
    def needs_all_features(self) -> bool:
        """True when ids or slots are asked for."""
        return bool(self.filter_fids or self.has_fids or self.select_fids or self.select_slots)

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        return _native.filter_by_fids(
            arguments.ints(self.filter_fids),
            arguments.ints(self.has_fids),
            arguments.ints(self.select_fids),
            arguments.ints(self.has_actions),
            self.req_time_min,
            arguments.ints(self.select_slots),
        )


@dataclass(frozen=True, kw_only=True)
class FilterByAction(RowTransform):
    """Keep rows whose LineId.actions has any of ``has_actions``."""

    has_actions: arguments.Ints

    def __post_init__(self) -> None:
        arguments.wholes(self, "has_actions", is_needed=True)

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        return _native.filter_by_action(arguments.ints(self.has_actions))


@dataclass(frozen=True, kw_only=True)
class FilterByLabel(RowTransform):
    """Keep rows in which any label is above its threshold.

    A missing label never passes, and a row with fewer labels than thresholds is dropped.
    """

    thresholds: Sequence[float]
    """One per label, from the first label on."""
    filter_equal: bool = False
    """Whether a label that equals its threshold fails."""

    def __post_init__(self) -> None:
        arguments.numbers(self, "thresholds", is_needed=True)
        arguments.flag(self, "filter_equal")

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        return _native.filter_by_label(self.thresholds, self.filter_equal)

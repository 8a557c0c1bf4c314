"""``Transform``: settings that check themselves, and ``build``, which returns the native operation.

A dataset calls ``build`` once, with the column names and numbers of its parser, and runs the operation on every chunk
of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from monolith import _native
from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data.slot_names import slot_of_name

__all__ = ["BuildContext", "FeatureRef", "LineField", "RowTransform", "Transform"]

LineField: TypeAlias = tuple[str, int, str, bool, float]
"""(name, number, kind, is_repeated, default) of a LineId field. Kinds: int, fixed64, fixed32, float, double, text."""

FeatureRef: TypeAlias = tuple[str, int, int]
"""(name, column, slot among the flat v1 ids of an Instance or -1) of a feature."""


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """The pipeline of a transform: columns, fields and seed.

    Two transforms of one pipeline need different seeds, or their random choices agree. Give each
    ``context.at(its position)``.
    """

    columns: _native.Columns
    """Names of features -> column numbers of the parser."""
    line_fields: Sequence[LineField] = field(default_factory=_native.standard_line_fields)
    """The fields of LineId, including those that the user added."""
    seed: int = 0
    """The start of every random choice; 64 bits."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """Slots of features that an Instance spells among its flat ids; ``slot_N`` and ``fc_slot_N`` need no entry."""

    def at(self, position: int) -> BuildContext:
        """Return the context of the transform at ``position``: the same with another seed."""
        return replace(self, seed=_native.mix(self.seed, position))

    def line_field(self, name: str) -> LineField:
        """Return the LineId field of that name.

        Raises:
            ConfigError: LineId has no such field; the text lists those it has.
        """
        for line_field in self.line_fields:
            if line_field[0] == name:
                return line_field
        known = ", ".join(line_field[0] for line_field in self.line_fields)
        raise ConfigError(
            f"LineId has no field {name!r}; known fields: {known}; add yours to the dataset's line fields"
        )

    def feature(self, name: str) -> FeatureRef:
        """Return where the feature of that name is found in a row; it gets a column when it has none."""
        slot = self.slots.get(name, slot_of_name(name))
        return name, self.columns.want(name), slot if slot is not None and slot < fid.V1_SLOTS else -1


class Transform(ABC):
    """Something that turns rows into rows."""

    __slots__ = ()

    @property
    def needs_all_features(self) -> bool:
        """Whether rows must carry every feature of the record, not only those that the batch needs."""
        return False

    @property
    def made_features(self) -> tuple[str, ...]:
        """The features that it makes of others, which the input need not have."""
        return ()

    @property
    def is_per_batch(self) -> bool:
        """Whether it works on the rows of one batch together, and so comes after batching."""
        return False

    @abstractmethod
    def build(self, context: BuildContext) -> _native.RowOp:
        """Make the native operation.

        Raises:
            ConfigError: The settings do not fit the pipeline, for example a LineId field is not known.
        """


class RowTransform(Transform):
    """A transform that looks at one row at a time: keeps or drops it, and may edit it."""

    __slots__ = ()

    @abstractmethod
    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""

    def build(self, context: BuildContext) -> _native.RowOp:
        """Make the native operation."""
        return _native.rule_op([self.build_rule(context)])

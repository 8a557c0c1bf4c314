"""``WantedColumns``: the columns that a dataset needs of tables. ``ColumnOptions``: settings of its reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from monolith.core.errors import ConfigError

__all__ = ["ALL_MISSING", "ColumnOptions", "ColumnSource", "WantedColumns"]

ALL_MISSING = "*"
"""In ``allow_missing``: every column may be missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedColumns:
    """The columns that a dataset needs from every table."""

    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Column of each feature, with the other names by which the parser finds it."""

    labels: tuple[str, ...] = ()
    """Columns of the labels."""

    weight: str = "instance_weight"
    """Column of the weight; it may be missing."""

    reads_all: bool = False
    """True if the dataset uses columns beside these, so all are read."""

    @property
    def names(self) -> set[str]:
        """Every name that the parser looks for."""
        others = (name for names in self.features.values() for name in names)
        return {*self.features, *others, *self.labels, self.weight}


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnOptions:
    """Settings of the reader for all columns."""

    allow_missing: tuple[str, ...] = ()
    """Wanted columns that a table may lack; ``ALL_MISSING`` stands for all. A time column counts only by its name."""

    exclude: frozenset[str] = frozenset()
    """Columns that are not read."""

    time_column: str | None = None
    """Column of the event time: unix seconds, milliseconds and so on, a timestamp, or text in ISO 8601."""

    @classmethod
    def make(
        cls, allow_missing: bool | Sequence[str] = (), exclude: Sequence[str] = (), time_column: str | None = None
    ) -> ColumnOptions:
        """Return the options of a reader's arguments.

        Raises:
            ConfigError: A list of names is a single text.
        """
        for name, value in (("allow_missing", allow_missing), ("exclude", exclude)):
            if isinstance(value, str):
                raise ConfigError(f"{name} is {value!r}, expected a list of columns")
        if isinstance(allow_missing, bool):
            allow_missing = (ALL_MISSING,) if allow_missing else ()
        return cls(allow_missing=tuple(allow_missing), exclude=frozenset(exclude), time_column=time_column)


@runtime_checkable
class ColumnSource(Protocol):
    """A source of tables, which knows the columns before it reads rows."""

    def require(self, wanted: WantedColumns) -> None:
        """Check every table for these columns, and read no other; called before the first ``read``."""

    @property
    def missing_columns(self) -> int:
        """Columns that tables lack and may lack, summed over the tables read."""

"""Which data source a row is from: setting it, and filtering by it.

A row carries the key of its data source; how a name becomes a key is known to ``records.data_source``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monolith import _native
from monolith.core.errors import ConfigError
from monolith.data.records.data_source import data_source_key
from monolith.data.transforms import _arguments as arguments
from monolith.data.transforms.base import BuildContext, RowTransform

__all__ = ["FilterBySource", "SetDataSource"]


@dataclass(frozen=True, kw_only=True)
class FilterBySource(RowTransform):
    """Keep rows that are from one of the data sources ``names``."""

    names: Sequence[str]

    def __post_init__(self) -> None:
        names = (self.names,) if isinstance(self.names, str) else tuple(self.names)
        if not names or not all(arguments.is_name(name) for name in names):
            raise ConfigError(f"FilterBySource.names is {self.names!r}; give at least one name")
        arguments.set_field(self, "names", names)

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        return _native.filter_by_source([data_source_key(name) for name in self.names])


@dataclass(frozen=True, kw_only=True)
class SetDataSource(RowTransform):
    """Set the data source of rows: one for all, or by LineId.chnid."""

    name: str = ""
    """The source of rows that ``by_chnid`` does not name; "" = not known."""
    by_chnid: Mapping[int, str] = field(default_factory=dict)
    """LineId.chnid -> name of the source."""

    def __post_init__(self) -> None:
        arguments.text(self, "name", may_be_empty=True)
        if not self.name and not self.by_chnid:
            raise ConfigError("SetDataSource has neither name nor by_chnid; give one")
        for chnid, name in self.by_chnid.items():
            if not arguments.is_whole(chnid) or not arguments.is_name(name):
                raise ConfigError(f"SetDataSource.by_chnid has {chnid!r}: {name!r}; give whole numbers and names")

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        keys = [data_source_key(name) for name in self.by_chnid.values()]
        return _native.set_source(list(self.by_chnid), keys, data_source_key(self.name) if self.name else 0)

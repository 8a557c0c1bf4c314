"""Which data source a row is from: setting it, and filtering by it.

A data source is known by a key, made of its name: 24 bits of Java's hash, as record headers carry them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monolith import _native
from monolith.core.errors import ConfigError
from monolith.data.transforms import _arguments as arguments
from monolith.data.transforms.base import BuildContext, RowTransform

__all__ = ["FilterBySource", "SetDataSource", "source_key"]


def source_key(name: str) -> int:
    """Return the key of a data source: Java's ``hashCode`` of the name, shifted left by 8 bits, 32 bits of it.

    >>> source_key("pc"), source_key("mobile"), source_key("cloud")
    (914176, 1250992640, 2782803200)
    """
    units = memoryview(name.encode("utf-16-le")).cast("H")
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return (value << 8) & 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class FilterBySource(RowTransform):
    """Keep rows that are from one of the data sources ``names``."""

    names: Sequence[str]

    def __post_init__(self) -> None:
        names = (self.names,) if isinstance(self.names, str) else tuple(self.names)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"FilterBySource.names is {self.names!r}; give at least one name")
        arguments.set_field(self, "names", names)

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        return _native.filter_by_source([source_key(name) for name in self.names])


@dataclass(frozen=True, kw_only=True)
class SetDataSource(RowTransform):
    """Say which data source rows are from: one for all, or by LineId.chnid."""

    name: str = ""
    """The source of rows that ``by_chnid`` does not name; "" = not known."""
    by_chnid: Mapping[int, str] = field(default_factory=dict)
    """LineId.chnid -> name of the source."""

    def __post_init__(self) -> None:
        arguments.text(self, "name", may_be_empty=True)
        if not self.name and not self.by_chnid:
            raise ConfigError("SetDataSource has neither name nor by_chnid; give one")
        for chnid, name in self.by_chnid.items():
            if not isinstance(chnid, int) or not isinstance(name, str) or not name:
                raise ConfigError(f"SetDataSource.by_chnid has {chnid!r}: {name!r}; give whole numbers and names")

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        keys = [source_key(name) for name in self.by_chnid.values()]
        return _native.set_source(list(self.by_chnid), keys, source_key(self.name))

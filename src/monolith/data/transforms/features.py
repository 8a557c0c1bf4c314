"""Features made of features: other slots, crosses, and ids of plain values. All rows stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from typing_extensions import override

from monolith import _native
from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data.transforms import _arguments as arguments
from monolith.data.transforms.base import BuildContext, RowTransform

__all__ = ["Extraction", "FeatureCombine", "StringToFid", "SwitchSlot"]

Extraction: TypeAlias = Literal["hash", "int", "int64_hash", "log2", "ln", "ratio"]


@dataclass(frozen=True, kw_only=True)
class SwitchSlot(RowTransform):
    """Give the ids of features another slot, in place or in a copy named ``<name>_<suffix>``.

    Ids keep their signature: 54 bits of a v1 id, 48 of a v2 id. v1 ids stay v1 when the slot is below 1024 and become
    v2 when it is not. Lists of lists keep their shape.
    """

    slots: Mapping[str, int | tuple[bool, int]]
    """Feature -> slot of the copy, or (in place?, slot)."""
    suffix: str = "share"

    def __post_init__(self) -> None:
        arguments.text(self, "suffix")
        if not arguments.is_mapping(self.slots) or not self.slots:
            raise ConfigError(f"SwitchSlot.slots is {self.slots!r}; give a mapping of feature to slot")
        normal: dict[str, tuple[bool, int]] = {}
        for name, given in self.slots.items():
            in_place, slot = given if isinstance(given, tuple) else (False, given)
            if not arguments.is_name(name) or in_place not in (True, False):
                raise ConfigError(
                    f"SwitchSlot.slots has {name!r}: {given!r}; give a name and a slot or (in place?, slot)"
                )
            if not arguments.is_whole(slot) or not 0 <= slot < fid.V2_SLOTS:
                raise ConfigError(f"SwitchSlot.slots has {name!r}: {given!r}; slots are 0 to {fid.V2_SLOTS - 1}")
            normal[name] = (in_place, slot)
        arguments.set_field(self, "slots", normal)

    @property
    @override
    def made_features(self) -> tuple[str, ...]:
        return tuple(f"{name}_{self.suffix}" for name in self.slots)

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        switches = []
        for name, given in self.slots.items():
            in_place, slot = given if isinstance(given, tuple) else (False, given)
            source = context.feature(name)
            target = source[1] if in_place else context.columns.want(f"{name}_{self.suffix}")
            switches.append((source, target, slot))
        return _native.switch_slot(switches)


@dataclass(frozen=True, kw_only=True)
class FeatureCombine(RowTransform):
    """Cross two features: every id of ``name_a`` (outer) with every id of ``name_b`` (inner).

    An id is the slot and the high half xor the low half of the 128-bit product of the two ids (``fid.cross``). Two v1
    features give v1 ids when the slot is below 1024; of mixed versions, v1 ids are made v2 first.
    """

    name_a: str
    name_b: str
    slot: int
    out: str
    """The new feature."""

    def __post_init__(self) -> None:
        for name in ("name_a", "name_b", "out"):
            arguments.text(self, name)
        arguments.slot(self, "slot")

    @property
    @override
    def made_features(self) -> tuple[str, ...]:
        return (self.out,)

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        out = context.columns.want(self.out)
        return _native.feature_combine(context.feature(self.name_a), context.feature(self.name_b), self.slot, out)


@dataclass(frozen=True, kw_only=True)
class StringToFid(RowTransform):
    """Turn the values of a feature (bytes, integers, floats) into v2 ids of ``slot``.

    ==========  ==================  =====================================================================
    method      takes               signature
    ==========  ==================  =====================================================================
    hash        bytes, integers     CityHash64 of the text (of an integer's decimal text)
    int         integers            the integer itself
    int64_hash  integers            CityHash64 of its eight little-endian bytes
    log2        integers, floats    trunc(log2(abs(v) + 1))
    ln          integers, floats    CityHash64 of the text of floor(scale * ln(1 + v)); below 0 counts as 0
    ratio       integers, floats    CityHash64 of the text of floor(scale * v)
    ==========  ==================  =====================================================================

    Values that are not a number give no id.
    """

    name: str
    slot: int
    out: str | None = None
    """The new feature; None: in place."""
    method: Extraction = "hash"
    scale: float | None = None
    """Of ``ln`` (1 when None) and ``ratio`` (100 when None)."""

    def __post_init__(self) -> None:
        arguments.text(self, "name")
        arguments.slot(self, "slot")
        if self.out is not None:
            arguments.text(self, "out")
        if self.method not in get_args(Extraction):
            methods = ", ".join(get_args(Extraction))
            raise ConfigError(f"StringToFid.method is {self.method!r}; use one of: {methods}")
        if self.scale is not None:
            arguments.number(self, "scale", above=0.0)
            if self.method not in ("ln", "ratio"):
                raise ConfigError(f"StringToFid.scale is {self.scale}, but the method {self.method!r} has no scale")

    @property
    @override
    def made_features(self) -> tuple[str, ...]:
        return () if self.out is None else (self.out,)

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        source = context.columns.want(self.name)
        target = source if self.out is None else context.columns.want(self.out)
        scale = self.scale if self.scale is not None else 100.0 if self.method == "ratio" else 1.0
        return _native.extract_fid(self.name, source, target, self.slot, self.method, scale)

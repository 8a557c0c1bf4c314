"""Layouts as the original's messages describe them: which slices of which features make up which tensor.

``resolve`` fills in derived fields, and ``native_layouts`` builds the kernel that computes the layouts. All types are
plain values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import accumulate
from typing import TypeAlias, TypeVar

from monolith import _native
from monolith.core.errors import ConfigError

__all__ = [
    "FeatureConfig",
    "FeatureConfigs",
    "OutConfig",
    "OutType",
    "Part",
    "PoolingType",
    "SliceConfig",
    "flatten_layout",
    "layout_parts",
    "native_layouts",
    "nest_layout",
    "resolve",
]

Part: TypeAlias = tuple[int, int, int, int, int, int]
"""(output, feature, column, width, offset, stride) of ``_native.Layouts``."""

_Tensor = TypeVar("_Tensor")


class PoolingType(IntEnum):
    """How the rows of one example's ids become one; the numbers are the original's."""

    SUM = 0
    MEAN = 1
    FIRSTN = 3


class OutType(IntEnum):
    """How the slices of a layout are put together; the numbers are the original's.

    Shapes, with batch B, slices n of dim d, and L the sequence length:

    ======  ===============  ==================
    type    pooled           first-n
    ======  ===============  ==================
    NONE    n times (B, d)   n times (B, L, d)
    CONCAT  (B, sum of d)    (B, L, sum of d)
    STACK   (B, n, d)        (B, n, L, d)
    ADDN    (B, d)           refused
    ======  ===============  ==================
    """

    CONCAT = 0
    STACK = 1
    ADDN = 2
    NONE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceConfig:
    """Columns [start, end) of a feature's row. ``resolve`` fills in all but the first three."""

    feature_name: str
    start: int
    end: int
    feature_idx: int = -1
    """The feature's rank among the sorted names."""
    slice_idx: int = -1
    """Which of the feature's slices begins at ``start``."""
    pooling_type: PoolingType = PoolingType.SUM
    max_sequence_length: int = 0

    @property
    def width(self) -> int:
        """Columns."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class OutConfig:
    """One layout. ``resolve`` fills in the shapes: one per slice for NONE, one otherwise; -1 is the batch."""

    slice_configs: Sequence[SliceConfig]
    out_type: OutType
    shape: Sequence[tuple[int, ...]] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureConfig:
    """One input feature: its table, the dims of its slices, and how its ids are pooled."""

    table: str
    slice_dims: Sequence[int]
    pooling_type: PoolingType = PoolingType.SUM
    max_sequence_length: int = 0
    """Ids kept per example: FIRSTN only."""

    @property
    def dim(self) -> int:
        """Floats of a row."""
        return sum(self.slice_dims)


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureConfigs:
    """All features and layouts of a model, by name."""

    feature_configs: Mapping[str, FeatureConfig]
    out_configs: Mapping[str, OutConfig] = field(default_factory=dict)

    @property
    def features(self) -> list[str]:
        """Feature names in order."""
        return sorted(self.feature_configs)

    @property
    def tables(self) -> list[str]:
        """Table names in order."""
        return sorted({feature.table for feature in self.feature_configs.values()})

    @property
    def layouts(self) -> list[str]:
        """Layout names in order."""
        return sorted(self.out_configs)

    def features_of(self, table: str) -> list[str]:
        """Return the names of a table's features in order."""
        return [name for name in self.features if self.feature_configs[name].table == table]


def resolve(configs: FeatureConfigs) -> FeatureConfigs:
    """Check the configuration and fill in the indices, pooling and shapes that follow from it.

    Raises:
        ConfigError: A slice that its feature does not have, or slices that do not go together.
    """
    for name, feature in configs.feature_configs.items():
        _check_feature(name, feature)
    ranks = {name: rank for rank, name in enumerate(configs.features)}
    outs = {name: _resolve_out(name, out, configs.feature_configs, ranks) for name, out in configs.out_configs.items()}
    return replace(configs, out_configs=outs)


def layout_parts(out_config: OutConfig, first_output: int = 0) -> tuple[list[Part], list[int]]:
    """Return the parts of one resolved layout and the floats per example of its outputs.

    Outputs count from ``first_output``; features are numbered by their rank.

    >>> a = SliceConfig(feature_name="a", start=1, end=3, feature_idx=0)
    >>> b = SliceConfig(feature_name="b", start=0, end=4, feature_idx=1)
    >>> layout_parts(OutConfig(slice_configs=[a, b], out_type=OutType.CONCAT))
    ([(0, 0, 1, 2, 0, 0), (0, 1, 0, 4, 2, 0)], [6])
    """
    slices = out_config.slice_configs
    widths = [piece.width for piece in slices]
    lengths = [_length(piece) for piece in slices]
    firsts = [piece.pooling_type == PoolingType.FIRSTN for piece in slices]
    match out_config.out_type:
        case OutType.NONE:
            places = [(number, 0, width) for number, width in enumerate(widths)]
            totals = [width * length for width, length in zip(widths, lengths, strict=True)]
        case OutType.CONCAT:
            begins = accumulate(widths[:-1], initial=0)
            places = [(0, begin, sum(widths)) for begin in begins]
            totals = [sum(widths) * lengths[0]]
        case OutType.STACK:
            places = [(0, rank * widths[0] * lengths[0], widths[0]) for rank in range(len(slices))]
            totals = [len(slices) * widths[0] * lengths[0]]
        case OutType.ADDN:
            places = [(0, 0, 0)] * len(slices)
            totals = [widths[0]]
    parts = [
        (first_output + output, piece.feature_idx, piece.start, piece.width, offset, stride if is_first else 0)
        for piece, (output, offset, stride), is_first in zip(slices, places, firsts, strict=True)
    ]
    return parts, totals


def native_layouts(configs: FeatureConfigs) -> _native.Layouts:
    """Return the kernel of a resolved configuration: tables, features and outputs in sorted-name order.

    The features of a table must have rows of one dim.
    """
    tables = configs.tables
    dims = [_table_dim(table, configs) for table in tables]
    pooling = {PoolingType.SUM: "sum", PoolingType.MEAN: "mean", PoolingType.FIRSTN: "first"}
    features = [
        (tables.index(feature.table), pooling[feature.pooling_type], feature.max_sequence_length)
        for feature in (configs.feature_configs[name] for name in configs.features)
    ]
    parts: list[Part] = []
    widths: list[int] = []
    for name in configs.layouts:
        more_parts, more_widths = layout_parts(configs.out_configs[name], len(widths))
        parts += more_parts
        widths += more_widths
    return _native.Layouts(dims, features, parts, widths)


def nest_layout(configs: FeatureConfigs, tensors: Sequence[_Tensor]) -> dict[str, _Tensor | list[_Tensor]]:
    """Return the outputs by layout name: a tensor, or a list of them for NONE."""
    counts = {name: _output_count(configs.out_configs[name]) for name in configs.layouts}
    if len(tensors) != sum(counts.values()):
        raise ConfigError(
            f"there are {len(tensors)} tensors; the layouts {configs.layouts} have {sum(counts.values())}"
        )
    nested: dict[str, _Tensor | list[_Tensor]] = {}
    left = list(tensors)
    for name, count in counts.items():
        own, left = left[:count], left[count:]
        nested[name] = own if configs.out_configs[name].out_type == OutType.NONE else own[0]
    return nested


def flatten_layout(configs: FeatureConfigs, nested: Mapping[str, _Tensor | Sequence[_Tensor]]) -> list[_Tensor]:
    """Return the tensors of all layouts in order: layouts by name, then the slices of NONE. Undoes ``nest_layout``."""
    if nested.keys() != configs.out_configs.keys():
        raise ConfigError(f"the layouts are {configs.layouts}; there are tensors of {sorted(nested)}")
    flat: list[_Tensor] = []
    for name in configs.layouts:
        tensors = nested[name]
        own = list(tensors) if configs.out_configs[name].out_type == OutType.NONE else [tensors]  # type: ignore[arg-type]
        if len(own) != _output_count(configs.out_configs[name]):
            raise ConfigError(
                f"layout {name!r} has {_output_count(configs.out_configs[name])} tensors; there are {len(own)}"
            )
        flat += own  # type: ignore[arg-type]
    return flat


def _check_feature(name: str, feature: FeatureConfig) -> None:
    if not feature.slice_dims or any(dim < 1 for dim in feature.slice_dims):
        raise ConfigError(f"feature {name!r} has slice_dims {list(feature.slice_dims)}; give dims of at least 1")
    is_first = feature.pooling_type == PoolingType.FIRSTN
    if is_first != (feature.max_sequence_length > 0):
        raise ConfigError(
            f"feature {name!r} has max_sequence_length {feature.max_sequence_length} with {feature.pooling_type.name}; "
            "it is positive for FIRSTN and 0 otherwise"
        )


def _resolve_out(
    name: str, out: OutConfig, features: Mapping[str, FeatureConfig], ranks: Mapping[str, int]
) -> OutConfig:
    if not out.slice_configs:
        raise ConfigError(f"layout {name!r} has no slices; give at least one")
    slices = tuple(_resolve_slice(name, piece, features, ranks) for piece in out.slice_configs)
    _check_together(name, out.out_type, slices)
    return replace(out, slice_configs=slices, shape=_shapes(out.out_type, slices))


def _resolve_slice(
    layout: str, piece: SliceConfig, features: Mapping[str, FeatureConfig], ranks: Mapping[str, int]
) -> SliceConfig:
    feature = features.get(piece.feature_name)
    if feature is None:
        raise ConfigError(f"layout {layout!r} uses feature {piece.feature_name!r}; the features are {sorted(features)}")
    begins = list(accumulate(feature.slice_dims[:-1], initial=0))
    if piece.start not in begins or not piece.start < piece.end <= feature.dim:
        raise ConfigError(
            f"layout {layout!r} uses columns {piece.start} to {piece.end} of feature {piece.feature_name!r}, "
            f"whose slices begin at {begins} and end at {feature.dim}"
        )
    return replace(
        piece,
        feature_idx=ranks[piece.feature_name],
        slice_idx=begins.index(piece.start),
        pooling_type=feature.pooling_type,
        max_sequence_length=feature.max_sequence_length,
    )


def _check_together(name: str, out_type: OutType, slices: Sequence[SliceConfig]) -> None:
    firsts = {(piece.pooling_type == PoolingType.FIRSTN, piece.max_sequence_length) for piece in slices}
    if out_type == OutType.NONE:
        return
    if out_type == OutType.ADDN and (True in {is_first for is_first, _ in firsts}):
        raise ConfigError(f"layout {name!r} adds up FIRSTN features; use CONCAT, STACK or NONE, or pool by SUM or MEAN")
    if len(firsts) > 1:
        raise ConfigError(
            f"layout {name!r} puts features with and without sequences, or of several lengths, into one tensor; "
            "use NONE, or one max_sequence_length for all"
        )
    widths = {piece.width for piece in slices}
    if out_type in (OutType.STACK, OutType.ADDN) and len(widths) > 1:
        raise ConfigError(f"layout {name!r} is {out_type.name} of slices of dims {sorted(widths)}; they must be equal")


def _shapes(out_type: OutType, slices: Sequence[SliceConfig]) -> tuple[tuple[int, ...], ...]:
    def inner(piece: SliceConfig, width: int) -> tuple[int, ...]:
        is_first = piece.pooling_type == PoolingType.FIRSTN
        return (piece.max_sequence_length, width) if is_first else (width,)

    match out_type:
        case OutType.NONE:
            return tuple((-1, *inner(piece, piece.width)) for piece in slices)
        case OutType.CONCAT:
            return ((-1, *inner(slices[0], sum(piece.width for piece in slices))),)
        case OutType.STACK:
            return ((-1, len(slices), *inner(slices[0], slices[0].width)),)
        case OutType.ADDN:
            return ((-1, slices[0].width),)


def _length(piece: SliceConfig) -> int:
    return piece.max_sequence_length if piece.pooling_type == PoolingType.FIRSTN else 1


def _output_count(out: OutConfig) -> int:
    return len(out.slice_configs) if out.out_type == OutType.NONE else 1


def _table_dim(table: str, configs: FeatureConfigs) -> int:
    dims = {configs.feature_configs[name].dim for name in configs.features_of(table)}
    if len(dims) > 1:
        raise ConfigError(f"table {table!r} holds features of dims {sorted(dims)}; give each dim a separate table")
    return dims.pop()

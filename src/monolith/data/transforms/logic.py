"""Transforms made of transforms: one after the other, and either of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import override

from monolith import _native
from monolith.core.errors import ConfigError
from monolith.data.transforms import _arguments as arguments
from monolith.data.transforms.base import BuildContext, RowTransform, Transform

__all__ = ["Compose", "LogicalOr"]


@dataclass(frozen=True)
class Compose(Transform):
    """Apply transforms one after the other; a row that one drops is not shown to the next. Empty: nothing changes."""

    transforms: Sequence[Transform]

    def __post_init__(self) -> None:
        arguments.set_field(self, "transforms", tuple(self.transforms))
        for transform in self.transforms:
            if not isinstance(transform, Transform):
                raise ConfigError(f"Compose has {transform!r}; give transforms")
        if self.is_per_batch:
            for transform in self.transforms:
                if not (transform.is_per_batch or _is_row_transform(transform)):
                    raise ConfigError(
                        f"Compose has {type(transform).__name__} beside a transform of whole batches; "
                        "put it into the dataset before batch()"
                    )

    @property
    def needs_all_features(self) -> bool:
        """True when any of the transforms needs them."""
        return any(transform.needs_all_features for transform in self.transforms)

    @property
    @override
    def made_features(self) -> tuple[str, ...]:
        return tuple(name for transform in self.transforms for name in transform.made_features)

    @property
    def is_per_batch(self) -> bool:
        """True when any of the transforms works on the rows of one batch."""
        return any(transform.is_per_batch for transform in self.transforms)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)

    def __len__(self) -> int:
        return len(self.transforms)

    @property
    def is_row_transform(self) -> bool:
        """Whether all of it looks at one row at a time, so that ``LogicalOr`` may contain it."""
        return all(_is_row_transform(transform) for transform in self.transforms)

    def build(self, context: BuildContext) -> _native.RowOp:
        """Make the native operation; neighbours that look at one row at a time share one pass."""
        ops: list[_native.RowOp] = []
        rules: list[_native.RowRule] = []
        for position, transform in enumerate(self.transforms):
            if _is_row_transform(transform):
                rules.append(_rule_of(transform, context.at(position)))
                continue
            if rules:
                ops.append(_native.rule_op(rules))
                rules = []
            ops.append(transform.build(context.at(position)))
        if rules or not ops:
            ops.append(_native.rule_op(rules))
        return ops[0] if len(ops) == 1 else _native.sequence_op(ops)

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule, when all of it looks at one row at a time.

        Raises:
            ConfigError: Some of the transforms make or repeat rows.
        """
        return _native.all_rule([_rule_of(part, context.at(i)) for i, part in enumerate(self.transforms)])


@dataclass(frozen=True)
class LogicalOr(RowTransform):
    """Keep rows that ``x`` or ``y`` keeps, once.

    Both always run, as in the original: an ``AddLabel`` inside changes the row even if the other side keeps it.
    """

    x: Transform
    y: Transform

    def __post_init__(self) -> None:
        for side in (self.x, self.y):
            if not _is_row_transform(side):
                raise ConfigError(
                    f"LogicalOr has {side!r}; its sides must look at one row at a time "
                    "(filters, labels, or Compose and LogicalOr of such)"
                )

    @property
    def needs_all_features(self) -> bool:
        """True when either side needs them."""
        return bool(self.x.needs_all_features or self.y.needs_all_features)

    @property
    @override
    def made_features(self) -> tuple[str, ...]:
        return (*self.x.made_features, *self.y.made_features)

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        return _native.any_rule([_rule_of(self.x, context.at(0)), _rule_of(self.y, context.at(1))])


def _is_row_transform(transform: object) -> bool:
    return transform.is_row_transform if isinstance(transform, Compose) else isinstance(transform, RowTransform)


def _rule_of(transform: Transform, context: BuildContext) -> _native.RowRule:
    if isinstance(transform, Compose | RowTransform):
        return transform.build_rule(context)
    raise ConfigError(f"{transform!r} does not look at one row at a time")

"""Generates negative rows: the user features of a positive row, with another item.

``NegativeGen`` draws items from a pool of recent items; ``InBatchNegatives`` from the other rows of the batch.
``item_pool`` contains the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monolith import _native
from monolith.core.errors import ConfigError
from monolith.data.transforms import _arguments as arguments
from monolith.data.transforms.base import BuildContext, Transform

__all__ = ["InBatchNegatives", "NegativeGen"]

_UNSET_ACTION = -99999  # the original's value for "keep the actions"


@dataclass(frozen=True, kw_only=True)
class NegativeGen(Transform):
    """Put up to ``neg_num`` generated negatives in front of every positive row, with items drawn out of a pool.

    Every row's item enters the pool first: keyed by LineId.item_id (or the first id of ``index_feature``), with its
    ``item_features``, in the queue of its channel. The first sighting counts, later ones are only counted; the oldest
    item leaves a channel that holds more than ``max_item_num``. Rows without an item stay out of the pool; rows without
    a channel (``per_channel``) stay out and get no negatives.

    A generated row has everything of its positive row except the item features, which are the drawn item's; LineId is
    copied with the drawn ``item_id``; the label at ``label_index`` is ``negative_label``, other labels are kept. Draws
    are uniform over the places of a channel; while a channel holds ``start_num`` items or fewer it gives none. The
    first draw that fails ends the row's negatives.

    Weights are set, not multiplied, as in the original: positives 1, real negatives ``real_neg_instance_weight``,
    generated ones ``sampled_neg_instance_weight`` when it is above 1e-5, else, with ``unbias_sampled_neg``,
    ``1 + neg_num * time_factor ** neg_sample_decay_factor / times_sampled``, where ``time_factor`` is
    (place + 1) / size, 1 for the newest item, and ``times_sampled`` includes this draw; else 1.
    """

    neg_num: int
    per_channel: bool = False
    """Tell items apart by channel: the first id of ``channel_feature``."""
    channel_feature: str | int = ""
    """A feature, or a slot among an Instance's flat ids."""
    item_features: Sequence[str | int] = ()
    """Features, or slots among an Instance's flat ids, that belong to the item."""
    start_num: int = 500
    max_item_num: int = 100_000
    """Items per channel."""
    positive_label: float = 1.0
    """A row is positive when its label at ``label_index`` equals this, unless ``positive_actions`` is set."""
    negative_label: float = -1.0
    negative_action: int | None = None
    """Actions of generated rows; None keeps those of the positive row."""
    positive_actions: arguments.Ints = ()
    """A row is positive when its best action is one of these; without ``action_priority``, when any is."""
    label_index: int = 0
    action_priority: arguments.Ints = ()
    """Best first."""
    index_feature: str | int = ""
    """Whose first id names the item; "": LineId.item_id."""
    throw_origin: bool = False
    """Emit generated rows only."""
    throw_origin_neg: bool = False
    """Drop real negatives."""
    cache_only_pos: bool = False
    """Let only positive rows, and those with one of ``cache_negative_actions``, into the pool."""
    cache_negative_actions: arguments.Ints = ()
    real_neg_instance_weight: float = 1.0
    sampled_neg_instance_weight: float = -1.0
    unbias_sampled_neg: bool = True
    origin_neg_in_pool_proba: float = 1.0
    """The probability that a real negative enters the pool."""
    neg_sample_decay_factor: float = 1.0
    easy_hard_ratio: float = 0.0
    """With ``per_channel``: the share of draws from a channel chosen in proportion to its size, when there are two."""
    exclude_own_item: bool = True
    """Never draw the positive row's own item; the original may."""

    def __post_init__(self) -> None:
        arguments.whole(self, "neg_num", at_least=0)
        arguments.whole(self, "start_num", at_least=0)
        arguments.whole(self, "max_item_num", at_least=1)
        for name in _FLAGS:
            arguments.flag(self, name)
        for name in ("real_neg_instance_weight", "sampled_neg_instance_weight"):
            arguments.number(self, name)
        arguments.number(self, "neg_sample_decay_factor", at_least=0.0)
        arguments.rate(self, "origin_neg_in_pool_proba")
        arguments.rate(self, "easy_hard_ratio")
        arguments.wholes(self, "cache_negative_actions")
        _check_rows(self)
        if self.start_num >= self.max_item_num:
            raise ConfigError(
                f"NegativeGen.start_num is {self.start_num} and max_item_num {self.max_item_num}; no channel would "
                "ever give a negative, make start_num smaller"
            )
        if self.per_channel and self.channel_feature == "":
            raise ConfigError("NegativeGen.per_channel needs channel_feature; name the feature that holds the channel")
        if self.easy_hard_ratio and not self.per_channel:
            raise ConfigError("NegativeGen.easy_hard_ratio needs per_channel=True")

    def build(self, context: BuildContext) -> _native.RowOp:
        """Make the native operation."""
        return _native.negative_gen(
            rows=_native_rows(self, context),
            neg_num=self.neg_num,
            channel_feature=_feature(context, self.channel_feature) if self.per_channel else None,
            start_num=self.start_num,
            max_item_num=self.max_item_num,
            throw_origin=self.throw_origin,
            throw_origin_neg=self.throw_origin_neg,
            cache_only_pos=self.cache_only_pos,
            cache_negative_actions=arguments.ints(self.cache_negative_actions),
            real_neg_instance_weight=self.real_neg_instance_weight,
            sampled_neg_instance_weight=self.sampled_neg_instance_weight,
            unbias_sampled_neg=self.unbias_sampled_neg,
            origin_neg_in_pool_proba=self.origin_neg_in_pool_proba,
            neg_sample_decay_factor=self.neg_sample_decay_factor,
            easy_hard_ratio=self.easy_hard_ratio,
            seed=context.seed,
        )


@dataclass(frozen=True, kw_only=True)
class InBatchNegatives(Transform):
    """Put ``num`` negatives behind every positive row of a batch, with the items of other rows of the same batch.

    Lenders are drawn uniformly, with replacement, among the rows whose item differs (LineId.item_id, or the first id of
    ``index_feature``; rows without an item differ from all). A negative row is made as in ``NegativeGen``; its weight
    is ``weight``. The rows that were there keep their weights. When eight draws in a row hit the own item, the row gets
    no more negatives.

    Use it after ``batch``, so that the draws do not depend on the chunks of the input. Batches grow by the negatives.
    """

    num: int
    item_features: Sequence[str | int]
    """Features, or slots among an Instance's flat ids, that belong to the item."""
    positive_label: float = 1.0
    negative_label: float = 0.0
    negative_action: int | None = None
    positive_actions: arguments.Ints = ()
    label_index: int = 0
    action_priority: arguments.Ints = ()
    index_feature: str | int = ""
    weight: float = 1.0
    exclude_own_item: bool = True

    def __post_init__(self) -> None:
        arguments.whole(self, "num", at_least=1)
        arguments.number(self, "weight", at_least=0.0)
        arguments.flag(self, "exclude_own_item")
        _check_rows(self)

    @property
    def is_per_batch(self) -> bool:
        """Always."""
        return True

    def build(self, context: BuildContext) -> _native.RowOp:
        """Make the native operation."""
        return _native.in_batch_negatives(_native_rows(self, context), self.num, self.weight, context.seed)


_FLAGS = (
    "per_channel",
    "throw_origin",
    "throw_origin_neg",
    "cache_only_pos",
    "unbias_sampled_neg",
    "exclude_own_item",
)


def _check_rows(owner: NegativeGen | InBatchNegatives) -> None:
    name = type(owner).__name__
    arguments.number(owner, "positive_label")
    arguments.number(owner, "negative_label")
    arguments.whole(owner, "label_index", at_least=0)
    arguments.wholes(owner, "positive_actions")
    arguments.wholes(owner, "action_priority")
    if owner.negative_action is not None:
        arguments.whole(owner, "negative_action")
    features = tuple(owner.item_features) if not isinstance(owner.item_features, str) else (owner.item_features,)
    arguments.set_field(owner, "item_features", features)
    if not features:
        raise ConfigError(f"{name}.item_features is empty; name the features that belong to the item")
    for feature in features:
        if not arguments.is_whole(feature) and not arguments.is_name(feature):
            raise ConfigError(f"{name}.item_features has {feature!r}; give names, or slots of an Instance")
    if len(set(features)) != len(features):
        raise ConfigError(f"{name}.item_features has a feature twice: {list(features)}")


def _feature(context: BuildContext, feature: str | int) -> tuple[str, int, int]:
    return context.feature(f"slot_{feature}" if isinstance(feature, int) else feature)


def _native_rows(owner: NegativeGen | InBatchNegatives, context: BuildContext) -> _native.NegativeRows:
    action = owner.negative_action
    return _native.NegativeRows(
        item_features=[_feature(context, feature) for feature in owner.item_features],
        index_feature=_feature(context, owner.index_feature) if owner.index_feature != "" else None,
        positive_actions=arguments.ints(owner.positive_actions),
        action_priority=arguments.ints(owner.action_priority),
        label_index=owner.label_index,
        positive_label=owner.positive_label,
        negative_label=owner.negative_label,
        negative_action=None if action == _UNSET_ACTION else action,
        exclude_own_item=owner.exclude_own_item,
    )

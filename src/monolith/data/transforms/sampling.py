"""Drops rows at random, or repeats them by weight.

Every choice is a pure function of the transform's seed and the row's own key: reading the same data again chooses the
same rows, from wherever it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from monolith import _native
from monolith.core.errors import ConfigError
from monolith.data.transforms import _arguments as arguments
from monolith.data.transforms.base import BuildContext, RowTransform, Transform

__all__ = ["ActionWeight", "InstanceReweight", "NegativeSample", "SpecialStrategy"]

_MOST_WEIGHT = 10_000


@dataclass(frozen=True, kw_only=True)
class SpecialStrategy(RowTransform):
    """Keep rows by LineId.special_strategies: the first of ``strategy_list`` that the row has decides.

    Rows whose strategies are all unlisted are dropped.
    """

    strategy_list: arguments.Ints
    strategy_conf: str = ""
    """``strategy:rate[:label],...``: keep with this probability and, when a label is given, make it the first label. A
    listed strategy without a rate keeps the row."""
    keep_empty_strategy: bool = True
    """Whether rows without any strategy stay."""

    def __post_init__(self) -> None:
        listed = arguments.wholes(self, "strategy_list", is_needed=True)
        arguments.text(self, "strategy_conf", may_be_empty=True)
        arguments.flag(self, "keep_empty_strategy")
        for strategy in self._rates():
            if strategy not in listed:
                raise ConfigError(f"SpecialStrategy.strategy_conf names {strategy}, which strategy_list does not have")

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        rates = self._rates()
        strategies = [(strategy, *rates.get(strategy, (1.0, None))) for strategy in arguments.ints(self.strategy_list)]
        return _native.special_strategy(strategies, self.keep_empty_strategy, context.seed)

    def _rates(self) -> dict[int, tuple[float, float | None]]:
        where = "SpecialStrategy.strategy_conf"
        rates: dict[int, tuple[float, float | None]] = {}
        for strategy, rate, *label in arguments.split_pairs(where, self.strategy_conf, range(2, 4)):
            value = arguments.number_of(where, rate)
            if not 0 <= value <= 1:
                raise ConfigError(f"{where} has the rate {value}; rates are 0 to 1")
            rates[arguments.whole_of(where, strategy)] = (
                value,
                arguments.number_of(where, label[0]) if label else None,
            )
        return rates


@dataclass(frozen=True, kw_only=True)
class NegativeSample(RowTransform):
    """Drop rows at random whose label is below a threshold. Rows without the label stay.

    The rate is that of the row's best action if that action has one, else ``drop_rate``. Rates are exact
    probabilities (the original rounds to 1/1000), and any action may have one.

    LineId.sample_rate stays as it is by default, as in the original. The correction
    ``logit - ln(sample_rate)`` holds when every row, positive or negative, carries the share of negatives that was
    kept: ``correct_sample_rate=True`` multiplies the rate of every row that stays by ``1 - drop_rate``. With rates per
    action that share is not known, so the two exclude each other.
    """

    drop_rate: float
    label_index: int = 0
    threshold: float = 0.0
    action_priority: arguments.Ints = ()
    """Best first. Needed if actions have separate rates."""
    per_action_drop_rate: str | Mapping[int, float] = field(default_factory=dict)
    """Action -> rate, or the text ``action:rate,...``."""
    correct_sample_rate: bool = False

    def __post_init__(self) -> None:
        arguments.rate(self, "drop_rate")
        arguments.whole(self, "label_index", at_least=0)
        arguments.number(self, "threshold")
        arguments.wholes(self, "action_priority")
        arguments.flag(self, "correct_sample_rate")
        rates = _rates_of("NegativeSample.per_action_drop_rate", self.per_action_drop_rate)
        arguments.set_field(self, "per_action_drop_rate", rates)
        if rates and not self.action_priority:
            raise ConfigError("NegativeSample.per_action_drop_rate needs action_priority; list the actions, best first")
        if self.correct_sample_rate and (rates or self.drop_rate == 1):
            raise ConfigError(
                "NegativeSample.correct_sample_rate needs one drop_rate below 1 for all negatives; "
                "drop per_action_drop_rate or set the sample rate yourself"
            )

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        rates = cast("dict[int, float]", self.per_action_drop_rate)
        return _native.negative_sample(
            drop_rate=self.drop_rate,
            label_index=self.label_index,
            threshold=self.threshold,
            action_priority=arguments.ints(self.action_priority),
            actions=list(rates),
            rates=list(rates.values()),
            correct_sample_rate=self.correct_sample_rate,
            seed=context.seed,
        )


@dataclass(frozen=True, kw_only=True)
class ActionWeight:
    """How many copies an action asks for, and the label that goes with it."""

    action: int
    weight: int
    label: float | None = None

    def __post_init__(self) -> None:
        arguments.whole(self, "action")
        if arguments.whole(self, "weight", at_least=0) > _MOST_WEIGHT:
            raise ConfigError(f"ActionWeight.weight is {self.weight}; give at most {_MOST_WEIGHT}")
        if self.label is not None:
            arguments.number(self, "label")


@dataclass(frozen=True, kw_only=True)
class InstanceReweight(Transform):
    """Repeat, drop and relabel rows by their actions, and undo rows emitted earlier for the same impression.

    Of a set of actions A: ``rank(A)`` is the place of the best listed one (from 1), 1000 when none is listed, 2000 when
    A is empty; ``copies(A)`` combines the weights of the best listed action and of all unlisted ones (1 when none has a
    weight, 0 when A is empty); ``label(A)`` is the best listed action's label. With P = pre_actions (emitted
    before) and C = actions:

    * both empty: one copy, unchanged;
    * rank(P) > rank(C): the first label becomes label(C), if there is one. Copies: copies(C) when label(P) is missing;
      copies(P) + copies(C) when the labels differ; when they are equal the difference of the two, and the label changes
      its sign when copies(P) is the larger;
    * otherwise, and for rows without labels: no copy.

    The first copy is the row itself; copies follow it directly and have their own keys.
    """

    action_priority: arguments.Ints
    """Best first."""
    reweight: str | Sequence[ActionWeight]
    """Weights, or the text ``action:weight:label,...``; the label may be empty, and ``others`` stands for every action
    of ``action_priority`` without an entry."""
    method: Literal["multiply", "add"] = "multiply"
    """How the weights of several actions combine."""

    def __post_init__(self) -> None:
        arguments.wholes(self, "action_priority", is_needed=True)
        weights = self._parsed(self.reweight) if isinstance(self.reweight, str) else tuple(self.reweight)
        if not weights or not all(isinstance(weight, ActionWeight) for weight in weights):
            raise ConfigError(f"InstanceReweight.reweight is {self.reweight!r}; give at least one action:weight:label")
        actions = [weight.action for weight in weights]
        if len(set(actions)) != len(actions):
            raise ConfigError(f"InstanceReweight.reweight has an action twice: {actions}")
        arguments.set_field(self, "reweight", weights)
        if self.method not in ("multiply", "add"):
            raise ConfigError(f"InstanceReweight.method is {self.method!r}; use multiply or add")

    def build(self, context: BuildContext) -> _native.RowOp:
        """Make the native operation."""
        weights = [
            (weight.action, weight.weight, weight.label) for weight in self.reweight if isinstance(weight, ActionWeight)
        ]
        return _native.reweight(arguments.ints(self.action_priority), weights, self.method == "add", context.seed)

    def _parsed(self, text: str) -> tuple[ActionWeight, ...]:
        where = "InstanceReweight.reweight"
        weights: dict[int, ActionWeight] = {}
        others: tuple[int, float | None] | None = None
        for action, weight, *rest in arguments.split_pairs(where, text, range(2, 4)):
            label = arguments.number_of(where, rest[0]) if rest and rest[0] else None
            count = arguments.whole_of(where, weight)
            if action == "others":
                others = count, label
                continue
            number = arguments.whole_of(where, action)
            if number in weights:
                raise ConfigError(f"{where} has the action {number} twice")
            weights[number] = ActionWeight(action=number, weight=count, label=label)
        if others is not None:
            for number in arguments.ints(self.action_priority):
                weights.setdefault(number, ActionWeight(action=number, weight=others[0], label=others[1]))
        return tuple(weights.values())


def _rates_of(where: str, value: str | Mapping[int, float]) -> dict[int, float]:
    if isinstance(value, str):
        pairs = arguments.split_pairs(where, value, range(2, 3))
        rates = {arguments.whole_of(where, action): arguments.number_of(where, rate) for action, rate in pairs}
    else:
        rates = dict(value)
    for action, rate in rates.items():
        if not arguments.is_whole(action):
            raise ConfigError(f"{where} has the action {action!r}; give whole numbers")
        if not 0 <= rate <= 1:
            raise ConfigError(f"{where} has the rate {rate!r} of action {action}; rates are 0 to 1")
    return rates

"""Labels: made of actions or fields, bounded, normalised, or moved to the head they belong to. All rows stay.

A missing label is the lowest float32, as in the original; batches show it through their label mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from monolith import _native
from monolith.core.errors import ConfigError
from monolith.data.transforms import _arguments as arguments
from monolith.data.transforms.base import BuildContext, RowTransform

__all__ = [
    "INVALID_LABEL",
    "AddLabel",
    "FillMultiRankOutput",
    "LabelNormalization",
    "LabelUpperBound",
    "MultiLabelGen",
    "Normalization",
    "ScatterLabel",
    "TaskLabel",
    "UseFieldAsLabel",
]

INVALID_LABEL = -3.4028234663852886e38
"""The value of a missing label: the lowest float32."""

Normalization: TypeAlias = Literal["log", "scale", "scale2int", "pow", "repow", "scalelog"]


@dataclass(frozen=True, kw_only=True)
class TaskLabel:
    """How one task's label follows from the row's actions.

    A positive action gives 1. Without one the label is missing when ``neg_actions`` are listed and the row has none of
    them; otherwise it is the negative value with probability ``sample_rate``, else missing.
    """

    pos_actions: arguments.Ints
    neg_actions: arguments.Ints = ()
    sample_rate: float = 1.0

    def __post_init__(self) -> None:
        positive = arguments.wholes(self, "pos_actions", is_needed=True)
        negative = arguments.wholes(self, "neg_actions")
        arguments.rate(self, "sample_rate")
        if both := sorted(set(positive) & set(negative)):
            raise ConfigError(f"actions {both} are both positive and negative; put each on one side")

    @staticmethod
    def parse(config: str) -> tuple[TaskLabel, ...]:
        """Read ``pos,pos:neg,neg:rate;...``; neg and rate may be empty.

        >>> [task.sample_rate for task in TaskLabel.parse("1,2:3:1.0;4::0.5;")]
        [1.0, 0.5]
        """
        tasks = []
        for part in config.split(";"):
            if not part.strip():
                continue
            pieces = part.split(":")
            if len(pieces) not in (2, 3):
                raise ConfigError(f"label config {part!r} has {len(pieces)} parts; write pos,pos:neg,neg:rate")
            rate = pieces[2] if len(pieces) == 3 and pieces[2].strip() else "1"
            tasks.append(
                TaskLabel(
                    pos_actions=pieces[0],
                    neg_actions=pieces[1],
                    sample_rate=arguments.number_of(f"label config {part!r}", rate),
                )
            )
        return tuple(tasks)


@dataclass(frozen=True, kw_only=True)
class AddLabel(RowTransform):
    """Append one label per task, made of LineId.actions, and set LineId.sample_rate.

    Before that, an existing first label of 0 or less becomes missing. Follow it with ``FilterByLabel``, or rows whose
    labels are all missing reach the loss.
    """

    config: str | Sequence[TaskLabel]
    """Tasks, or their text ``pos,pos:neg,neg:rate;...``."""
    negative_value: float = 0.0
    new_sample_rate: float = 1.0
    """The new LineId.sample_rate; above 0, at most 1."""

    def __post_init__(self) -> None:
        tasks = TaskLabel.parse(self.config) if isinstance(self.config, str) else tuple(self.config)
        if not tasks or not all(isinstance(task, TaskLabel) for task in tasks):
            raise ConfigError(f"AddLabel.config is {self.config!r}; give at least one task")
        arguments.set_field(self, "config", tasks)
        arguments.number(self, "negative_value")
        if arguments.rate(self, "new_sample_rate") == 0:
            raise ConfigError("AddLabel.new_sample_rate is 0; give a number above 0, at most 1")

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        tasks = [
            (arguments.ints(task.pos_actions), arguments.ints(task.neg_actions), task.sample_rate)
            for task in self.config
            if isinstance(task, TaskLabel)
        ]
        return _native.add_label(tasks, self.negative_value, self.new_sample_rate, context.seed)


@dataclass(frozen=True, kw_only=True)
class ScatterLabel(RowTransform):
    """Move the first label to the place of the row's chnid; every other place is missing.

    A row whose chnid has no place gets missing labels only.
    """

    config: str | Mapping[int, int]
    """chnid -> place, or the text ``chnid:place,...``. There are as many labels as the largest place + 1."""

    def __post_init__(self) -> None:
        _set_places(self, "config", int)

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        places = cast("dict[int, int]", self.config)
        return _native.scatter_label(list(places), list(places.values()))


@dataclass(frozen=True, kw_only=True)
class MultiLabelGen(RowTransform):
    """Make one label per head; the head that the row belongs to gets the value, all others are missing.

    The value is ``pos_label`` when the row's best action is in ``pos_actions``, ``neg_label`` when it is in
    ``neg_actions`` or these are empty, else missing. The best action is the one that comes first in
    ``action_priority``; when that is empty or lists none of them, any action in ``pos_actions`` makes the row positive.
    """

    head_to_index: str | Mapping[str, int] | Mapping[int, int]
    """Value of the head field -> place of the label, or the text ``head:place,...``."""
    head_field: str = "chnid"
    """Any LineId field that holds one integer or one text."""
    pos_actions: arguments.Ints = ()
    neg_actions: arguments.Ints = ()
    use_origin_label: bool = False
    """Take the row's first label as the value, not the actions."""
    pos_label: float = 1.0
    neg_label: float = 0.0
    action_priority: arguments.Ints = ()
    """Best first."""
    task_num: int = 0
    """How many labels; 0: the largest place + 1."""

    def __post_init__(self) -> None:
        _set_places(self, "head_to_index", None)
        arguments.text(self, "head_field")
        for name in ("pos_actions", "neg_actions", "action_priority"):
            arguments.wholes(self, name)
        arguments.flag(self, "use_origin_label")
        if self.use_origin_label == bool(self.pos_actions):
            raise ConfigError("MultiLabelGen takes either pos_actions or use_origin_label=True; give one")
        arguments.number(self, "pos_label")
        arguments.number(self, "neg_label")
        arguments.whole(self, "task_num", at_least=0)

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        field = context.line_field(self.head_field)
        places = cast("dict[int | str, int]", self.head_to_index)
        heads, is_text = list(places), field[2] == "text"
        where = f"MultiLabelGen.head_to_index of the field {self.head_field!r}"
        ints = [] if is_text else [arguments.whole_of(where, str(head)) for head in heads]
        return _native.multi_label(
            head_field=field,
            int_heads=ints,
            text_heads=[str(head) for head in heads] if is_text else [],
            places=list(places.values()),
            task_num=self.task_num or max(places.values()) + 1,
            use_origin_label=self.use_origin_label,
            pos_actions=arguments.ints(self.pos_actions),
            neg_actions=arguments.ints(self.neg_actions),
            action_priority=arguments.ints(self.action_priority),
            pos_label=self.pos_label,
            neg_label=self.neg_label,
        )


@dataclass(frozen=True, kw_only=True)
class LabelUpperBound(RowTransform):
    """Cut label i off at ``bounds[i]``; a row with fewer labels than bounds is left alone."""

    bounds: Sequence[float]

    def __post_init__(self) -> None:
        arguments.numbers(self, "bounds", is_needed=True)

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        return _native.label_upper_bound(self.bounds)


@dataclass(frozen=True, kw_only=True)
class LabelNormalization(RowTransform):
    """Apply functions, one after the other, to every label y that is not missing; v is the function's value.

    log: ln(max(y + v, 0)); scale: y / v; scale2int: trunc(y / v); pow: (y + 1)^v; repow: y^v, 0 when y <= 0;
    scalelog: ln(max(y / v + 1, 0)).
    """

    methods: Sequence[Normalization]
    values: Sequence[float]
    """One per method."""

    def __post_init__(self) -> None:
        known = get_args(Normalization)
        arguments.set_field(self, "methods", tuple(self.methods))
        for method in self.methods:
            if method not in known:
                raise ConfigError(f"LabelNormalization.methods has {method!r}; use some of: {', '.join(known)}")
        arguments.numbers(self, "values")
        if not self.methods or len(self.methods) != len(self.values):
            raise ConfigError(
                f"LabelNormalization has {len(self.methods)} methods and {len(self.values)} values; give one value each"
            )
        for method, value in zip(self.methods, self.values, strict=True):
            if method.startswith("scale") and value == 0:
                raise ConfigError(f"LabelNormalization divides by 0 in {method!r}; give another value")

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        return _native.label_normalization(list(self.methods), self.values)


@dataclass(frozen=True, kw_only=True)
class UseFieldAsLabel(RowTransform):
    """Raise every label to the value of a LineId field; a missing label becomes it.

    A row without the field is left alone, unless the field has a default that is not 0.
    """

    field_name: str
    overwrite_invalid_value: bool = False
    """Whether a field value of at least ``label_threshold`` counts as 0."""
    label_threshold: float = 7200.0

    def __post_init__(self) -> None:
        arguments.text(self, "field_name")
        arguments.flag(self, "overwrite_invalid_value")
        arguments.number(self, "label_threshold")

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        field = context.line_field(self.field_name)
        return _native.use_field_as_label(field, self.overwrite_invalid_value, self.label_threshold)


@dataclass(frozen=True, kw_only=True)
class FillMultiRankOutput(RowTransform):
    """Append one label for the position where the row was shown; the first enabled source counts."""

    enable_draw_as_rank: bool = False
    """LineId.is_draw: 1 or 0."""
    enable_chnid_as_rank: bool = False
    """LineId.chnid when it is 0 or 1, else 2."""
    enable_lineid_rank_as_rank: bool = False
    """LineId.rank, at most ``rank_num`` - 1."""
    rank_num: int = 18

    def __post_init__(self) -> None:
        for name in ("enable_draw_as_rank", "enable_chnid_as_rank", "enable_lineid_rank_as_rank"):
            arguments.flag(self, name)
        arguments.whole(self, "rank_num", at_least=1)
        if not (self.enable_draw_as_rank or self.enable_chnid_as_rank or self.enable_lineid_rank_as_rank):
            raise ConfigError("FillMultiRankOutput has no source; enable draw, chnid or lineid_rank")

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        source = "draw" if self.enable_draw_as_rank else "chnid" if self.enable_chnid_as_rank else "rank"
        return _native.fill_rank(source, self.rank_num)


def _set_places(owner: object, field: str, key: type[int] | None) -> None:
    """Return the dict of ``head:place`` pairs; with int keys if ``key`` is int."""
    value = getattr(owner, field)
    where = f"{type(owner).__name__}.{field}"
    places: dict[int | str, int] = {}
    if isinstance(value, str):
        pairs = [
            (head, arguments.whole_of(where, place)) for head, place in arguments.split_pairs(where, value, range(2, 3))
        ]
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        raise ConfigError(f"{where} is {value!r}; give a mapping or the text head:place,...")
    for head, place in pairs:
        if not arguments.is_whole(place) or not 0 <= place < 1024:
            raise ConfigError(f"{where} has the place {place!r}; places are 0 to 1023")
        name = arguments.whole_of(where, str(head)) if key is int else head
        if name in places:
            raise ConfigError(f"{where} has {name!r} twice")
        places[name] = place
    if not places:
        raise ConfigError(f"{where} is empty; give at least one head:place")
    arguments.set_field(owner, field, places)

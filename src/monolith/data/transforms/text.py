"""The transform DSL: ``TransformConfig`` text protos, read as they are.

Which transforms exist is known to their own modules; this one only translates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.transforms.base import RowTransform
from monolith.data.transforms.filters import FilterByAction, FilterByFids, FilterByLabel
from monolith.data.transforms.labels import AddLabel, TaskLabel
from monolith.data.transforms.logic import Compose, LogicalOr
from monolith.data.transforms.values import FilterByValue

if TYPE_CHECKING:
    from monolith._proto import transform_config_pb2 as protos

__all__ = ["parse_transform_config"]


def parse_transform_config(text: str) -> Compose:
    """Return the transforms of a ``TransformConfig`` in protobuf text format, in order. Empty text: none.

    Raises:
        ConfigError: The text is not a TransformConfig, or a transform refuses its settings.

    >>> config = parse_transform_config('configs { basic_config { filter_by_action { has_actions: 2 } } }')
    >>> config.transforms
    (FilterByAction(has_actions=(2,)),)
    """
    # Imported here: protobuf is needed by this function only.
    from monolith._proto.messages import missing_fields, parse_text
    from monolith.data.records.messages import TransformConfig

    config = TransformConfig()
    try:
        parse_text(text, config, "transform config")
    except RecordCorrupt as exc:
        raise ConfigError(str(exc)) from exc
    if missing := missing_fields(config):
        raise ConfigError(f"transform config lacks the required fields {', '.join(missing)}")
    transforms: list[RowTransform] = []
    for number, one in enumerate(config.configs):
        where = f"transform config: configs[{number}]"
        match one.WhichOneof("type"):
            case "basic_config":
                transforms.append(_basic(one.basic_config, where))
            case "logical_or_config":
                either = one.logical_or_config
                transforms.append(LogicalOr(_basic(either.x, f"{where}.x"), _basic(either.y, f"{where}.y")))
            case _:
                raise ConfigError(f"{where} is empty; give basic_config or logical_or_config")
    return Compose(transforms)


def _basic(config: protos.BasicTransformConfig, where: str) -> RowTransform:
    match config.WhichOneof("type"):
        case "filter_by_fid":
            by_fid = config.filter_by_fid
            return FilterByFids(
                has_fids=tuple(by_fid.has_fids),
                filter_fids=tuple(by_fid.filter_fids),
                select_fids=tuple(by_fid.select_fids),
            )
        case "filter_by_action":
            return FilterByAction(has_actions=tuple(config.filter_by_action.has_actions))
        case "filter_by_label":
            return FilterByLabel(thresholds=tuple(config.filter_by_label.thresholds))
        case "add_label":
            return _add_label(config.add_label)
        case "filter_by_value":
            return _filter_by_value(config.filter_by_value, where)
        case _:
            raise ConfigError(
                f"{where} is empty; give one of filter_by_fid, filter_by_action, filter_by_label, add_label, "
                "filter_by_value"
            )


def _add_label(config: protos.AddLabelConfig) -> AddLabel:
    tasks = [
        TaskLabel(
            pos_actions=tuple(task.pos_actions), neg_actions=tuple(task.neg_actions), sample_rate=task.sample_rate
        )
        for task in config.task_label_configs
    ]
    return AddLabel(config=tasks, negative_value=config.negative_value, new_sample_rate=config.new_sample_rate)


def _filter_by_value(config: protos.FilterByValueConfig, where: str) -> FilterByValue:
    given: list[tuple[int, ...] | tuple[float, ...] | tuple[str, ...]] = [
        operand
        for operand in (tuple(config.float_operand), tuple(config.int_operand), tuple(config.string_operand))
        if operand
    ]
    if len(given) > 1:
        raise ConfigError(f"{where}.filter_by_value has operands of two kinds; give float, int or string operands")
    return FilterByValue(
        field_name=config.field_name,
        op=config.op,  # type: ignore[arg-type]  # checked by the transform
        operand=given[0] if given else None,
        keep_empty=config.keep_empty,
        operand_filepath=config.operand_filepath or None,
    )

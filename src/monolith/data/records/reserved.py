"""The reserved features of rows and batches: label, LineId and weight as columns.

A batch stores them as columns only. A row has separate fields for them, and may contain them as features too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from monolith.core.errors import SchemaMismatch
from monolith.data.records.messages import LABEL, LINE_ID, WEIGHT, family_of, parse_message

if TYPE_CHECKING:
    from monolith.data.records.messages import Example, ExampleBatch, Feature, Messages

__all__ = ["add_reserved_columns", "lift_reserved", "make_feature", "take_reserved"]


def make_feature(messages: Messages, arm: str, values: Iterable[Any]) -> Feature:
    """Return a feature with ``values`` in one of its lists."""
    feature = messages.Feature()
    getattr(feature, arm).value.extend(values)
    return feature


def lift_reserved(example: Example) -> Example:
    """Return a copy whose reserved features have become label, LineId and weight."""
    row = type(example)()
    row.CopyFrom(example)
    if any(named.name in (LABEL, LINE_ID, WEIGHT) for named in row.named_feature):
        del row.named_feature[:]
        for named in example.named_feature:
            if not take_reserved(row, named.name, named.feature, "the example"):
                row.named_feature.append(named)
    return row


def take_reserved(row: Example, name: str, feature: Feature, place: str) -> bool:
    """Put a reserved feature where it belongs in ``row``; False when the name is not reserved.

    Labels are added to those that the row has, a LineId is merged into its own.

    Raises:
        SchemaMismatch: It holds another kind of value.
        RecordCorrupt: The LineId cannot be decoded.
    """
    if name not in (LABEL, LINE_ID, WEIGHT):
        return False
    arm = feature.WhichOneof("type")
    if arm is None:
        return True
    if name == LINE_ID:
        if arm not in ("bytes_list", "bytes_value"):
            raise SchemaMismatch(f"{place}: {name} holds a {arm}; it must be a bytes_list with one LineId")
        for payload in feature.bytes_list.value[:1] if arm == "bytes_list" else [feature.bytes_value]:
            row.line_id.MergeFrom(parse_message(family_of(row).LineId, payload, f"{place}: {name}"))
        return True
    if arm not in ("float_list", "double_list", "float_value", "double_value"):
        raise SchemaMismatch(f"{place}: {name} holds a {arm}; it must be a float_list")
    held: Any = getattr(feature, arm)
    values = list(held.value) if arm.endswith("_list") else [held]
    if name == LABEL:
        row.label.extend(values)
    elif values:
        row.instance_weight = values[0]
    return True


def add_reserved_columns(messages: Messages, batch: ExampleBatch, rows: list[Example]) -> None:
    """Add to ``batch`` the reserved columns that any of its rows has something for."""
    reserved: list[tuple[str, Callable[[Example], Feature]]] = []
    if any(row.label for row in rows):
        reserved.append((LABEL, lambda row: make_feature(messages, "float_list", row.label)))
    if any(row.HasField("line_id") for row in rows):
        reserved.append(
            (
                LINE_ID,
                lambda row: (
                    make_feature(messages, "bytes_list", [row.line_id.SerializeToString()])
                    if row.HasField("line_id")
                    else messages.Feature()
                ),
            )
        )
    if any(row.instance_weight for row in rows):
        reserved.append((WEIGHT, lambda row: make_feature(messages, "float_list", filter(None, [row.instance_weight]))))
    for name, make in reserved:
        batch.named_feature_list.add(name=name).feature.extend(make(row) for row in rows)

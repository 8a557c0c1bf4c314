"""Converts records between kinds: batches to rows, rows to batches, Instance to Example and back.

For tools only: training reads every kind with the native parser. A conversion returns messages of the same family, and
LineIds keep undeclared fields. Values that the target kind cannot contain are refused, never dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from monolith.core import fid
from monolith.core.errors import ConfigError, RecordCorrupt, SchemaMismatch
from monolith.data.records.messages import SHARED, family_of
from monolith.data.records.reserved import add_reserved_columns, lift_reserved, make_feature, take_reserved

if TYPE_CHECKING:
    from monolith.data.records.messages import (
        Example,
        ExampleBatch,
        ExampleBatchRowMajor,
        Feature,
        Instance,
        InstanceFeature,
        Messages,
        NamedFeature,
        NamedFeatureList,
        NamedRawFeature,
    )

__all__ = [
    "batch_to_examples",
    "batch_to_instances",
    "example_to_instance",
    "examples_to_batch",
    "instance_to_example",
    "merge_example_batches",
    "row_major_to_examples",
]


# Only its own field tells the number of rows of a batch of shared columns; this bounds the rows of a corrupt batch.
_MOST_ROWS = 1 << 20


# --- batches and rows -------------------------------------------------------------------------------------------------


def batch_to_examples(batch: ExampleBatch) -> list[Example]:
    """Return the rows of a batch.

    A shared column gives its one feature to every row. The reserved columns become the label, LineId and weight of the
    rows; the batch's data source becomes theirs.

    Raises:
        SchemaMismatch: A column does not have one feature per row, or a reserved one holds something else.
        RecordCorrupt: A LineId cannot be decoded.
    """
    messages = family_of(batch)
    rows = [messages.Example(data_source_key=batch.data_source_key) for _ in range(_row_count(batch))]
    for column in batch.named_feature_list:
        if column.type == SHARED and not column.feature:
            continue
        for index, row in enumerate(rows):
            feature = column.feature[0 if column.type == SHARED else index]
            if not take_reserved(row, column.name, feature, f"row {index}"):
                row.named_feature.add(name=column.name, id=column.id, feature=feature)
    for raw_column in batch.named_raw_feature_list:
        if raw_column.type == SHARED and not raw_column.raw_feature:
            continue
        for index, row in enumerate(rows):
            raw_feature = raw_column.raw_feature[0 if raw_column.type == SHARED else index]
            row.named_raw_feature.add(name=raw_column.name, id=raw_column.id, raw_feature=raw_feature)
    return rows


def batch_to_instances(batch: ExampleBatch, *, flat_fids: bool = False) -> list[Instance]:
    """Return the rows of a batch as Instances.

    Args:
        batch: The batch.
        flat_fids: As in `example_to_instance`. By default v1 ids become v2 ids of a named feature, so names are kept.

    Raises:
        SchemaMismatch: As `batch_to_examples` and `example_to_instance` have it.
        RecordCorrupt: A LineId cannot be decoded.
    """
    return [example_to_instance(row, flat_fids=flat_fids) for row in batch_to_examples(batch)]


def examples_to_batch(examples: Iterable[Example]) -> ExampleBatch:
    """Return rows as one batch, with columns in the order in which their names first come up.

    A row without a feature has an empty one in its column. No column is marked as shared.

    Raises:
        SchemaMismatch: There are no rows; a row has a feature twice; or rows differ in a feature's id or in their data
            source.
        ConfigError: Rows are of different families.
    """
    rows = [lift_reserved(example) for example in examples]
    if not rows:
        raise SchemaMismatch("examples is empty, expected at least one row for a batch")
    messages = family_of(rows[0])
    batch = messages.ExampleBatch(batch_size=len(rows), data_source_key=rows[0].data_source_key)
    columns: dict[str, NamedFeatureList] = {}
    raw_columns: dict[str, Any] = {}
    for index, row in enumerate(rows):
        if family_of(row) is not messages:
            raise ConfigError(f"row {index} has another LineId than row 0; parse both with the same messages")
        if row.data_source_key != batch.data_source_key:
            raise SchemaMismatch(
                f"row {index} is from data source {row.data_source_key}, row 0 from {batch.data_source_key}; "
                "a batch has one source, split the rows first"
            )
        for named in row.named_feature:
            column = _column(columns, batch.named_feature_list.add, named, len(rows), index)
            column.feature[index].CopyFrom(named.feature)
        for raw in row.named_raw_feature:
            raw_column = _column(raw_columns, batch.named_raw_feature_list.add, raw, len(rows), index)
            raw_column.raw_feature[index].CopyFrom(raw.raw_feature)
        _refuse_doubles(row, index)
    add_reserved_columns(messages, batch, rows)
    return batch


def merge_example_batches(batches: Iterable[ExampleBatch], *, slot_from_id: bool = False) -> ExampleBatch:
    """Return the columns of several batches of the same rows as one batch.

    Producers that send the columns of a request in parts (user, item, context) need it before the parser.

    Args:
        batches: Batches with one number of rows, such as the messages of one request.
        slot_from_id: Give every id the slot of its column's ``id``: 15 bits of slot above 48 bits of the id, as
            ``parse_example_batch_list`` of the original does. Columns of ids then become v2 columns.

    Raises:
        SchemaMismatch: There is no batch, the numbers of rows or data sources differ, a column is there twice, or the
            ``id`` of a column is outside of the slots.
    """
    merged: ExampleBatch | None = None
    for index, batch in enumerate(batches):
        if merged is None:
            merged = type(batch)()
            merged.CopyFrom(batch)
            continue
        for name in ("batch_size", "data_source_key"):
            value, expected = getattr(batch, name), getattr(merged, name)
            if value != expected:
                raise SchemaMismatch(
                    f"{name} of batch {index} is {value}, expected {expected} as in batch 0; merge parts of one request"
                )
        merged.named_feature_list.extend(batch.named_feature_list)
        merged.named_raw_feature_list.extend(batch.named_raw_feature_list)
    if merged is None:
        raise SchemaMismatch("batches is empty, expected at least one batch")
    _row_count(merged)
    if slot_from_id:
        for column in merged.named_feature_list:
            for feature in column.feature:
                _set_slot(feature, column)
    return merged


def _set_slot(feature: Feature, column: NamedFeatureList) -> None:
    arm = feature.WhichOneof("type")
    if arm not in ("fid_v1_list", "fid_v2_list"):
        return
    if not 0 <= column.id < fid.V2_SLOTS:
        raise SchemaMismatch(f"id of column {column.name!r} is {column.id}, expected a slot, 0 to {fid.V2_SLOTS - 1}")
    signatures = [fid.signature_v2(one) for one in getattr(feature, arm).value]
    feature.fid_v2_list.value[:] = [fid.make_v2(column.id, signature) for signature in signatures]


def row_major_to_examples(batch: ExampleBatchRowMajor) -> list[Example]:
    """Return the rows of a row-major batch, each with the shared features before its own.

    A feature that a row has itself counts, not the shared one of that name.

    Raises:
        SchemaMismatch: A reserved feature holds something else than it should.
        RecordCorrupt: A LineId cannot be decoded.
    """
    messages = family_of(batch)
    rows = []
    for example in batch.example:
        row = messages.Example()
        own = {named.name for named in example.named_feature}
        own_raw = {named.name for named in example.named_raw_feature}
        row.named_feature.extend(shared for shared in batch.shared_feature if shared.name not in own)
        row.named_raw_feature.extend(shared for shared in batch.shared_raw_feature if shared.name not in own_raw)
        row.MergeFrom(example)
        rows.append(lift_reserved(row))
    return rows


# --- Example and Instance ---------------------------------------------------------------------------------------------


def example_to_instance(example: Example, *, flat_fids: bool = True) -> Instance:
    """Return an Example as an Instance.

    Single values become lists of one, doubles become floats, and features without a value are left out.

    Args:
        example: The row.
        flat_fids: Put v1 ids into ``Instance.fid``, where the name of their feature is lost but the id stays v1. False
            makes them v2 ids of a named feature.

    Raises:
        SchemaMismatch: The example has raw features, or a reserved feature holds something else than it should.
        RecordCorrupt: A LineId cannot be decoded.
    """
    row = lift_reserved(example)
    if row.named_raw_feature:
        raise SchemaMismatch(
            f"an Instance has no place for raw features such as {row.named_raw_feature[0].name!r}; "
            "clear named_raw_feature first"
        )
    instance = family_of(example).Instance(label=row.label)
    if row.HasField("line_id"):
        instance.line_id.CopyFrom(row.line_id)
    if row.instance_weight > 0:
        instance.instance_weight = row.instance_weight
    if row.data_source_key:
        instance.data_source_key = row.data_source_key
    for named in row.named_feature:
        if flat_fids and named.feature.WhichOneof("type") == "fid_v1_list":
            instance.fid.extend(named.feature.fid_v1_list.value)
        elif named.feature.WhichOneof("type") is not None:
            target = instance.feature.add(name=named.name)
            _fill_instance_feature(target, named.feature)
            if len(target.ListFields()) == 1:  # only the name: the list was empty
                del instance.feature[-1]
    return instance


def instance_to_example(instance: Instance) -> Example:
    """Return an Instance as an Example.

    The flat ids are grouped by slot into features ``fc_slot_<slot>``, in order of first appearance; ``value``,
    ``dense``, ``next_fid`` and ``label_tag`` become features of these names. Named features keep theirs.

    Raises:
        SchemaMismatch: A name comes up twice, a feature holds two kinds of values, or the weight is 0 or less, which
            in an Example would mean "none".
    """
    messages = family_of(instance)
    example = messages.Example(label=instance.label, data_source_key=instance.data_source_key)
    if instance.HasField("line_id"):
        example.line_id.CopyFrom(instance.line_id)
    example.instance_weight = instance.instance_weight if instance.HasField("instance_weight") else 1.0
    if not example.instance_weight > 0:
        raise SchemaMismatch(
            f"instance_weight is {instance.instance_weight}, expected more than 0 for an Example; drop the row instead"
        )
    for name, feature in _plain_features(messages, instance):
        example.named_feature.add(name=name, feature=feature)
    for source in instance.feature:
        target = example.named_feature.add(name=source.name)
        _fill_example_feature(target.feature, source)
    for index, named in enumerate(example.named_feature):
        named.id = index
    _refuse_doubles(example, 0)
    return example


def _plain_features(messages: Messages, instance: Instance) -> list[tuple[str, Feature]]:
    slots: dict[int, list[int]] = {}
    for one in instance.fid:
        slots.setdefault(fid.slot_v1(one), []).append(one)
    found = [(f"fc_slot_{slot}", make_feature(messages, "fid_v1_list", fids)) for slot, fids in slots.items()]
    plain: list[tuple[str, str, Any]] = [
        ("value", "float_list", instance.value),
        ("dense", "float_list", instance.dense),
        ("next_fid", "fid_v1_list", instance.next_fid),
        ("label_tag_key", "int64_list", [tag.key for tag in instance.label_tag]),
        ("label_tag_value", "float_list", [tag.val for tag in instance.label_tag]),
    ]
    return found + [(name, make_feature(messages, arm, values)) for name, arm, values in plain if values]


def _as_v2(values: Iterable[int]) -> list[int]:
    return [fid.v1_to_v2(one) for one in values]


# Arm of Example's Feature -> field of Instance's Feature, and the conversion of each list of values.
_TO_INSTANCE: dict[str, tuple[str, Callable[[Any], Iterable[Any]]]] = {
    "fid_v1_list": ("fid", _as_v2),
    "fid_v2_list": ("fid", list),
    "float_list": ("float_value", list),
    "double_list": ("float_value", list),
    "int64_list": ("int64_value", list),
    "bytes_list": ("bytes_value", list),
    "fid_v1_lists": ("fid_list", _as_v2),
    "fid_v2_lists": ("fid_list", list),
    "float_lists": ("float_list", list),
    "double_lists": ("float_list", list),
    "int64_lists": ("int64_list", list),
    "bytes_lists": ("bytes_list", list),
    "int64_value": ("int64_value", list),
    "float_value": ("float_value", list),
    "double_value": ("float_value", list),
    "bytes_value": ("bytes_value", list),
}
_TO_EXAMPLE = {
    "fid": "fid_v2_list",
    "float_value": "float_list",
    "int64_value": "int64_list",
    "bytes_value": "bytes_list",
    "fid_list": "fid_v2_lists",
    "float_list": "float_lists",
    "int64_list": "int64_lists",
    "bytes_list": "bytes_lists",
}


def _fill_instance_feature(target: InstanceFeature, source: Feature) -> None:
    arm = source.WhichOneof("type")
    if arm is None:
        return
    field_name, convert = _TO_INSTANCE[arm]
    held: Any = getattr(source, arm)
    field: Any = getattr(target, field_name)
    if arm.endswith("_lists"):
        for one in held.list:
            field.add().value.extend(convert(one.value))
    else:
        field.extend(convert(held.value if arm.endswith("_list") else [held]))


def _fill_example_feature(target: Feature, source: InstanceFeature) -> None:
    filled = [field.name for field, _ in source.ListFields() if field.name in _TO_EXAMPLE]
    if len(filled) > 1:
        raise SchemaMismatch(f"feature {source.name!r} holds both {filled[0]} and {filled[1]}; only one can be meant")
    for name in filled:
        held: Any = getattr(target, _TO_EXAMPLE[name])
        values: Any = getattr(source, name)
        if name.endswith("_list"):
            for one in values:
                held.list.add().value.extend(one.value)
        else:
            held.value.extend(values)


# --- checks -----------------------------------------------------------------------------------------------------------


def _row_count(batch: ExampleBatch) -> int:
    seen: set[str] = set()
    for column in batch.named_feature_list:
        _check_length(batch, column.name, column.type, len(column.feature))
        if column.name in seen:
            raise SchemaMismatch(f"column {column.name!r} is there twice; names must differ")
        seen.add(column.name)
    for raw in batch.named_raw_feature_list:
        _check_length(batch, raw.name, raw.type, len(raw.raw_feature))
    is_borne_out = any(column.type != SHARED for column in batch.named_feature_list)
    if batch.batch_size < 0 or (batch.batch_size > _MOST_ROWS and not is_borne_out):
        raise RecordCorrupt(f"an ExampleBatch claims {batch.batch_size} rows, which no column of it bears out")
    return batch.batch_size


def _check_length(batch: ExampleBatch, name: str, kind: int, length: int) -> None:
    if kind != SHARED and length != batch.batch_size:
        raise SchemaMismatch(
            f"column {name!r} has {length} features, the batch {batch.batch_size} rows; "
            "a column that is not SHARED has one feature per row"
        )


def _column(
    columns: dict[str, Any], add: Callable[..., Any], named: NamedFeature | NamedRawFeature, rows: int, index: int
) -> Any:
    column = columns.get(named.name)
    if column is None:
        column = columns[named.name] = add(name=named.name, id=named.id)
        cells = column.feature if hasattr(column, "feature") else column.raw_feature
        for _ in range(rows):
            cells.add()
    if column.id != named.id:
        raise SchemaMismatch(f"row {index}: feature {named.name!r} has id {named.id}, in earlier rows {column.id}")
    return column


def _refuse_doubles(example: Example, index: int) -> None:
    seen: set[str] = set()
    for named in example.named_feature:
        if named.name in seen:
            raise SchemaMismatch(f"row {index}: feature {named.name!r} is there twice; names must differ")
        seen.add(named.name)

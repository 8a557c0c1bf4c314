"""``Schema``: the features of a record that become ids, those that become dense values, and the number of labels.

One schema serves every record format, training, export and serving. The rule for missing values is the same in all
formats:

====================  =====================================================================================
missing               becomes
====================  =====================================================================================
ids of a feature      an empty list
dense values          the feature's ``default``
a label               ``missing_label`` (0), and False in ``Batch.label_mask``; the original's lowest float and
                      NaN mean missing too
the weight            1
the sample rate       1
time, uid, extras     0, or the field's own default
====================  =====================================================================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from monolith import _native
from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.core.fid import ValueType
from monolith.data.batch import Batch, batch_of
from monolith.data.records.line_id import LineIdField, LineIdFields
from monolith.data.slot_names import slot_of_name

if TYPE_CHECKING:
    from monolith.data.feature_list import FeatureList
    from monolith.data.sources.base import RecordKind

__all__ = ["BatchParser", "DenseFeature", "Schema", "SparseFeature", "parse_batch"]

_MAX_WIDTH = 1 << 20
_MAX_LABELS = 4096


@dataclass(frozen=True, slots=True)
class SparseFeature:
    """A feature whose values are ids."""

    name: str
    """The name of the feature in the batch and in the model."""

    slot: int | None = None
    """Its slot, which finds it among the flat ids of an Instance. Features of other values need none. None = taken from
    the name, when that is ``slot_N`` or ``fc_slot_N``."""

    column: str | None = None
    """The name of the feature in the records; None = the same."""

    value_type: ValueType | None = None
    """Type of its values, which decides their ids; see ``monolith.fid.ValueType``. None = that of the first value."""

    hash_wide: bool = False
    """Hash an integer that does not fit beside the slot of a ``fid`` feature, instead of refusing it."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a sparse feature has no name")
        if self.slot is None:
            object.__setattr__(self, "slot", slot_of_name(self.name))
        if self.slot is not None and not 0 <= self.slot < fid.V2_SLOTS:
            raise ConfigError(f"feature {self.name!r} has slot {self.slot}; slots go from 0 to {fid.V2_SLOTS - 1}")
        fid.check_value_type(self.value_type, f"feature {self.name!r}")


@dataclass(frozen=True, slots=True)
class DenseFeature:
    """A feature whose values are numbers or byte strings, the same number of them in every row."""

    name: str
    """The name of the feature in the batch and in the model."""

    width: int = 1
    """Values per row. A row with another number of values (but not none) is refused, unless ``pad``."""

    dtype: Literal["float32", "int64", "bytes"] = "float32"
    """The type of the array. Integers become floats if floats are declared, never the other way."""

    default: float = 0.0
    """The value of a row without the feature."""

    pad: bool = False
    """Fill short rows up with the default and cut long ones."""

    column: str | None = None
    """The name of the feature in the records; None = the same."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a dense feature has no name")
        if not 1 <= self.width <= _MAX_WIDTH:
            raise ConfigError(f"feature {self.name!r} has width {self.width}; it must be from 1 to {_MAX_WIDTH}")
        if self.dtype not in ("float32", "int64", "bytes"):
            raise ConfigError(f"feature {self.name!r} has dtype {self.dtype!r}; it must be float32, int64 or bytes")
        if self.dtype == "int64" and self.default != math.trunc(self.default):
            raise ConfigError(f"feature {self.name!r} is of integers, its default is {self.default}")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The features, labels and fields to read out of each record.

    >>> schema = Schema(sparse=["slot_1", SparseFeature("item", slot=2)], dense={"age": 1})
    >>> [feature.slot for feature in schema.sparse], schema.dense[0].width
    ([1, 2], 1)
    """

    sparse: Sequence[SparseFeature | str] = ()
    """Features that become ``Batch.ids``; a name alone is ``SparseFeature(name)``."""

    dense: Sequence[DenseFeature | str] | Mapping[str, int] = ()
    """Features that become ``Batch.dense``; a mapping gives the width of each name."""

    labels: int = 1
    """Heads: columns of ``Batch.label``. Labels past them are not read."""

    label_features: Sequence[str] = ()
    """Features that hold the labels, one head each. Empty = where the format keeps them: the record's own label field,
    the column ``__LABEL__``, or in a tf.Example the feature ``label``."""

    weight_feature: str = "instance_weight"
    """The feature that holds the weight, in formats that have no field for it."""

    extras: Mapping[str, int] | Sequence[str] = ()
    """Fields of LineId that become ``Batch.extras``; a mapping gives the width of repeated ones."""

    line_fields: LineIdFields = field(default_factory=LineIdFields.standard)
    """The fields that LineId has here; see ``LineIdFields.extended``."""

    missing_label: float = 0.0
    """The value of ``Batch.label`` where the mask is False."""

    fid_version: Literal["v2", "as_is"] = "v2"
    """v1 ids are turned into v2 ids; ``as_is`` leaves every id as it was written."""

    feature_list: FeatureList | None = field(default=None, repr=False)
    """Where slots of features come from that are declared without one."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "sparse", tuple(self._sparse(each) for each in self.sparse))
        pairs = self.dense.items() if isinstance(self.dense, Mapping) else None
        dense = [DenseFeature(*pair) for pair in pairs] if pairs is not None else self.dense
        set_field(self, "dense", tuple(DenseFeature(each) if isinstance(each, str) else each for each in dense))
        extras = self.extras if isinstance(self.extras, Mapping) else dict.fromkeys(self.extras, 1)
        set_field(self, "extras", dict(extras))
        set_field(self, "label_features", tuple(self.label_features))
        if self.label_features and self.labels == 1:
            set_field(self, "labels", len(self.label_features))
        self._check()

    def _sparse(self, each: SparseFeature | str) -> SparseFeature:
        feature = SparseFeature(each) if isinstance(each, str) else each
        if feature.slot is None and self.feature_list is not None and feature.name in self.feature_list:
            return replace(feature, slot=self.feature_list.slot(feature.name))
        return feature

    def _check(self) -> None:
        seen: set[str] = set()
        for name in self._names():
            if name in seen:
                raise ConfigError(f"the schema names {name!r} twice; each feature has one role")
            seen.add(name)
        if not 0 <= self.labels <= _MAX_LABELS:
            raise ConfigError(f"labels is {self.labels}; it must be from 0 to {_MAX_LABELS}")
        for name, width in self._extras.items():
            if name not in self.line_fields:
                known = ", ".join(each.name for each in self.line_fields.fields)
                raise ConfigError(
                    f"extras names {name!r}, which is not a field of LineId; known: {known}. "
                    "Declare it: line_fields=LineIdFields.standard().extended({'" + name + "': (number, 'int64')})"
                )
            if not 1 <= width <= _MAX_WIDTH or (width > 1 and not self.line_fields[name].is_repeated):
                raise ConfigError(f"extras gives {name!r} the width {width}; a field that is not repeated has width 1")
        if self.fid_version not in ("v2", "as_is"):
            raise ConfigError(f"fid_version is {self.fid_version!r}; it must be 'v2' or 'as_is'")

    @property
    def _extras(self) -> Mapping[str, int]:
        assert isinstance(self.extras, Mapping)
        return self.extras

    @property
    def sparse_features(self) -> tuple[SparseFeature, ...]:
        """The sparse features, each with its slot."""
        return tuple(each for each in self.sparse if isinstance(each, SparseFeature))

    @property
    def dense_features(self) -> tuple[DenseFeature, ...]:
        """The dense features."""
        return tuple(each for each in self.dense if isinstance(each, DenseFeature))

    def _names(self) -> Iterator[str]:
        yield from (each.name for each in self.sparse_features)
        yield from (each.name for each in self.dense_features)
        yield from self._extras

    def with_value_types(self, types: Mapping[str, ValueType]) -> Schema:
        """Return the schema with the types of values that a model was trained on.

        Raises:
            ConfigError: The schema declares another type.
        """
        return replace(self, sparse=[_with_value_type(each, types.get(each.name)) for each in self.sparse_features])

    def to_json(self) -> str:
        """Return the schema as JSON text, which ``from_json`` reads."""
        return json.dumps(
            {
                "sparse": [asdict(each) for each in self.sparse_features],
                "dense": [asdict(each) for each in self.dense_features],
                "labels": self.labels,
                "label_features": list(self.label_features),
                "weight_feature": self.weight_feature,
                "extras": dict(self._extras),
                "line_fields": [asdict(each) for each in self.line_fields.fields],
                "missing_label": self.missing_label,
                "fid_version": self.fid_version,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Return the schema that ``to_json`` wrote.

        Raises:
            ConfigError: The text is not such JSON.
        """
        try:
            body: dict[str, Any] = json.loads(text)
            return cls(
                sparse=[SparseFeature(**each) for each in body.pop("sparse")],
                dense=[DenseFeature(**each) for each in body.pop("dense")],
                line_fields=LineIdFields(tuple(LineIdField(**each) for each in body.pop("line_fields"))),
                **body,
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"the text is not the JSON of a schema: {error}") from error


def _with_value_type(feature: SparseFeature, trained: ValueType | None) -> SparseFeature:
    if trained is None or feature.value_type == trained:
        return feature
    if feature.value_type is not None:
        raise ConfigError(
            f"value_type of feature {feature.name!r} is {feature.value_type!r} in the schema, expected {trained!r}, "
            "which the model was trained on; leave value_type out, or train a new model"
        )
    return replace(feature, value_type=trained)


class BatchMaker:
    """Rows -> batches by one schema. Holds the native assembler and the columns it reads; used by one thread."""

    def __init__(self, schema: Schema, columns: _native.Columns) -> None:
        def column(feature: SparseFeature | DenseFeature) -> int:
            return columns.want(feature.column or feature.name)

        self._sparse = {each.name: place for place, each in enumerate(schema.sparse_features)}
        self._dense = {each.name: place for place, each in enumerate(schema.dense_features)}
        self._extras = {name: place for place, name in enumerate(schema._extras)}
        self._kinds = b""
        self._types: Mapping[str, ValueType] = {}
        fields = {each[0]: each for each in schema.line_fields.native()}
        self.assembler = _native.Assembler(
            [
                (
                    each.name,
                    column(each),
                    -1 if each.slot is None else each.slot,
                    each.slot is not None,
                    each.value_type or "",
                    each.hash_wide,
                )
                for each in schema.sparse_features
            ],
            [
                (each.name, column(each), each.width, each.dtype, each.default, each.pad)
                for each in schema.dense_features
            ],
            [(fields[name], width) for name, width in schema._extras.items()],
            schema.labels,
            schema.missing_label,
            schema.fid_version == "as_is",
        )

    def __call__(self, rows: _native.Rows) -> Batch:
        """Assemble one batch.

        Raises:
            SchemaMismatch: A row does not fit; the text names the feature and the row.
        """
        data = self.assembler.assemble(rows)
        if data.value_kinds != self._kinds:
            self._kinds = data.value_kinds
            pairs = zip(self._sparse, self._kinds, strict=True)
            self._types = {name: fid.VALUE_TYPES[kind - 1] for name, kind in pairs if kind}
        return batch_of(data, self._sparse, self._dense, self._extras, self._types)


def make_parser(
    schema: Schema,
    record: str,
    columns: _native.Columns,
    *,
    keep_all: bool = False,
    skip_corrupt: bool = False,
    seed: int = 0,
) -> _native.RowParser:
    """Return the native parser of the features and fields of ``schema``."""
    return _native.RowParser(
        record,
        columns,
        keep_all=keep_all,
        skip_corrupt=skip_corrupt,
        label_features=list(schema.label_features),
        weight_feature=schema.weight_feature,
        aliases=_slot_aliases(schema, columns),
        line_fields=schema.line_fields.native(),
        seed=seed,
    )


class BatchParser:
    """Parses lists of records, such as those of a request, into batches. Used by one thread at a time.

    Args:
        record: The message type of the records.
        schema: The features, labels and fields to read.
    """

    def __init__(self, record: RecordKind, schema: Schema) -> None:
        columns = _native.Columns()
        self._make = BatchMaker(schema, columns)
        self._parser = make_parser(schema, record, columns)

    def __call__(self, records: Sequence[bytes | bytearray | memoryview] | _native.Records) -> Batch:
        """Return one batch with the rows of all records.

        Raises:
            RecordCorrupt: A record cannot be parsed; the text names the record and the byte.
            SchemaMismatch: A row does not fit the schema.
        """
        native = records if isinstance(records, _native.Records) else _native.Records(records)
        return self._make(self._parser.parse(native))

    @property
    def natives(self) -> tuple[_native.RowParser, _native.Assembler]:
        """The native parser and assembler, whose settings native servers copy."""
        return self._parser, self._make.assembler


def parse_batch(records: Sequence[bytes | bytearray | memoryview], *, record: RecordKind, schema: Schema) -> Batch:
    """Return one batch with the rows of all records. For many calls, ``BatchParser`` is faster."""
    return BatchParser(record, schema)(records)


def _slot_aliases(schema: Schema, columns: _native.Columns) -> dict[str, int]:
    """``slot_N`` and ``fc_slot_N`` are other names of the first feature that was declared with slot N."""
    aliases: dict[str, int] = {}
    for each in schema.sparse_features:
        if each.slot is not None:
            column = columns.want(each.column or each.name)
            for prefix in ("fc_slot_", "slot_"):
                aliases.setdefault(f"{prefix}{each.slot}", column)
    return aliases

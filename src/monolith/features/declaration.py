"""``Declaration``: a model's inputs, namely features, slices of their rows, layouts, dense inputs and labels.

The table specs, the schema of the data and the native layout kernel follow from a complete declaration, without a
batch. Training, export and serving use the same declaration. This module does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from monolith import _native
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.core.fid import ValueType, check_value_type
from monolith.data import DenseFeature, FeatureList, Schema, SparseFeature
from monolith.data.slot_names import slot_of_name
from monolith.embedding import (
    Adagrad,
    BatchSoftmax,
    Fp16,
    Fp32,
    GroupAdagrad,
    GroupFtrl,
    NoFilter,
    RandomUniform,
    SlidingHashFilter,
)
from monolith.embedding.admission import AdmissionFilter, decode_filter, encode_filter
from monolith.embedding.specs import NEVER_EXPIRES_DAYS, SliceSpec, TableSpec, WhenFull
from monolith.embedding.wiring import WiredFeature, WiredPart, Wiring
from monolith.features.id_transforms import IdTransform
from monolith.features.layouts import Combiner, Item, Layout, LayoutTensor, Out, Piece, layout_name

__all__ = ["Declaration", "EmbeddingFeature", "merge_slices"]

FeatureName = str | int
"""A feature's name, or its slot."""
FeatureNames = (
    FeatureName
    | Sequence[FeatureName]
    | Sequence[tuple[FeatureName, int]]
    | Sequence[tuple[FeatureName, ...]]
    | Mapping[FeatureName, int]
)

_JSON_VERSION = 1
_LONGEST = 1 << 20
"""Most ids of a sequence; a dense feature has the same bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingFeature:
    """A sparse input and the table that its ids belong to."""

    name: str
    slot: int | None
    table: str
    """The feature that owns the rows: itself, or the one it is shared with."""
    combiner: Combiner
    length: int
    """Ids that count per row when the combiner is ``first``; else 0."""
    expire_days: int = NEVER_EXPIRES_DAYS
    occurrence_threshold: int = 0
    admission: AdmissionFilter | None = None
    """Counts the sightings of ids; None = a sliding filter, where there is a threshold."""
    on_miss: Literal["zeros", "initial"] = "zeros"
    max_bytes: int | None = None
    when_full: WhenFull = "refuse"
    column: str | None = None
    """Name in the records; None = the same."""
    id_transform: IdTransform | None = None
    """Place of each id in a vocabulary; None = ids are rows as they are."""
    source: str | None = None
    """Input of the batch that has the ids, where several features read one; None = the feature's name."""
    value_type: ValueType | None = None
    """Type of the values; None = that of the first value, which training records here."""
    hash_wide: bool = False
    """Hash an integer that does not fit beside the slot, instead of refusing it."""

    @property
    def input(self) -> str:
        """Name of the ids in a batch."""
        return self.source or self.name


@dataclass(slots=True)
class Declaration:
    """Inputs of one model. The model fills it in ``__init__``; ``freeze`` ends that."""

    features: dict[str, EmbeddingFeature] = field(default_factory=dict)
    slices: dict[str, dict[str, SliceSpec]] = field(default_factory=dict)
    """Table to its slices by name, in the order in which they lie in a row: that of their first use."""
    layouts: dict[str, Layout] = field(default_factory=dict)
    dense: dict[str, DenseFeature] = field(default_factory=dict)
    labels: int = 1
    feature_list: FeatureList | None = None
    """Source of slots for features that are declared without one."""
    is_frozen: bool = False

    # --- declaring ----------------------------------------------------------------------------------------------------

    def add_feature(
        self,
        name: FeatureName,
        *,
        slot: int | None = None,
        shared_with: FeatureName | None = None,
        combiner: Combiner | None = None,
        max_sequence_length: int = 0,
        expire_days: int = NEVER_EXPIRES_DAYS,
        occurrence_threshold: int = 0,
        admission: AdmissionFilter | None = None,
        on_miss: Literal["zeros", "initial"] = "zeros",
        max_bytes: int | None = None,
        when_full: WhenFull = "refuse",
        column: str | None = None,
        id_transform: IdTransform | None = None,
        source: str | None = None,
        value_type: ValueType | None = None,
        hash_wide: bool = False,
    ) -> EmbeddingFeature:
        """Declare a sparse feature; see ``Model.embedding_feature``."""
        self._check_open()
        check_value_type(value_type, f"feature {name!r}")
        name, slot = self.resolve(name, slot)
        if id_transform is not None:
            value_type = _type_of_vocabulary(name, value_type)
        if name in self.features or name in self.dense:
            raise ConfigError(f"feature {name!r} is declared twice; each feature has one declaration")
        if type(max_sequence_length) is not int or not 0 <= max_sequence_length <= _LONGEST:
            raise ConfigError(
                f"feature {name!r}: max_sequence_length is {max_sequence_length!r}; give a whole number from 0 to "
                f"{_LONGEST}"
            )
        combiner = combiner or ("first" if max_sequence_length else "sum")
        if combiner not in ("sum", "mean", "first"):
            raise ConfigError(f"feature {name!r}: combiner is {combiner!r}; use 'sum', 'mean' or 'first'")
        if (combiner == "first") != (max_sequence_length > 0):
            raise ConfigError(
                f"feature {name!r}: combiner is {combiner!r} with max_sequence_length {max_sequence_length}; "
                "'first' needs a length, and only 'first' has one"
            )
        feature = EmbeddingFeature(
            name=name,
            slot=slot,
            table=name,
            combiner=combiner,
            length=max_sequence_length,
            expire_days=expire_days,
            occurrence_threshold=occurrence_threshold,
            admission=admission,
            on_miss=on_miss,
            max_bytes=max_bytes,
            when_full=when_full,
            column=column,
            id_transform=id_transform,
            source=source,
            value_type=value_type,
            hash_wide=hash_wide,
        )
        _check_admission(feature)
        if shared_with is not None:
            feature = self._share_rows(feature, self.feature(shared_with))
        self.features[name] = feature
        return feature

    def resolve(self, name: FeatureName, slot: int | None) -> tuple[str, int | None]:
        """Return a feature's name and slot; a bare slot has the name that the feature list gives it."""
        listed = self.feature_list.find(name) if self.feature_list is not None else None
        if listed is not None:
            return listed.name, listed.slot if slot is None else slot
        if isinstance(name, int):
            return f"fc_slot_{name}", name
        return name, slot_of_name(name) if slot is None else slot

    def _share_rows(self, feature: EmbeddingFeature, owner: EmbeddingFeature) -> EmbeddingFeature:
        if feature.slot not in (None, owner.slot):
            raise ConfigError(
                f"feature {feature.name!r} has slot {feature.slot} and is shared with {owner.name!r} of slot "
                f"{owner.slot}; expected the same slot; give it, or leave slot out"
            )
        if feature.value_type not in (None, owner.value_type) and owner.value_type is not None:
            raise ConfigError(
                f"value_type of feature {feature.name!r} is {feature.value_type!r}, expected {owner.value_type!r} as "
                f"of {owner.name!r}, whose rows it shares"
            )
        return replace(
            feature,
            slot=owner.slot,
            value_type=feature.value_type or owner.value_type,
            table=owner.table,
            expire_days=owner.expire_days,
            occurrence_threshold=owner.occurrence_threshold,
            admission=owner.admission,
            on_miss=owner.on_miss,
            max_bytes=owner.max_bytes,
            when_full=owner.when_full,
        )

    def has_feature(self, name: FeatureName) -> bool:
        """Return whether a feature of this name, or with the name of this slot, is declared."""
        return self.resolve(name, None)[0] in self.features

    def feature(self, name: FeatureName) -> EmbeddingFeature:
        """Return a declared feature by its name or slot.

        Raises:
            ConfigError: It was not declared.
        """
        found = self.features.get(self.resolve(name, None)[0])
        if found is None and isinstance(name, int):
            found = next((each for each in self.features.values() if each.slot == name), None)
        if found is None:
            known = ", ".join(self.features) or "none"
            raise ConfigError(f"feature {name!r} is not declared; call embedding_feature first. Declared: {known}")
        return found

    def add_dense(self, name: str, **options: Any) -> DenseFeature:
        """Declare a dense input; the options are those of ``DenseFeature``."""
        self._check_open()
        if name in self.features or name in self.dense:
            raise ConfigError(f"feature {name!r} is declared twice; each feature has one declaration")
        self.dense[name] = DenseFeature(name, **options)
        return self.dense[name]

    def add_layout(
        self,
        features: FeatureNames,
        slice_name: str,
        dim: int | None,
        *,
        out: Out | Literal["addn"] | None,
        group_out: Literal["add_n", "concat"] = "add_n",
        **parts: Any,
    ) -> Layout:
        """Declare a slice of features and the layout of their tensors; see ``Model.embedding_slice``."""
        self._check_open()
        joined: Out | None = "add_n" if out == "addn" else out
        if joined not in (None, "concat", "stack", "add_n"):
            raise ConfigError(f"slice {slice_name!r}: out is {out!r}; use None, 'concat', 'stack' or 'add_n'")
        if group_out not in ("add_n", "concat"):
            raise ConfigError(f"slice {slice_name!r}: group_out is {group_out!r}; use 'add_n' or 'concat'")
        groups = _groups(features, slice_name, dim)
        items = tuple(
            Item(tuple(self._piece(name, slice_name, width, parts) for name, width in group), group_out == "concat")
            for group in groups
        )
        name = layout_name(slice_name, [str(key) for key in _keys(features)])
        if name in self.layouts:  # the same features of the same slice, joined in another way
            name = f"{name}_{joined or 'none'}_{len(self.layouts)}"
        layout = Layout(name=name, items=items, out=joined, is_single=isinstance(features, str | int))
        self.layouts[name] = layout
        return layout

    def _piece(self, name: FeatureName, slice_name: str, dim: int, parts: Mapping[str, Any]) -> Piece:
        feature = self.feature(name)
        self._add_slice(feature.table, slice_name, dim, parts)
        return Piece(feature=feature.name, slice=slice_name, width=dim, length=feature.length)

    def _add_slice(self, table: str, name: str, dim: int, parts: Mapping[str, Any]) -> None:
        given = {key: value for key, value in parts.items() if value is not None}
        present = self.slices.setdefault(table, {}).get(name)
        if present is None:
            defaults = {
                "optimizer": Adagrad(initial_accumulator_value=1.0, learning_rate=0.01),
                "initializer": RandomUniform(-0.05, 0.05),
                "compressor": Fp16(),
            }
            self.slices[table][name] = SliceSpec(dim, **{**defaults, **given})
            return
        wanted = replace(present, dim=dim, **given)
        if wanted != present:
            raise ConfigError(
                f"slice {name!r} of {table!r} was declared as {present}, and now as {wanted}; "
                "use the same settings, or another name"
            )

    def _check_open(self) -> None:
        if self.is_frozen:
            raise ConfigError("features and slices are declared in __init__, before the model is used")

    def freeze(self) -> None:
        """End declaring.

        Raises:
            ConfigError: A feature has no slice, so its ids would be read for nothing.
        """
        self._check_slices()
        self.is_frozen = True

    def _check_slices(self) -> None:
        used = {part.piece.feature for tensor in self.tensors() for part in tensor.parts}
        for feature in self.features.values():
            if feature.name not in used:
                raise ConfigError(
                    f"feature {feature.name!r} has no slice; declare one with embedding_slice, or drop it"
                )

    # --- derived from it -----------------------------------------------------------------------------------------

    @property
    def tables(self) -> list[str]:
        """Table names, sorted: the features that own rows."""
        return sorted({feature.table for feature in self.features.values()})

    @property
    def feature_names(self) -> list[str]:
        """Names of the sparse features, sorted."""
        return sorted(self.features)

    @property
    def inputs(self) -> dict[str, EmbeddingFeature]:
        """Sparse inputs of a batch by name: each with the first feature that reads it."""
        inputs: dict[str, EmbeddingFeature] = {}
        for feature in self.features.values():
            inputs.setdefault(feature.input, feature)
        return inputs

    def table_specs(self, *, seed: int = 0, deterministic: bool = False) -> list[TableSpec]:
        """Return the spec of every table, sorted by name.

        Args:
            seed: Seed of first values.
            deterministic: Whether results must be the same bytes for every number of threads.

        Raises:
            ConfigError: A feature has no slice.
        """
        self._check_slices()
        return [self._table_spec(name, seed, deterministic) for name in self.tables]

    def _table_spec(self, name: str, seed: int, deterministic: bool) -> TableSpec:
        owner = self.features[name]
        return TableSpec(
            name,
            merge_slices(self.slices[name].values())[0],
            expire_days=owner.expire_days,
            admission=(owner.admission or SlidingHashFilter()) if owner.occurrence_threshold else NoFilter(),
            occurrence_threshold=owner.occurrence_threshold,
            on_miss=owner.on_miss,
            max_bytes=owner.max_bytes,
            when_full=owner.when_full,
            seed=seed,
            deterministic=deterministic,
        )

    def column_of(self, table: str, slice_name: str) -> int:
        """Return the first column of a slice in a row of its table."""
        column = 0
        for name, piece in self.slices[table].items():
            if name == slice_name:
                return column
            column += piece.dim
        raise ConfigError(f"table {table!r} has no slice {slice_name!r}; it has {', '.join(self.slices[table])}")

    def schema(self, **options: Any) -> Schema:
        """Return the schema of the data; ``options`` are further fields of ``Schema``, such as ``extras``."""
        sparse = [
            SparseFeature(name, each.slot, each.column, each.value_type, each.hash_wide)
            for name, each in self.inputs.items()
        ]
        return Schema(sparse=sparse, dense=list(self.dense.values()), **{"labels": self.labels, **options})

    # --- types of values ----------------------------------------------------------------------------------------------

    @property
    def value_types(self) -> dict[str, ValueType]:
        """Types of values of the inputs, declared or recorded; inputs without a type are left out."""
        return {name: each.value_type for name, each in self.inputs.items() if each.value_type is not None}

    def record_value_types(self, types: Mapping[str, ValueType], source: str = "the data") -> None:
        """Record the types of values that the model learns from.

        Args:
            types: Input to type; inputs that the model does not have are ignored.
            source: Origin of the types, in errors.

        Raises:
            SchemaMismatch: A feature has another type already, or features of one table differ in their types; nothing
                was recorded.
        """
        recorded: dict[str, EmbeddingFeature] = {}
        for name, feature in self.features.items():
            found = types.get(feature.input)
            if found is None or feature.value_type == found:
                continue
            if feature.value_type is not None:
                raise SchemaMismatch(
                    f"value_type of feature {name!r} is {found!r} in {source}, expected {feature.value_type!r} as in "
                    "the model; convert the values, or train a new model"
                )
            _check_shared(feature, found, {**self.features, **recorded})
            recorded[name] = replace(feature, value_type=found)
        self.features.update(recorded)

    def tensors(self) -> list[LayoutTensor]:
        """Return the tensors of all layouts: layouts sorted by name, then in order."""
        return [tensor for name in sorted(self.layouts) for tensor in self.layouts[name].tensors()]

    def wiring(self) -> Wiring:
        """Return how rows become the tensors of all layouts, by numbers."""
        tables, names = self.tables, self.feature_names
        place = {name: number for number, name in enumerate(names)}
        tensors = self.tensors()
        return Wiring(
            tables=tables,
            dims=[sum(piece.dim for piece in self.slices[table].values()) for table in tables],
            features=[
                WiredFeature(tables.index(each.table), each.combiner, each.length)
                for each in map(self.features.__getitem__, names)
            ],
            parts=[
                WiredPart(
                    number,
                    place[part.piece.feature],
                    self.column_of(self.features[part.piece.feature].table, part.piece.slice),
                    part.piece.width,
                    part.offset,
                    part.stride,
                )
                for number, tensor in enumerate(tensors)
                for part in tensor.parts
            ],
            widths=[tensor.width for tensor in tensors],
            id_transforms=[
                (number, *transform.native())
                for number, name in enumerate(names)
                if (transform := self.features[name].id_transform) is not None
            ],
        )

    def kernel(self) -> _native.Layouts:
        """Return the native kernel that plans batches and fills all tensors in host memory."""
        return self.wiring().kernel()

    # --- JSON ---------------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the declaration as JSON text; a model's folder and its exports carry it.

        Raises:
            ConfigError: A learning rate is a bare function, which has no text form.
        """
        body = {
            "version": _JSON_VERSION,
            "features": [_feature_json(each) for each in self.features.values()],
            "slices": {
                table: [[name, piece.encode()] for name, piece in pieces.items()]
                for table, pieces in self.slices.items()
            },
            "layouts": [asdict(each) for each in self.layouts.values()],
            "dense": [asdict(each) for each in self.dense.values()],
            "labels": self.labels,
        }
        return json.dumps(body)

    @classmethod
    def from_json(cls, text: str) -> Declaration:
        """Return the declaration that ``to_json`` wrote, frozen.

        Raises:
            ConfigError: The text is something else.
        """
        try:
            body = json.loads(text)
            if body["version"] != _JSON_VERSION:
                raise ConfigError(
                    f"the declaration has version {body['version']!r}, this release reads {_JSON_VERSION}"
                )
            made = cls(
                features={each["name"]: _feature(each) for each in body["features"]},
                slices={
                    table: {name: SliceSpec.decode(piece, f"{table}.{name}") for name, piece in pieces}
                    for table, pieces in body["slices"].items()
                },
                layouts={each["name"]: _layout(each) for each in body["layouts"]},
                dense={each["name"]: DenseFeature(**each) for each in body["dense"]},
                labels=body["labels"],
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"not the JSON of a declaration: {error}") from error
        made.freeze()
        return made


def _type_of_vocabulary(name: str, value_type: ValueType | None) -> ValueType:
    """Return the type of a feature with an ``IdTransform``, which reads the 48 bits beside the slot of an id."""
    if value_type not in (None, "fid", "slot48"):
        raise ConfigError(
            f"value_type of feature {name!r} is {value_type!r}, expected 'fid' beside id_transform, which reads ids of "
            "a slot; leave one of them out"
        )
    return value_type or "slot48"  # a negative value means unknown, and keeps its sign in 48 bits


def _check_shared(feature: EmbeddingFeature, found: ValueType, features: Mapping[str, EmbeddingFeature]) -> None:
    for other in features.values():
        if other.table == feature.table and other.value_type not in (None, found):
            raise SchemaMismatch(
                f"value_type of feature {feature.name!r} is {found!r}, expected {other.value_type!r} as of "
                f"{other.name!r}: they share the rows of {feature.table!r}, and equal values need equal ids. "
                f"Declare value_type={other.value_type!r} for both"
            )


def _check_admission(feature: EmbeddingFeature) -> None:
    if feature.admission is None:
        return
    if not isinstance(feature.admission, AdmissionFilter):
        raise ConfigError(
            f"feature {feature.name!r}: admission is {feature.admission!r}, expected a filter such as "
            "ProbabilisticFilter(); or omit it"
        )
    if not feature.occurrence_threshold and not isinstance(feature.admission, NoFilter):
        raise ConfigError(
            f"feature {feature.name!r}: admission is {feature.admission!r} with occurrence_threshold 0, which admits "
            "every id; give a threshold of 1 or more, or omit admission"
        )


def _feature_json(feature: EmbeddingFeature) -> dict[str, Any]:
    admission = feature.admission
    encoded = None if admission is None else encode_filter(admission)
    body = {**asdict(replace(feature, admission=None)), "admission": encoded}
    if feature.when_full == "refuse":  # earlier releases refuse the key
        del body["when_full"]
    return body


def _feature(body: Mapping[str, Any]) -> EmbeddingFeature:
    """Return a feature; those of earlier releases have no type of values, and keep the rule of their ids."""
    admission, transform = body.get("admission"), body.get("id_transform")
    return EmbeddingFeature(
        **{
            "value_type": "slot48",
            **body,
            "admission": None if admission is None else decode_filter(admission, f"{body['name']}.admission"),
            "id_transform": None if transform is None else IdTransform(**transform),
        }
    )


def _layout(body: Mapping[str, Any]) -> Layout:
    items = tuple(Item(tuple(Piece(**piece) for piece in item["pieces"]), item["is_concat"]) for item in body["items"])
    return Layout(name=body["name"], items=items, out=body["out"], is_single=body["is_single"])


def _keys(features: FeatureNames) -> list[Any]:
    return [features] if isinstance(features, str | int) else list(features)


def _groups(features: FeatureNames, slice_name: str, dim: int | None) -> list[list[tuple[FeatureName, int]]]:
    """Return the features of each item with their dims: one feature per item, unless groups were given."""
    if isinstance(features, Mapping):
        if dim is not None:
            raise ConfigError(f"slice {slice_name!r}: the features bring their dims, so give no dim")
        return [[pair] for pair in features.items()]
    groups: list[list[tuple[FeatureName, int]]] = []
    for each in _keys(features):
        if isinstance(each, tuple) and dim is None:
            if len(each) != 2 or not isinstance(each[1], int):
                raise ConfigError(
                    f"slice {slice_name!r}: item is {each!r}, expected a pair of feature and dim; give dim for groups"
                )
            groups.append([each])
        elif dim is None:
            raise ConfigError(f"slice {slice_name!r} of {each!r} has no dim; give dim=, or pairs of feature and dim")
        else:
            members: Iterable[FeatureName] = each if isinstance(each, tuple) else (each,)
            groups.append([(name, dim) for name in members])
    return groups


def merge_slices(slices: Iterable[SliceSpec]) -> tuple[list[SliceSpec], list[int]]:
    """Join neighbours that differ only in width, into one run of columns for the engine.

    Optimizers and compressors that treat a slice as a whole keep their slices apart.

    Returns:
        The joined slices, and the widths before joining.
    """
    merged: list[SliceSpec] = []
    dims: list[int] = []
    for piece in slices:
        dims.append(piece.dim)
        last = merged[-1] if merged else None
        if last is not None and _is_elementwise(piece) and replace(last, dim=piece.dim) == piece:
            merged[-1] = replace(last, dim=last.dim + piece.dim)
        else:
            merged.append(piece)
    return merged, dims


def _is_elementwise(piece: SliceSpec) -> bool:
    is_grouped = isinstance(piece.optimizer.base, GroupAdagrad | GroupFtrl | BatchSoftmax)
    return not is_grouped and isinstance(piece.compressor, Fp16 | Fp32)

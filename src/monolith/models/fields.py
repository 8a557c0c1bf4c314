"""The inputs that the ready-made models have in common: sparse features with a vector and a bias each, and numbers.

Declares them on a model and passes their tensors to its network.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict

import torch
from torch import Tensor

from monolith.core.cityhash import city_hash64
from monolith.core.errors import ConfigError
from monolith.core.fid import V2_SLOTS
from monolith.data import Batch, DenseFeature, SparseFeature
from monolith.data.slot_names import slot_of_name
from monolith.embedding import Adagrad, Fp32, RandomUniform, Zeros
from monolith.embedding.admission import AdmissionFilter
from monolith.embedding.compressors import Compressor
from monolith.embedding.initializers import Initializer
from monolith.embedding.optimizers import Optimizer
from monolith.embedding.specs import NEVER_EXPIRES_DAYS
from monolith.features import Model
from monolith.features.model import EmbeddingSlice

__all__ = ["DenseInputs", "Fields", "SparseInput", "SparseInputs", "TableOptions", "sparse_input", "sparse_inputs"]

SparseInput: TypeAlias = str | SparseFeature
SparseInputs: TypeAlias = Sequence[SparseInput] | Mapping[str, int]
"""Names, or names with their slots, or features. A name alone gets the slot of ``sparse_input``."""
DenseInputs: TypeAlias = Sequence[str | DenseFeature] | Mapping[str, int]
"""Names, or names with their widths, or features."""


class TableOptions(TypedDict, total=False):
    """How the rows of a ready-made model are kept; every model takes these as keyword arguments."""

    vec_optimizer: Optimizer
    """Update rule of the vectors; Adagrad with rate 0.1 unless given."""
    vec_initializer: Initializer
    """First values of the vectors; uniform in ±0.05 unless given."""
    vec_compressor: Compressor
    """The form of the vectors when they are served; half precision unless given."""
    bias_optimizer: Optimizer
    """Update rule of the biases; Adagrad with rate 0.1 unless given."""
    expire_days: int
    """Days without an update after which a row may be removed."""
    occurrence_threshold: int
    """Sightings of an id before it gets a row."""
    admission: AdmissionFilter
    """Counts the sightings; a sliding filter unless given."""


class Fields:
    """The inputs of one model, declared.

    Args:
        model: Model on which they are declared.
        sparse: The features with a vector each; a list of ids is summed.
        dense: The features that are numbers. They enter as sign(x) · ln(1 + |x|), so that no scale drowns the rest.
        dim: Length of the vectors.
        options: How rows are kept.

    Raises:
        ConfigError: There is no sparse feature, or one is there twice.
    """

    def __init__(
        self, model: Model, *, sparse: SparseInputs, dense: DenseInputs = (), dim: int, options: TableOptions
    ) -> None:
        features = sparse_inputs(sparse)
        if not features:
            raise ConfigError(f"{type(model).__name__}.sparse is {sparse!r}; name at least one feature")
        self.model = type(model).__name__
        self.dim = dim
        self.names = [feature.name for feature in features]
        self.options = options
        for feature in features:
            declare_sparse(model, feature, options)
        numbers = _dense_features(dense)
        for number in numbers:
            model.dense_feature(
                number.name,
                number.width,
                dtype=number.dtype,
                default=number.default,
                pad=number.pad,
                column=number.column,
            )
        self.number_columns = [(number.name, number.width) for number in numbers]
        """The dense features: names and widths."""
        self.width = sum(number.width for number in numbers)
        """Number of dense values of an example."""
        self._vectors = vector_slice(model, self.names, dim, options, out="stack")

    @property
    def columns(self) -> list[tuple[str, int]]:
        """The vectors, then the dense features: names and widths."""
        return [*((name, self.dim) for name in self.names), *self.number_columns]

    def vectors(self, batch: Batch) -> Tensor:
        """Return one vector per sparse feature: (B, n, dim)."""
        stacked: Tensor = self._vectors(batch)
        return stacked

    def numbers(self, batch: Batch) -> Tensor:
        """Return the dense features, on a logarithmic scale: (B, width), of width 0 without dense features."""
        vectors = self.vectors(batch)
        columns = [batch.dense[name].to(vectors.dtype) for name, _ in self.number_columns]
        x = torch.cat(columns, dim=1) if columns else vectors.new_zeros(vectors.shape[0], 0)
        return x.sign() * x.abs().log1p()


def sparse_input(given: SparseInput) -> SparseFeature:
    """Return the feature of a name.

    Its slot is N when it is called ``slot_N`` or ``fc_slot_N``, and else a hash of the name, so that plain values can
    become ids. Every feature has a separate table, so equal slots do no harm. Flat ids of an Instance are found by
    their real slot: give that one.
    """
    if isinstance(given, SparseFeature):
        return given
    slot = slot_of_name(given)
    return SparseFeature(given, 1 + city_hash64(given.encode()) % (V2_SLOTS - 1) if slot is None else slot)


def sparse_inputs(given: SparseInputs) -> list[SparseFeature]:
    """Return the features of names, of names with slots, or of features."""
    if isinstance(given, str):
        raise ConfigError(f"sparse features are {given!r}; give a list of names")
    if isinstance(given, Mapping):
        return [SparseFeature(name, slot) for name, slot in given.items()]
    return [sparse_input(each) for each in given]


def _dense_features(given: DenseInputs) -> list[DenseFeature]:
    if isinstance(given, str):
        raise ConfigError(f"dense features are {given!r}; give a list of names")
    if isinstance(given, Mapping):
        return [DenseFeature(name, width) for name, width in given.items()]
    return [DenseFeature(each) if isinstance(each, str) else each for each in given]


def declare_sparse(model: Model, feature: SparseFeature, options: TableOptions) -> None:
    """Declare a feature with a separate table.

    Raises:
        ConfigError: An option is unknown.
    """
    unknown = [name for name in options if name not in TableOptions.__annotations__]
    if unknown:
        known = sorted({*inspect.signature(type(model)).parameters, *TableOptions.__annotations__} - {"tables"})
        near = difflib.get_close_matches(unknown[0], known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(known)}"
        raise ConfigError(f"option of {type(model).__name__} is {unknown[0]!r}, expected a known one; {hint}")
    model.embedding_feature(
        feature.name,
        slot=feature.slot,
        column=feature.column,
        value_type=feature.value_type,
        hash_wide=feature.hash_wide,
        expire_days=options.get("expire_days", NEVER_EXPIRES_DAYS),
        occurrence_threshold=options.get("occurrence_threshold", 0),
        admission=options.get("admission"),
    )


def vector_slice(
    model: Model, names: Sequence[str], dim: int, options: TableOptions, out: str = "concat"
) -> EmbeddingSlice:
    """Declare the vectors of features."""
    return model.embedding_slice(
        list(names),
        "vec",
        dim,
        optimizer=options.get("vec_optimizer", Adagrad(learning_rate=0.1)),
        initializer=options.get("vec_initializer", RandomUniform(-0.05, 0.05)),
        compressor=options.get("vec_compressor"),
        out=out,  # type: ignore[arg-type]
    )


def bias_slice(model: Model, names: Sequence[str], options: TableOptions) -> EmbeddingSlice:
    """Declare a bias per feature; its tensor is their sum, (B, 1)."""
    return model.embedding_slice(
        list(names),
        "bias",
        1,
        optimizer=options.get("bias_optimizer", Adagrad(learning_rate=0.1)),
        initializer=Zeros(),
        compressor=Fp32(),
        out="add_n",
    )

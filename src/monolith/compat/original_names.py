"""``OriginalNames``: a ``Model`` with the original's method names for declaring features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from monolith.core.errors import ConfigError
from monolith.features import Model
from monolith.features.declaration import FeatureName, FeatureNames
from monolith.features.layouts import Combiner, Out
from monolith.features.model import EmbeddingSlice

if TYPE_CHECKING:
    from monolith.embedding import LearningRateFunction
    from monolith.embedding.compressors import Compressor
    from monolith.embedding.initializers import Initializer
    from monolith.embedding.optimizers import Optimizer

__all__ = ["OriginalNames"]

_COMBINERS: dict[str, Combiner] = {"reduce_sum": "sum", "reduce_mean": "mean", "first_n": "first"}


class OriginalNames(Model):
    """A ``Model`` that also answers to the original's names.

    >>> class Ranker(OriginalNames):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.create_embedding_feature_column("user_id", slot=1, combiner="reduce_mean")
    ...         self.bias = self.lookup_embedding_slice(["user_id"], "bias", 1)
    >>> Ranker().declaration.features["user_id"].combiner
    'mean'
    """

    def create_embedding_feature_column(
        self,
        feature_name: FeatureName,
        occurrence_threshold: int | None = None,
        expire_time: int = 36500,
        max_seq_length: int = 0,
        shared_name: FeatureName | None = None,
        combiner: str | None = None,
        *,
        slot: int | None = None,
    ) -> None:
        """Declare a feature, as ``embedding_feature`` does. A feature that is already declared stays unchanged.

        Raises:
            ConfigError: The combiner is unknown.
        """
        if combiner is not None and combiner not in _COMBINERS:
            raise ConfigError(f"combiner is {combiner!r}, expected one of {', '.join(_COMBINERS)}")
        if self.declaration.has_feature(feature_name):
            return
        self.embedding_feature(
            feature_name,
            slot=slot,
            shared_with=shared_name,
            combiner=None if combiner is None else _COMBINERS[combiner],
            max_sequence_length=max_seq_length,
            expire_days=expire_time,
            occurrence_threshold=occurrence_threshold or 0,
        )

    def lookup_embedding_slice(
        self,
        features: FeatureNames,
        slice_name: str,
        slice_dim: int | None = None,
        initializer: Initializer | None = None,
        optimizer: Optimizer | None = None,
        compressor: Compressor | None = None,
        learning_rate_fn: float | LearningRateFunction | None = None,
        group_out_type: Literal["add_n", "concat"] = "add_n",
        out_type: Out | Literal["addn"] | None = None,
    ) -> EmbeddingSlice:
        """Declare a slice, as ``embedding_slice`` does."""
        return self.embedding_slice(
            features,
            slice_name,
            slice_dim,
            initializer=initializer,
            optimizer=optimizer,
            compressor=compressor,
            learning_rate=learning_rate_fn,
            out=out_type,
            group_out=group_out_type,
        )

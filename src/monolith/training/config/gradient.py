"""Clipping and decay of gradients, and the optimizer of the dense part. Slices have their own optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from monolith.core.errors import ConfigError
from monolith.training.config._checks import (
    check_bool,
    check_choice,
    check_mapping,
    check_names,
    check_number,
    check_whole,
)

__all__ = ["ClipType", "DenseOptimizerName", "GradientConfig"]

ClipType: TypeAlias = Literal["norm", "global_norm", "value", "dense_and_sparse", "none"]
"""The clipping rules of ``monolith.layers.GradClipType``, as files spell them."""

DenseOptimizerName: TypeAlias = Literal[
    "adam", "adamw", "adagrad", "sgd", "momentum", "rmsprop", "adamom", "rmsprop_v2", "shampoo"
]


@dataclass(frozen=True, kw_only=True)
class GradientConfig:
    """Clipping, decay and the dense optimizer."""

    clip_type: ClipType = "global_norm"
    """Clipping rule: norm, global_norm (dense and sparse together), value, dense_and_sparse or none."""
    clip_norm: float | None = 1000.0
    """Bound of the clipping rule; None = no clipping."""
    sparse_clip_norm: float | None = None
    """Bound of the row gradients; None = clip_norm under global_norm, no clipping under dense_and_sparse."""
    sparse_norm_warmup_steps: int | None = None
    """Steps over which the bound of the row gradients climbs from 0, under global_norm."""
    dense_weight_decay: float = 0.0
    """Share of each weight that is added to its gradient after clipping."""
    dense_reduce_mean: bool = False
    """Divide the dense gradients by the examples of a step, over all ranks or partially synchronous workers."""
    ue_euclidean_norm_threshold: float | None = None
    """Zero the row gradients of checked features whose rows in a batch have at most this norm; None = no check."""
    ue_fc_names: tuple[str, ...] = ()
    """Features that ue_euclidean_norm_threshold checks; empty = those with uue in their names."""
    dense_optimizer: DenseOptimizerName = "adam"
    """Optimizer of the dense part: adam, adamw, adagrad, sgd, momentum, rmsprop, adamom, rmsprop_v2 or shampoo."""
    dense_learning_rate: float = 0.001
    """Learning rate of the dense optimizer."""
    dense_optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the dense optimizer, such as {betas: [0.9, 0.99]}."""

    def __post_init__(self) -> None:
        check_choice(self, "clip_type", get_args(ClipType))
        check_number(self, "clip_norm", "sparse_clip_norm", above=0)
        check_whole(self, "sparse_norm_warmup_steps", at_least=1)
        check_number(self, "dense_weight_decay", "dense_learning_rate", at_least=0)
        check_bool(self, "dense_reduce_mean")
        check_number(self, "ue_euclidean_norm_threshold", at_least=0)
        check_names(self, "ue_fc_names")
        if self.ue_fc_names and self.ue_euclidean_norm_threshold is None:
            raise ConfigError(
                f"ue_fc_names is {list(self.ue_fc_names)} and ue_euclidean_norm_threshold is None, expected both; "
                "give a threshold, or omit the names"
            )
        check_choice(self, "dense_optimizer", get_args(DenseOptimizerName))
        check_mapping(self, "dense_optimizer_options")

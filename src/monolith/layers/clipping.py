"""Changes gradients between backward and update: clipping rules, feature checks, decay.

Pure functions from gradients to gradients, dense (of weights) and sparse (of embeddings). The training loop computes
and applies the gradients.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_number, check_whole

__all__ = [
    "ClippingConfig",
    "GradClipType",
    "add_weight_decay",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "clip_gradients",
    "global_norm",
    "zero_small_features",
]


class GradClipType(enum.IntEnum):
    """The clipping rules, with the original's numbers."""

    ClipByNorm = 1
    """Each tensor to its own norm."""
    ClipByGlobalNorm = 2
    """One norm over dense and sparse gradients together."""
    ClipByValue = 3
    """Each element to ±c."""
    ClipByDenseAndSparse = 4
    """One norm over the dense gradients, one over the sparse."""
    NoClip = 5
    """Nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClippingConfig:
    """How a step's gradients are clipped."""

    clip_type: GradClipType = GradClipType.ClipByGlobalNorm
    """The rule."""
    clip_norm: float | None = 1000.0
    """The bound c; None for no clipping."""
    sparse_clip_norm: float | None = None
    """Bound of the sparse gradients. None: ``clip_norm`` under the global rule, no clipping under dense-and-sparse."""
    sparse_norm_warmup_steps: int | None = None
    """Steps over which the bound of the sparse gradients climbs from 0 under the global rule."""

    def __post_init__(self) -> None:
        if self.clip_type not in tuple(GradClipType):
            names = ", ".join(f"GradClipType.{rule.name}" for rule in GradClipType)
            raise ConfigError(f"ClippingConfig.clip_type is {self.clip_type!r}; give one of {names}")
        for name in ("clip_norm", "sparse_clip_norm"):
            if getattr(self, name) is not None:
                check_number(f"ClippingConfig.{name}", getattr(self, name), above=0.0)
        if self.sparse_norm_warmup_steps is not None:
            check_whole("ClippingConfig.sparse_norm_warmup_steps", self.sparse_norm_warmup_steps)


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm of all elements of all tensors together; 0 of none.

    >>> global_norm([torch.tensor([-3.0, 0.0]), torch.tensor([4.0])]).item()
    5.0
    """
    norm = _exact_norm(tensors)
    return norm.to(tensors[0].dtype) if tensors else norm.to(torch.get_default_dtype())


def clip_by_global_norm(tensors: Sequence[Tensor], clip_norm: float, use_norm: Tensor | None = None) -> list[Tensor]:
    """Scale all tensors by clip_norm / norm if their norm is above ``clip_norm``; an infinite norm gives NaN.

    ``use_norm`` is the norm if it is known already.

    >>> [part.tolist() for part in clip_by_global_norm([torch.tensor([-3.0]), torch.tensor([4.0])], 4.0)]
    [[-2.4000000953674316], [3.200000047683716]]
    """
    check_number("clip_norm", clip_norm, at_least=0.0)
    norm = _exact_norm(tensors) if use_norm is None else use_norm
    factor = _shrink(norm, clip_norm)
    return [tensor * factor.to(tensor.device, tensor.dtype) for tensor in tensors]


def clip_by_norm(tensor: Tensor, clip_norm: float) -> Tensor:
    """Scale one tensor to the norm ``clip_norm`` if it is longer.

    >>> clip_by_norm(torch.tensor([6.0, 8.0]), 5.0).tolist()
    [3.0, 4.0]
    """
    return clip_by_global_norm([tensor], clip_norm)[0]


def clip_by_value(tensor: Tensor, bound: float) -> Tensor:
    """Bring each element into [−bound, bound].

    >>> clip_by_value(torch.tensor([-3.0, 0.5]), 1.0).tolist()
    [-1.0, 0.5]
    """
    check_number("bound", bound, at_least=0.0)
    return tensor.clamp(-bound, bound)


def _exact_norm(tensors: Sequence[Tensor]) -> Tensor:
    return _norm_of([_sum_squares(tensor) for tensor in tensors])


def _sum_squares(tensor: Tensor) -> Tensor:
    # In double precision: the square of a finite number of 32 bits may be infinite.
    norm: Tensor = torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64)
    return norm.square()


def _norm_of(squares: Sequence[Tensor]) -> Tensor:
    if len(squares) == 0:
        return torch.zeros((), dtype=torch.float64)
    device = squares[0].device  # rows are on the host, weights may not be
    return torch.stack([square.to(device) for square in squares]).sum().sqrt()


def _shrink(norm: Tensor, clip_norm: float) -> Tensor:
    # clip / norm is 0 for an infinite norm, and 0 · inf would hide it in some elements only: all must show it.
    factor = torch.where(norm > clip_norm, clip_norm / norm, torch.ones_like(norm))
    return torch.where(torch.isfinite(norm), factor, torch.full_like(norm, float("nan")))


def clip_gradients(
    dense: Sequence[Tensor],
    sparse: Sequence[Tensor],
    config: ClippingConfig,
    step: int = 0,
    *,
    sparse_squares: Sequence[float] | None = None,
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Clip the gradients of a step by the rule of ``config``; without a rule they are returned as they are.

    Args:
        dense: Gradients of the weights.
        sparse: Gradients of rows, per table.
        config: The rule.
        step: The step about to be applied, for the warm-up.
        sparse_squares: Per table, the sum of squares of its gradients if it is known. Processes that share the rows
            give the sum over all of them.

    >>> dense, sparse = clip_gradients([torch.ones(1)], [torch.ones(3)], ClippingConfig(clip_norm=1.0))
    >>> dense[0].tolist(), sparse[0].tolist()
    ([0.5], [0.5, 0.5, 0.5])
    """
    bound = config.clip_norm
    if bound is None or config.clip_type is GradClipType.NoClip:
        return dense, sparse
    if config.clip_type is GradClipType.ClipByValue:
        return [clip_by_value(g, bound) for g in dense], [clip_by_value(g, bound) for g in sparse]
    if sparse_squares is None:
        squares = [_sum_squares(each) for each in sparse]
    else:
        squares = [torch.tensor(each, dtype=torch.float64) for each in sparse_squares]
    if config.clip_type is GradClipType.ClipByNorm:
        rows = [
            clip_by_global_norm([each], bound, square.sqrt())[0] for each, square in zip(sparse, squares, strict=True)
        ]
        return [clip_by_norm(g, bound) for g in dense], rows
    if config.clip_type is GradClipType.ClipByDenseAndSparse:
        clipped = list(sparse)
        if config.sparse_clip_norm is not None:
            clipped = clip_by_global_norm(sparse, config.sparse_clip_norm, _norm_of(squares))
        return clip_by_global_norm(dense, bound), clipped
    sparse_bound = bound if config.sparse_clip_norm is None else config.sparse_clip_norm
    if config.sparse_norm_warmup_steps is not None:
        sparse_bound *= min(1.0, step / config.sparse_norm_warmup_steps)
    norm = _norm_of([*map(_sum_squares, dense), *squares])
    return clip_by_global_norm(dense, bound, norm), clip_by_global_norm(sparse, sparse_bound, norm)


def zero_small_features(
    gradients: Mapping[str, Tensor],
    features: Mapping[str, Tensor],
    threshold: float,
    names: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Zero the gradients of checked features whose embedding has a norm of at most ``threshold``.

    Checked are the features in ``names``; with no names, those with ``uue`` in theirs.

    >>> out = zero_small_features({"a": torch.ones(1)}, {"a": torch.zeros(1)}, 0.5, ["a"])
    >>> out["a"].item()
    0.0
    """
    check_number("threshold", threshold, at_least=0.0)
    kept = dict(gradients)
    for name in gradients:
        if name in names or (not names and "uue" in name):
            if name not in features:
                raise ConfigError(f"feature {name!r} has a gradient but no embedding; give both under the same name")
            is_large = global_norm([features[name]]) > threshold
            kept[name] = torch.where(is_large, gradients[name], torch.zeros_like(gradients[name]))
    return kept


def add_weight_decay(gradients: Sequence[Tensor], weights: Sequence[Tensor], decay: float) -> list[Tensor]:
    """Return gradient + decay · weight for each pair; it belongs after clipping.

    >>> add_weight_decay([torch.zeros(1)], [torch.ones(1)], 0.5)[0].item()
    0.5
    """
    check_number("decay", decay, at_least=0.0)
    if decay == 0:
        return list(gradients)
    return [gradient + decay * weight.detach() for gradient, weight in zip(gradients, weights, strict=True)]

"""One training step: forward, loss, backward, clipping, and what is applied to the dense weights and to the rows.

Nothing is applied when the loss is not finite. When things happen, and how late, is decided in ``pipeline``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from monolith import _native
from monolith.core.errors import ConfigError, SchemaMismatch, TrainingDiverged
from monolith.features import Embedder, Model, PulledBatch
from monolith.features.autograd import Embedded, embed
from monolith.layers.clipping import ClippingConfig, GradClipType, add_weight_decay, clip_gradients
from monolith.training.heads import Heads, compute_losses

__all__ = ["Gradients", "Stepper", "newest_time_s"]


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """What one step learnt, clipped, ready to be applied."""

    step: int
    """The step's number, from 0."""
    time_s: int
    """Newest event time of the batch."""
    plan: _native.StepPlan
    dense: list[tuple[torch.nn.Parameter, Tensor]]
    sparse: Sequence[Tensor]


class Stepper:
    """Computes and applies the steps of one model."""

    def __init__(
        self,
        model: Model,
        embedder: Embedder,
        optimizers: Mapping[str, torch.optim.Optimizer],
        clipping: ClippingConfig,
        *,
        weight_decay: float = 0.0,
        device: str = "cpu",
    ) -> None:
        self.model = model
        self.embedder = embedder
        self.optimizers = optimizers
        self._clipping = clipping
        self._weight_decay = weight_decay
        self._device = torch.device(device)

    def compute(self, pulled: PulledBatch, step: int) -> tuple[Heads, Gradients]:
        """Run forward and backward of one batch.

        Raises:
            TrainingDiverged: A loss or a gradient is not finite; nothing was changed.
            ConfigError: No head has a loss.
            SchemaMismatch: The batch has fewer labels than the model declares.
        """
        heads, embedded = self._learn(pulled, step)
        weights = [weight for weight in self.model.parameters() if weight.grad is not None]
        rows = [each.grad if each.grad is not None else torch.zeros_like(each) for each in embedded.rows]
        grads = [each.grad for each in weights if each.grad is not None]
        dense, sparse = self._bounded(weights, grads, rows, embedded.squares, step)
        return heads, Gradients(step, newest_time_s(pulled), pulled.plan, dense, sparse)

    def _learn(self, pulled: PulledBatch, step: int) -> tuple[Heads, Embedded]:
        """Run forward and backward: the gradients are in the weights and in the rows of what is returned."""
        self._check_labels(pulled)
        embedded = embed(self.embedder, pulled, device=self._device)
        heads = compute_losses(self.model, self.model(embedded.batch), embedded.batch)
        if heads.loss is None:
            names = ", ".join(heads.outputs)
            raise ConfigError(f"no head ({names}) has a loss; give Output a label with logits, or loss=")
        if not math.isfinite(heads.loss.item()):
            raise TrainingDiverged(_which_diverged(heads, step))
        self._forget_gradients()
        self._objective(heads).backward()  # type: ignore[no-untyped-call]
        return heads, embedded

    def _forget_gradients(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    def _objective(self, heads: Heads) -> Tensor:
        """What the gradients are of."""
        assert heads.loss is not None  # the caller has looked
        return heads.loss

    def _check_labels(self, pulled: PulledBatch) -> None:
        wanted, found = self.embedder.declaration.labels, pulled.batch.label.shape[1]
        if found < wanted:
            raise SchemaMismatch(
                f"the batch has {found} labels per row, the model declares {wanted}; read the data with "
                "schema=model.declaration.schema(), or declare them: super().__init__(labels=...)"
            )

    def _bounded(
        self,
        weights: list[torch.nn.Parameter],
        grads: list[Tensor],
        rows: list[Tensor],
        squares: Sequence[float],
        step: int,
    ) -> tuple[list[tuple[torch.nn.Parameter, Tensor]], list[Tensor]]:
        """Return what is to be applied to the weights and to the rows: clipped, and the weights decayed."""
        dense, sparse = self._clipped(grads, rows, squares, step)
        dense = add_weight_decay(dense, weights, self._weight_decay)
        return list(zip(weights, dense, strict=True)), sparse

    def _clipped(
        self, dense: list[Tensor], sparse: list[Tensor], squares: Sequence[float], step: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Clip by the rule; nearly always there is nothing to do, and then nothing is copied."""
        norms = torch._foreach_norm(dense) if dense else []
        total = math.fsum(squares) + sum(float(norm) ** 2 for norm in norms)
        if not math.isfinite(total):
            raise TrainingDiverged(f"step {step + 1}: {self._which_gradients(squares)} not finite, though the loss is")
        rule = self._clipping
        if rule.clip_type is GradClipType.ClipByGlobalNorm and rule.clip_norm is not None:
            bound = min(rule.clip_norm, math.inf if rule.sparse_clip_norm is None else rule.sparse_clip_norm)
            if rule.sparse_norm_warmup_steps:
                bound *= min(1.0, step / rule.sparse_norm_warmup_steps)
            if math.sqrt(total) <= bound:
                return dense, sparse
        return self._clip(dense, sparse, squares, step)

    def _clip(
        self, dense: list[Tensor], sparse: list[Tensor], squares: Sequence[float], step: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        return clip_gradients(dense, sparse, self._clipping, step)

    def _which_gradients(self, squares: Sequence[float]) -> str:
        tables = self.embedder.declaration.tables
        bad = [
            f"of rows of {table!r}" for table, square in zip(tables, squares, strict=False) if not math.isfinite(square)
        ]
        bad += [
            f"of weight {name!r}"
            for name, weight in self.model.named_parameters()
            if weight.grad is not None and not bool(torch.isfinite(weight.grad).all())
        ]
        return f"the gradient {' and '.join(bad)} is" if bad else "the norm of the gradients is"

    def apply_dense(self, gradients: Gradients) -> None:
        """Update the dense weights."""
        self._forget_gradients()  # when this is late, those of a later step are there
        for weight, gradient in gradients.dense:
            weight.grad = gradient
        for optimizer in self.optimizers.values():
            optimizer.step()

    def apply_sparse(self, gradients: Gradients) -> None:
        """Push the gradients of the rows."""
        grads = [each.numpy() for each in gradients.sparse]
        self.embedder.push(gradients.plan, grads, time_s=gradients.time_s, step=gradients.step)

    @torch.no_grad()
    def predict(self, pulled: PulledBatch) -> Heads:
        """Run forward only."""
        embedded = embed(self.embedder, pulled, device=self._device, needs_grad=False)
        return compute_losses(self.model, self.model(embedded.batch), embedded.batch)


def newest_time_s(pulled: PulledBatch) -> int:
    """Return the newest event time of a batch; 0 of an empty one."""
    times = pulled.batch.event_time_s
    return int(times.max()) if len(times) else 0


def _which_diverged(heads: Heads, step: int) -> str:
    bad = {name: loss.item() for name, loss in heads.losses.items() if not math.isfinite(loss.item())}
    what = ", ".join(f"{name} = {value}" for name, value in bad.items()) or "their sum"
    return f"step {step + 1}: the loss is not finite ({what})"

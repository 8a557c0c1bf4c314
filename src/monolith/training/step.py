"""One training step: forward, loss, backward, clipping, and the updates of the dense weights and of the rows.

A step whose loss is not finite changes nothing. ``pipeline`` decides when the parts of a step happen; a ``Group``
combines the gradients of several processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from monolith.core.errors import ConfigError, SchemaMismatch, TrainingDiverged
from monolith.data import Batch
from monolith.features import Embedder, Model, PulledBatch
from monolith.features.autograd import embed
from monolith.features.declaration import Declaration
from monolith.layers.clipping import (
    ClippingConfig,
    GradClipType,
    add_weight_decay,
    clip_gradients,
    zero_small_features,
)
from monolith.training.finite_inputs import describe_not_finite
from monolith.training.groups import Group, Solo
from monolith.training.groups.base import GroupGradients, LocalGradients, RowGradients
from monolith.training.heads import NO_HEADS, Heads, StepTotals, compute_losses, weighted_loss
from monolith.training.kept_buffers import KeptBuffers

__all__ = ["ComputedStep", "Gradients", "SmallRows", "Stepper", "newest_time_s"]


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """The gradients of one step, clipped, ready to be applied."""

    step: int
    """The step's number, from 0."""
    dense: list[tuple[torch.nn.Parameter, Tensor]]
    sparse: Sequence[Tensor]
    rows: RowGradients
    """The rows that ``sparse`` belongs to."""


@dataclass(frozen=True, slots=True, eq=False)
class ComputedStep:
    """One step before its updates."""

    heads: Heads
    gradients: Gradients
    totals: StepTotals


@dataclass(frozen=True, slots=True, eq=False)
class _PlannedRows:
    """The row gradients of one batch, pushed to the embedder that pulled the rows."""

    embedder: Embedder
    pulled: PulledBatch
    grads: Sequence[Tensor]

    def push(self, clipped: Sequence[Tensor], *, step: int) -> None:
        """Push the gradients, if the batch has ids."""
        if self.pulled.plan.occurrences:
            self.embedder.push(self.pulled, clipped, time_s=newest_time_s(self.pulled), step=step)


class SmallRows:
    """Zeroes the row gradients of features whose rows in a batch are small: the gradient check of the original.

    The norm is that over the rows of all ids of a feature in the batch, each once.

    Args:
        declaration: The features of the model.
        threshold: Gradients pass if the norm is above it.
        features: The checked features; empty = those with ``uue`` in their names.

    Raises:
        ConfigError: A feature is unknown or shares its rows with an unchecked one, or no feature is checked.
    """

    def __init__(self, declaration: Declaration, threshold: float, features: Sequence[str] = ()) -> None:
        known = declaration.features
        checked = set(features) or {name for name in known if "uue" in name}
        if unknown := sorted(checked - known.keys()):
            raise ConfigError(f"ue_fc_names has {unknown[0]!r}, expected features of the model: {', '.join(known)}")
        if not checked:
            raise ConfigError(
                "ue_fc_names is empty and no feature has 'uue' in its name, expected a feature for "
                "ue_euclidean_norm_threshold; name one in ue_fc_names"
            )
        tables = {known[name].table for name in checked}
        for name, feature in known.items():
            if feature.table in tables and name not in checked:
                raise ConfigError(
                    f"feature {name!r} shares the rows of table {feature.table!r} with a checked feature; add it to "
                    "ue_fc_names"
                )
        self._tables = list(declaration.tables)
        self._checked = sorted(tables)
        self._threshold = threshold

    def zero(
        self, rows: Sequence[Tensor], grads: Sequence[Tensor], squares: Sequence[float]
    ) -> tuple[list[Tensor], list[float]]:
        """Return the gradients and their sums of squares, per table, with zeros for checked tables of small rows."""
        by_table = dict(zip(self._tables, grads, strict=True))
        held = {table: each.detach() for table, each in zip(self._tables, rows, strict=True)}
        kept = zero_small_features(by_table, held, self._threshold, self._checked)
        sums = [
            square if kept[table] is by_table[table] or bool(kept[table].any()) else 0.0
            for table, square in zip(self._tables, squares, strict=True)
        ]
        return list(kept.values()), sums


class Stepper:
    """Computes and applies the steps of one model.

    Args:
        model: The model.
        embedder: Gives the rows of a batch, and takes their gradients.
        optimizers: Dense optimizers by label.
        clipping: The rule for gradients.
        group: The processes that take each step together; None = this process alone.
        weight_decay: The share of each weight that is added to its gradient.
        reduce_mean: Divide the dense gradients by the examples of the step, of all members together.
        small_rows: Zeroes the row gradients of features with small rows; None = no check.
        device: Device of the model.
    """

    def __init__(
        self,
        model: Model,
        embedder: Embedder,
        optimizers: Mapping[str, torch.optim.Optimizer],
        clipping: ClippingConfig,
        *,
        group: Group | None = None,
        weight_decay: float = 0.0,
        reduce_mean: bool = False,
        small_rows: SmallRows | None = None,
        device: str = "cpu",
    ) -> None:
        self.model = model
        self.embedder = embedder
        self.optimizers = optimizers
        self.device = torch.device(device)
        self._clipping = clipping
        self._group = group or Solo()
        self._weight_decay = weight_decay
        self._reduce_mean = reduce_mean
        self._small_rows = small_rows
        self._buffers = KeptBuffers(model)

    def compute(self, pulled: PulledBatch, step: int) -> ComputedStep:
        """Run forward and backward of one batch, and combine the gradients of the group.

        Raises:
            TrainingDiverged: A loss or a gradient of a member is not finite; nothing was changed.
            GroupClosed: No member of the group has an example left.
            ConfigError: No head has a loss.
            SchemaMismatch: The batch has fewer labels than the model declares.
        """
        share = self._group.begin_step(pulled, self)
        self._buffers.keep()
        try:
            local = self._learn(pulled, step, share)
            combined = self._group.combine(local)
            dense, sparse = self._bound(combined, step)
        except BaseException:
            self._buffers.restore()
            raise
        self._buffers.release()
        return ComputedStep(local.heads, Gradients(step, dense, sparse, combined.rows), combined.totals)

    def _learn(self, pulled: PulledBatch, step: int, share: float) -> LocalGradients:
        """Return the gradients of this process, or its failure for the group to raise."""
        heads, loss, failures = NO_HEADS, 0.0, list[TrainingDiverged]()
        rows: Sequence[Tensor] | None = None
        squares: Sequence[float] = ()
        if pulled.batch.size or not self._group.is_lockstep:
            try:
                heads, loss, squares, rows = self._run_backward(pulled, step, share)
            except TrainingDiverged as error:
                failures.append(error)
            else:
                if self._small_rows is not None and rows is not None:
                    rows, squares = self._small_rows.zero(pulled.rows, rows, squares)
        else:
            self._clear_gradients()
        if rows is None:
            rows = [torch.zeros_like(each) for each in pulled.rows]
            squares = [0.0] * len(rows)
        return LocalGradients(
            step=step,
            pulled=pulled,
            heads=heads,
            loss=loss,
            weights=list(self.model.parameters()),
            rows=_PlannedRows(self.embedder, pulled, rows),
            squares=squares,
            failures=failures,
        )

    def _run_backward(
        self, pulled: PulledBatch, step: int, share: float
    ) -> tuple[Heads, float, Sequence[float], Sequence[Tensor] | None]:
        """Run forward and backward; the gradients of the weights are in the weights.

        The loss is checked after ``backward``, so that forward and backward do not wait for a GPU.

        Returns:
            The heads, the loss that was differentiated, the sums of squares per table, and the gradients of the rows;
            None when no row has a part in the loss.
        """
        self._check_labels(pulled)
        embedded = embed(self.embedder, pulled, device=self.device)
        heads = compute_losses(self.model, self.model(embedded.batch), embedded.batch)
        if heads.loss is None:
            names = ", ".join(heads.outputs)
            raise ConfigError(f"no head ({names}) has a loss; give Output a label with logits, or loss=")
        self._clear_gradients()
        loss = weighted_loss(heads, share)
        loss.backward()  # type: ignore[no-untyped-call]
        total, own, *squares = _fetch(heads.loss, loss, embedded.squares)
        if not math.isfinite(total):
            raise TrainingDiverged(_which_diverged(heads, step, pulled.batch))
        return heads, own, squares, embedded.gradients

    def _clear_gradients(self) -> None:
        for optimizer in self.optimizers.values():  # not by zero_grad, which takes longer than some operators
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    weight.grad = None

    def _check_labels(self, pulled: PulledBatch) -> None:
        declared, labels = self.embedder.declaration.labels, pulled.batch.label.shape[1]
        if labels < declared:
            raise SchemaMismatch(
                f"the batch has {labels} labels per row, expected the {declared} that the model declares; read the "
                "data with schema=model.declaration.schema(), or declare them: super().__init__(labels=...)"
            )

    def _bound(
        self, combined: GroupGradients, step: int
    ) -> tuple[list[tuple[torch.nn.Parameter, Tensor]], Sequence[Tensor]]:
        """Return the gradients of weights and rows, clipped, with weight decay."""
        weights, squares = combined.weights, combined.squares
        grads = self._scale(combined.grads, combined.totals.samples)
        dense, sparse = self._clip(grads, combined.rows.grads, squares, step)
        dense = add_weight_decay(dense, weights, self._weight_decay)
        return list(zip(weights, dense, strict=True)), sparse

    def _scale(self, grads: Sequence[Tensor], samples: int) -> Sequence[Tensor]:
        """Return the dense gradients of the group: their sum over all examples, or their mean."""
        return [each / max(1, samples) for each in grads] if self._reduce_mean else grads

    def _clip(
        self, dense: Sequence[Tensor], sparse: Sequence[Tensor], squares: Sequence[float], step: int
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Clip by the rule. Nearly always the norm is within its bound, and nothing is copied."""
        total = math.fsum(squares) + _sum_squares(dense)
        if not math.isfinite(total):  # or the squares of finite numbers are too large for 32 bits
            total = math.fsum(squares) + _sum_squares(dense, torch.float64)
        if not math.isfinite(total):
            raise TrainingDiverged(
                f"step {step + 1}: {self._which_gradients(squares)} not finite, and the loss is finite"
            )
        rule = self._clipping
        if rule.clip_type is GradClipType.ClipByGlobalNorm and rule.clip_norm is not None:
            bound = min(rule.clip_norm, math.inf if rule.sparse_clip_norm is None else rule.sparse_clip_norm)
            if rule.sparse_norm_warmup_steps:
                bound *= min(1.0, step / rule.sparse_norm_warmup_steps)
            if math.sqrt(total) <= bound:
                return dense, sparse
        return clip_gradients(dense, sparse, rule, step, sparse_squares=squares)

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
        self._clear_gradients()  # in a late update, weights hold the gradients of a later step
        for weight, gradient in gradients.dense:
            weight.grad = gradient
        for optimizer in self.optimizers.values():
            optimizer.step()

    def apply_sparse(self, gradients: Gradients) -> None:
        """Push the gradients of the rows."""
        gradients.rows.push(gradients.sparse, step=gradients.step)

    @torch.no_grad()
    def predict(self, pulled: PulledBatch) -> Heads:
        """Run forward only."""
        embedded = embed(self.embedder, pulled, device=self.device, needs_grad=False)
        return compute_losses(self.model, self.model(embedded.batch), embedded.batch)

    @torch.no_grad()
    def shape_weights(self, pulled: PulledBatch) -> None:
        """Give lazily shaped weights their shape; running statistics and random numbers do not change."""
        was_training = self.model.training
        self.model.eval()
        try:
            self.model(embed(self.embedder, pulled, device=self.device, needs_grad=False).batch)
        finally:
            self.model.train(was_training)


def _sum_squares(tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> float:
    norms = _fetch(*torch._foreach_norm(list(tensors), 2, dtype)) if tensors else []
    return sum(norm**2 for norm in norms)


def _fetch(*numbers: Tensor | Sequence[float]) -> list[float]:
    """Return all numbers in host memory, by one transfer per GPU."""
    remote: dict[torch.device, list[Tensor]] = {}
    for each in numbers:
        if isinstance(each, Tensor) and not each.is_cpu:
            remote.setdefault(each.device, []).append(each.detach().reshape(-1))
    moved = {device: iter(torch.split(torch.cat(each).cpu(), [*map(len, each)])) for device, each in remote.items()}
    found: list[float] = []
    for each in numbers:
        if isinstance(each, Tensor):
            found += (each.reshape(-1) if each.is_cpu else next(moved[each.device])).tolist()
        else:
            found += each
    return found


def newest_time_s(pulled: PulledBatch) -> int:
    """Return the newest event time of a batch; 0 of an empty one."""
    times = pulled.batch.event_time_s
    return int(times.max()) if len(times) else 0


def _which_diverged(heads: Heads, step: int, batch: Batch) -> str:
    bad = {name: loss.item() for name, loss in heads.losses.items() if not math.isfinite(loss.item())}
    what = ", ".join(f"{name} = {value}" for name, value in bad.items()) or "their sum"
    if inputs := describe_not_finite(batch):
        what = f"{what}; {inputs}"
    return f"step {step + 1}: the loss is not finite ({what})"

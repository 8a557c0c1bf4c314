"""Losses and predictions of a model's heads, and the values that hooks and metrics get of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.data import Batch
from monolith.features import Output
from monolith.layers import layer_losses
from monolith.layers.losses import delayed_feedback_loss, sigmoid_loss_and_pred
from monolith.training.run import HeadResult, Mark, StepResult, no_position

__all__ = ["NO_HEADS", "Heads", "StepTotals", "compute_losses", "weighted_loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Counts of one step: of this process, or of all ranks that step together."""

    loss: float = 0.0
    """The sum over all examples."""
    samples: int = 0
    ids: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """The outputs of one batch with their losses."""

    loss: Tensor | None
    """The sum of all losses; None when no head has one."""
    losses: Mapping[str, Tensor]
    """Loss of each head that has one, and of each layer that adds one."""
    predictions: Mapping[str, Tensor]
    outputs: Mapping[str, Output]
    masks: Mapping[str, Tensor | None]
    weights: Mapping[str, Tensor]

    def totals(self, batch: Batch, *, ids: int = 0) -> StepTotals:
        """Return the counts of the batch of these heads."""
        return StepTotals(loss=0.0 if self.loss is None else self.loss.item(), samples=batch.size, ids=ids)

    def step_result(self, batch: Batch, totals: StepTotals, *, step: int, mark: Mark = no_position) -> StepResult:
        """Return the result of a step, as hooks and metrics get it. The call waits for a GPU."""
        return StepResult(
            step=step,
            loss=totals.loss / max(1, totals.samples),
            heads=self.results(),
            batch=batch,
            samples=totals.samples,
            ids=totals.ids,
            mark=mark,
        )

    def results(self) -> dict[str, HeadResult]:
        """Return the result of each head, as NumPy arrays."""
        return {name: self._result(name) for name in self.outputs}

    def _result(self, name: str) -> HeadResult:
        output, mask = self.outputs[name], self.masks[name]
        return HeadResult(
            name=name,
            predictions=_array(self.predictions[name]),
            label=None if output.label is None else _array(output.label),
            mask=None if mask is None else _array(mask),
            weight=_array(self.weights[name]),
            is_classification=output.is_classification,
        )


NO_HEADS = Heads(loss=None, losses={}, predictions={}, outputs={}, masks={}, weights={})
"""The heads of a process without an example."""


def weighted_loss(heads: Heads, share: float) -> Tensor:
    """Return the loss to differentiate: the losses of the heads, and a share of those of the layers.

    Layer losses exist once per step, so each of several processes counts a share of them.
    """
    if share == 1.0 and heads.loss is not None:
        return heads.loss
    losses = [loss if name in heads.outputs else loss * share for name, loss in heads.losses.items()]
    return torch.stack(losses).sum()


def compute_losses(model: nn.Module, outputs: Output | Sequence[Output], batch: Batch) -> Heads:
    """Compute the loss and the predictions of every head.

    Args:
        model: The model, for the losses of its layers.
        outputs: The return value of its ``forward``.
        batch: The batch that ``forward`` got.

    Raises:
        ConfigError: ``forward`` returned another type, two heads of one name, or shapes that do not fit.
    """
    heads = [outputs] if isinstance(outputs, Output) else outputs
    if not isinstance(heads, list | tuple) or not all(isinstance(each, Output) for each in heads):
        raise ConfigError(f"forward returned {type(outputs).__name__}; return a monolith.Output, or a list of them")
    losses: dict[str, Tensor] = {}
    predictions, by_name, masks, weights = {}, {}, {}, {}
    for output in heads:
        if output.head in by_name:
            raise ConfigError(f"two heads are called {output.head!r}; give each Output its own head=")
        by_name[output.head] = output
        mask = masks[output.head] = _mask(output, batch)
        weight = weights[output.head] = batch.weight if output.weight is None else output.weight
        loss, predictions[output.head] = _head_loss(output, batch, mask, weight)
        if loss is not None:
            losses[output.head] = loss
    if losses:
        losses |= layer_losses(model)
    loss = torch.stack(list(losses.values())).sum() if losses else None
    return Heads(loss, losses, predictions, by_name, masks, weights)


def _head_loss(output: Output, batch: Batch, mask: Tensor | None, weight: Tensor) -> tuple[Tensor | None, Tensor]:
    _check_shapes(output, batch.size)
    loss, predictions = None, output.predictions
    if output.loss is not None:
        loss = _reduce_loss(output, output.loss, mask, weight)
    elif output.logits is None or output.label is None:
        pass
    elif output.delayed_feedback is not None:
        loss = delayed_feedback_loss(
            output.logits,
            output.label,
            batch.sample_rate,
            method=output.delayed_feedback,
            instance_weight=weight,
            mask=mask,
        )
    else:
        loss, of_logits = sigmoid_loss_and_pred(
            output.logits, output.label, batch.sample_rate, instance_weight=weight, mask=mask
        )
        predictions = of_logits if predictions is None else predictions
    if predictions is not None:
        return loss, predictions
    assert output.logits is not None
    return loss, torch.sigmoid(output.logits)


def _check_shapes(output: Output, size: int) -> None:
    """Refuse columns where vectors belong: torch would broadcast the two to (B, B) silently."""
    for field in ("logits", "predictions", "label", "mask", "weight"):
        value: Tensor | None = getattr(output, field)
        if value is not None and value.shape != (size,):
            raise ConfigError(
                f"{field} of head {output.head!r} has shape {tuple(value.shape)} for a batch of {size}; "
                "give one number per example, e.g. tower(x).squeeze(1) or batch.label[:, 0]"
            )


def _reduce_loss(output: Output, loss: Tensor, mask: Tensor | None, weight: Tensor) -> Tensor:
    if loss.dim() == 0:
        return loss
    if loss.shape != weight.shape:
        raise ConfigError(
            f"head {output.head!r} has a loss of shape {tuple(loss.shape)}; give a scalar or {tuple(weight.shape)}"
        )
    if mask is not None:
        loss = torch.where(mask.to(torch.bool), loss, torch.zeros_like(loss))
    return (loss * weight).sum()


def _mask(output: Output, batch: Batch) -> Tensor | None:
    """Return the head's mask; or, when its label is a column of the batch's labels, the mask of that column."""
    if output.mask is not None or output.label is None:
        return output.mask
    labels: Tensor = batch.label
    if output.label.untyped_storage().data_ptr() != labels.untyped_storage().data_ptr() or not labels.numel():
        return None
    column = (output.label.storage_offset() - labels.storage_offset()) % labels.shape[1]
    if output.label.shape != labels[:, column].shape:
        raise SchemaMismatch(
            f"head {output.head!r} has a label of shape {tuple(output.label.shape)}; take one column, batch.label[:, 0]"
        )
    mask: Tensor = batch.label_mask[:, column]
    return mask


def _array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy()

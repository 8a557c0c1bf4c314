"""``EstimatorSpec``: the result of a ``model_fn``; ``outputs_of`` turns each form of result into ``Output`` objects."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from monolith.compat.tasks.base_task import Mode
from monolith.core.errors import ConfigError
from monolith.features import Output

__all__ = ["EstimatorSpec", "outputs_of"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class EstimatorSpec:
    """Result of a ``model_fn``: labels, predictions and the loss of all heads.

    ``label``, ``pred``, ``head_name`` and ``classification`` are lists for several heads. A mapping ``pred`` has the
    names of its heads as keys; ``label`` is then a mapping too, or None.
    """

    label: Any = None
    """(B,) per head; None = no metrics."""
    pred: Any = None
    """(B,) per head."""
    head_name: str | Sequence[str] | None = None
    """Names of the heads; None = ``metrics.deep_insight_target``, split at commas."""
    loss: Tensor | None = None
    """Loss of all heads together; a vector is summed. Training needs it."""
    optimizer: None = None
    """Always None: a run has ``dense_optimizer``, and a layer may have its own ``optimizer``."""
    classification: bool | Sequence[bool] = True
    """Whether the predictions of a head are probabilities."""


def outputs_of(
    result: Any, *, mode: Mode, default_heads: str, extra: Mapping[str, Tensor] | None = None
) -> list[Output]:
    """Return the outputs of a ``model_fn``.

    Args:
        result: An ``EstimatorSpec``, a tuple (label, loss, pred), an ``Output``, or a list of outputs.
        mode: Mode of the call.
        default_heads: Names of the heads that the result does not name, separated by commas.
        extra: Further outputs, which go to the first head.

    Raises:
        ConfigError: The result has another form, its lengths differ, or a training has no loss.
    """
    if isinstance(result, Output):
        outputs = [result]
    elif isinstance(result, EstimatorSpec):
        outputs = _outputs_of_spec(result, mode, default_heads)
    elif isinstance(result, tuple) and len(result) == 3:
        label, loss, pred = result
        outputs = _outputs_of_spec(EstimatorSpec(label=label, pred=pred, loss=loss), mode, default_heads)
    elif isinstance(result, list) and result and all(isinstance(each, Output) for each in result):
        outputs = result
    else:
        raise ConfigError(
            f"model_fn returned {type(result).__name__}, expected an EstimatorSpec, a tuple (label, loss, pred), an "
            "Output or a list of outputs"
        )
    if extra:
        outputs = [replace(outputs[0], extra={**outputs[0].extra, **extra}), *outputs[1:]]
    return outputs


def _outputs_of_spec(spec: EstimatorSpec, mode: Mode, default_heads: str) -> list[Output]:
    if spec.optimizer is not None:
        raise ConfigError(
            f"EstimatorSpec.optimizer is {spec.optimizer!r}, expected None; set dense_optimizer of the run, or the "
            "optimizer of a layer"
        )
    if mode == "train" and spec.loss is None:
        raise ConfigError("EstimatorSpec.loss is None in mode 'train', expected a tensor; return the loss")
    names, preds, labels = _heads(spec, default_heads)
    count = len(names)
    kinds = list(spec.classification) if isinstance(spec.classification, Sequence) else [spec.classification] * count
    for field, values in (("pred", preds), ("label", labels), ("classification", kinds)):
        if len(values) != count:
            raise ConfigError(
                f"EstimatorSpec.{field} has {len(values)} values, expected {count}, one for each head of "
                f"{', '.join(names)}; set head_name"
            )
    loss = None if spec.loss is None or mode == "predict" else spec.loss.sum()
    return [
        Output(
            head=name,
            predictions=_vector(pred),
            label=None if label is None else _vector(label),
            is_classification=kind,
            loss=loss if number == 0 else None,
        )
        for number, (name, pred, label, kind) in enumerate(zip(names, preds, labels, kinds, strict=True))
    ]


def _heads(spec: EstimatorSpec, default_heads: str) -> tuple[list[str], list[Any], list[Any]]:
    """Return the names, predictions and labels of all heads."""
    if isinstance(spec.pred, Mapping):
        names = list(spec.pred)
        if spec.label is not None and not isinstance(spec.label, Mapping):
            raise ConfigError(
                f"EstimatorSpec.label is a {type(spec.label).__name__} and pred a mapping, expected a mapping of the "
                "same heads, or None"
            )
        labels = dict.fromkeys(names) if spec.label is None else dict(spec.label)
        if set(labels) != set(names):
            raise ConfigError(f"EstimatorSpec.label has the heads {sorted(labels)}, expected those of pred: {names}")
        return names, list(spec.pred.values()), [labels[name] for name in names]
    given = default_heads if spec.head_name is None else spec.head_name
    names = [each.strip() for each in given.split(",")] if isinstance(given, str) else list(given)
    if not isinstance(spec.pred, list | tuple):
        return names, [spec.pred], [spec.label]
    return names, list(spec.pred), [None] * len(spec.pred) if spec.label is None else list(spec.label)


def _vector(tensor: Tensor) -> Tensor:
    """Return a column (B, 1) as a vector (B,), which keeps its storage; any other shape stays."""
    return tensor[:, 0] if tensor.dim() == 2 and tensor.shape[1] == 1 else tensor

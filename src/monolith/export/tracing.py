"""Trace a model's ``forward`` as a function of tensors: layouts, dense inputs and batch columns to heads.

Layouts are inputs of the dense program, so tables are not part of it. Labels are inputs too; the conversion removes
them together with the losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from monolith.core.errors import ConfigError
from monolith.data import Batch, Ragged
from monolith.features import Declaration, EmbeddedBatch, Model, Output

__all__ = ["COLUMNS", "TracedModel", "input_names", "trace"]

COLUMNS = ("label", "label_mask", "weight", "sample_rate", "event_time_s", "uid")
"""Batch attributes that a program may read."""


class _Refused(Mapping[str, Any]):
    """Mapping that raises for batch content that an exported model cannot read."""

    def __init__(self, what: str, known: Mapping[str, Any], remedy: str) -> None:
        self._what, self._known, self._remedy = what, known, remedy

    def __getitem__(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        raise ConfigError(
            f"forward reads batch.{self._what}[{name!r}], which an export does not support; {self._remedy}"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@dataclass
class _Names:
    outputs: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)


class TracedModel(nn.Module):
    """Module whose ``forward`` maps the tensors of ``input_names`` to the predictions of heads and extra outputs."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.names = _Names()

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Compute all outputs; ``names`` has their names."""
        result = self.model(_batch_of(self.model.declaration, tensors))
        outputs = [result] if isinstance(result, Output) else list(result)
        found: dict[str, Tensor] = {}
        for output in outputs:
            _add(found, output.head, _predictions(output))
        heads = list(found)
        for output in outputs:
            for name, value in output.extra.items():
                _add(found, name, value)
        self.names = _Names(list(found), heads)
        return list(found.values())


def _predictions(output: Output) -> Tensor:
    if output.predictions is not None:
        return output.predictions
    assert output.logits is not None
    return torch.sigmoid(output.logits)


def _add(found: dict[str, Tensor], name: str, value: Tensor) -> None:
    if name in found:
        raise ConfigError(f"name of two outputs is {name!r}, expected unique names of heads and extra outputs")
    found[name] = value


def input_names(declaration: Declaration) -> list[str]:
    """Return the input names of the dense program, in order."""
    dense = [f"dense/{each.name}" for each in declaration.dense.values() if each.dtype != "bytes"]
    return [*(f"layout/{tensor.name}" for tensor in declaration.tensors()), *dense, *COLUMNS]


def _batch_of(declaration: Declaration, tensors: Sequence[Tensor]) -> EmbeddedBatch:
    """Return the batch for ``forward`` during tracing."""
    by_name = dict(zip(input_names(declaration), tensors, strict=True))
    layouts: dict[str, Any] = {}
    for name in sorted(declaration.layouts):
        layout = declaration.layouts[name]
        pieces = [by_name[f"layout/{tensor.name}"] for tensor in layout.tensors()]
        layouts[name] = pieces if layout.out is None and not layout.is_single else pieces[0]
    dense = {each: by_name[f"dense/{each}"] for each in declaration.dense if f"dense/{each}" in by_name}
    columns: dict[str, Any] = {name: by_name[name] for name in COLUMNS}
    size = columns["weight"].shape[0]
    nothing = Ragged.from_lists([])
    batch = Batch(
        size=size,
        ids=_Refused("ids", {}, "declare a slice of the feature and read that"),
        dense=_Refused("dense", dense, "only numbers can be inputs of the dense part, not byte strings"),
        actions=nothing,
        extras=_Refused("extras", {}, "make the field a dense feature of the records"),
        **columns,
    )
    return EmbeddedBatch.of(batch, layouts)


def trace(traced: TracedModel, samples: Sequence[Tensor]) -> torch.export.ExportedProgram:
    """Return the program of a model for batches of any size.

    Args:
        traced: The model.
        samples: Inputs of one batch with at least two rows.

    Raises:
        ConfigError: ``forward`` cannot be traced; the text has the reason.
    """
    weights: dict[str, Any] = dict(traced.model.named_parameters())
    waiting = [name for name, weight in weights.items() if is_lazy(weight)]
    if waiting:
        raise ConfigError(
            f"weights without a shape are {', '.join(waiting)}, expected none; train the model, or load a checkpoint "
            "first"
        )
    batch = torch.export.Dim("batch", min=1)
    try:
        return torch.export.export(traced, (list(samples),), dynamic_shapes=([{0: batch} for _ in samples],))
    except ConfigError:
        raise
    except Exception as error:  # torch raises many classes for an unsupported forward
        raise ConfigError(
            f"forward of {type(traced.model).__name__} cannot be exported: {_first_line(error)}; it must not depend on "
            "the values of tensors or on the size of the batch (torch.export has the rules)"
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

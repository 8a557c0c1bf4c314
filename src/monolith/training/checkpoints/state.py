"""The state of a run at one step boundary, and ``capture``: quick copies that another thread writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from monolith.core.errors import ConfigError
from monolith.embedding.store import EmbeddingStore, Manifest
from monolith.training.checkpoints import optimizer_states, random_states
from monolith.training.checkpoints.growth import columns_of

__all__ = ["Captured", "StoreCut", "CuttingStore", "TrainingState", "capture"]


@dataclass(kw_only=True)
class TrainingState:
    """Complete state of a run at one step boundary; training resumes from it."""

    step: int
    """Steps finished."""
    model: nn.Module
    optimizers: Mapping[str, torch.optim.Optimizer]
    store: EmbeddingStore
    data: Mapping[str, Any] | None = None
    """Data position, ``Dataset.state()``: JSON."""
    rng: bool = True
    """Whether the process-wide generators of torch, NumPy and Python belong to it."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """JSON."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """JSON."""


@runtime_checkable
class StoreCut(Protocol):
    """Tables as they were at one instant."""

    def write(self, path: str | PathLike[str]) -> Manifest:
        """Write the tables; once."""
        ...

    def drop(self) -> None:
        """Release the tables."""
        ...


@runtime_checkable
class CuttingStore(Protocol):
    """A store that can be written while it is trained."""

    def cut(self) -> StoreCut:
        """Take the tables as they are now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Copies of everything except the tables; later training does not change them."""

    dense: Mapping[str, Tensor]
    optimizer_tensors: Mapping[str, Tensor]
    optimizer_tree: Mapping[str, Any]
    state_json: bytes


def capture(state: TrainingState) -> Captured:
    """Copy a state as it is now.

    Raises:
        ConfigError: Something in it cannot be saved; the text names it.
    """
    tensors: dict[str, Tensor] = {}
    tree = {
        name: optimizer_states.encode(name, optimizer, state.model, tensors)
        for name, optimizer in state.optimizers.items()
    }
    body = {
        "step": state.step,
        "data": _checked_json("data", state.data),
        "metrics": _checked_json("metrics", state.metrics),
        "extra": _checked_json("extra", state.extra),
        "input_columns": columns_of(state.model),
        "rng": random_states.encode() if state.rng else None,
    }
    return Captured(
        dense=_copied_weights(state.model),
        optimizer_tensors=tensors,
        optimizer_tree=tree,
        state_json=json.dumps(body).encode(),
    )


def _copied_weights(model: nn.Module) -> dict[str, Tensor]:
    weights = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"{name} of the model is a {type(value).__name__}, and a checkpoint holds tensors; "
                "let get_extra_state return a tensor"
            )
        weights[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return weights


def _checked_json(field_name: str, value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"TrainingState.{field_name} cannot be saved: {error}; give plain JSON values") from error
    return value

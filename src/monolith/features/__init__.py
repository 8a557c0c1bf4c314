"""Features: a model's declaration of its inputs, and the path from ids to tensors and from gradients to rows.

``Model`` and ``Output`` need torch and are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.features.declaration import Declaration, EmbeddingFeature
from monolith.features.embedder import EmbeddedBatch, Embedder, HostEmbedder, PulledBatch
from monolith.features.id_transforms import IdTransform, QuotientRemainder
from monolith.features.layouts import Layout

if TYPE_CHECKING:
    from monolith.features.model import Model, Output

__all__ = [
    "Declaration",
    "EmbeddedBatch",
    "Embedder",
    "EmbeddingFeature",
    "HostEmbedder",
    "IdTransform",
    "Layout",
    "Model",
    "Output",
    "PulledBatch",
    "QuotientRemainder",
]


def __getattr__(name: str) -> Any:
    """Import ``Model`` and ``Output`` on first use."""
    if name not in ("Model", "Output"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from monolith.features import model

    return getattr(model, name)

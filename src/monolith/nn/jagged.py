"""Inputs of collections: a mapping of name to (values, offsets), or a ``KeyedJaggedTensor`` of TorchRec.

TorchRec is not imported: its classes are recognised by their methods, and results are built by the module of the input.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.nn.embedding import check_ids

__all__ = ["Ragged", "keyed_tensor", "read_ragged"]

Ragged: TypeAlias = Mapping[str, tuple[Tensor, Tensor]]
"""Feature name to (values, offsets); offsets have one number per bag and the number of ids at the end."""


def read_ragged(features: Any, names: Sequence[str]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the values and the offsets of every named feature.

    Raises:
        ConfigError: A feature is missing, or the input is of another kind.
        DimensionMismatch: Values or offsets have more than one dimension.
    """
    pairs = _read_keyed(features, names) if _is_keyed(features) else _read_mapping(features, names)
    for name, (values, offsets) in pairs.items():
        for what, each in ((f"values of {name!r}", values), (f"offsets of {name!r}", offsets)):
            check_ids(what, each)
            if each.dim() != 1:
                raise DimensionMismatch(f"{what} has shape {tuple(each.shape)}, expected (N,); give flat values")
    return [values for values, _ in pairs.values()], [offsets.long() for _, offsets in pairs.values()]


def keyed_tensor(features: Any, names: Sequence[str], rows: Sequence[Tensor]) -> Any:
    """Return pooled rows in the form of the input: TorchRec's ``KeyedTensor`` or a dict."""
    if not _is_keyed(features):
        return dict(zip(names, rows, strict=True))
    keyed = sys.modules[type(features).__module__].KeyedTensor
    return keyed(keys=list(names), length_per_key=[each.shape[1] for each in rows], values=torch.cat(list(rows), dim=1))


def _is_keyed(features: Any) -> bool:
    return hasattr(features, "offset_per_key") and hasattr(features, "stride")


def _read_mapping(features: Any, names: Sequence[str]) -> dict[str, tuple[Tensor, Tensor]]:
    if not isinstance(features, Mapping):
        raise ConfigError(
            f"features is a {type(features).__name__}, expected a mapping of name to (values, offsets) or a "
            "KeyedJaggedTensor"
        )
    missing = [name for name in names if name not in features]
    if missing:
        raise ConfigError(f"features lacks {missing[0]!r}; it has {', '.join(map(repr, features)) or 'none'}")
    for name in names:
        if not isinstance(features[name], tuple | list) or len(features[name]) != 2:
            raise ConfigError(f"feature {name!r} is a {type(features[name]).__name__}, expected (values, offsets)")
    return {name: features[name] for name in names}


def _read_keyed(features: Any, names: Sequence[str]) -> dict[str, tuple[Tensor, Tensor]]:
    keys = features.keys()
    missing = [name for name in names if name not in keys]
    if missing:
        raise ConfigError(f"features lacks {missing[0]!r}; it has {', '.join(map(repr, keys)) or 'none'}")
    if features.weights_or_none() is not None:
        raise ConfigError("features has weights, which collections do not read; use mt.nn.EmbeddingBag for weights")
    values, offsets, stride = features.values(), features.offsets(), features.stride()
    pairs = {}
    for name in names:
        place = keys.index(name)
        bounds = offsets[place * stride : (place + 1) * stride + 1]
        pairs[name] = (values[int(bounds[0]) : int(bounds[-1])], bounds - bounds[0])
    return pairs

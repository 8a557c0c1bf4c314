"""Nested Python values with tensors inside, as JSON and a flat mapping of tensors; exact both ways, and no pickle.

In the JSON form every object is ``{"dict" | "list" | "tuple" | "tensor": ...}``, so a value cannot be mistaken.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from monolith.core.errors import ConfigError, ManifestInvalid

__all__ = ["decode_tree", "encode_tree"]


def encode_tree(value: Any, path: str, tensors: MutableMapping[str, Tensor]) -> Any:
    """Return the JSON form of a value and put copies of its tensors into ``tensors``, by their path.

    >>> tensors = {}
    >>> encode_tree({"step": 3, 7: (True, torch.zeros(2))}, "adam", tensors)
    {'dict': [['step', 3], [7, {'tuple': [True, {'tensor': 'adam/7/1'}]}]]}
    >>> decode_tree(_, tensors)
    {'step': 3, 7: (True, tensor([0., 0.]))}

    Raises:
        ConfigError: It holds something else than numbers, text, containers and tensors.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        tensors[path] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        return {"tensor": path}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int):
                raise ConfigError(f"{path} has the key {key!r}, which no checkpoint can hold; use text or numbers")
        return {"dict": [[key, encode_tree(each, f"{path}/{key}", tensors)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [encode_tree(each, f"{path}/{index}", tensors) for index, each in enumerate(value)]}
    raise ConfigError(
        f"{path} is a {type(value).__name__}, which no checkpoint can hold; use numbers, text, lists, dicts or tensors"
    )


def decode_tree(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that ``encode_tree`` was given. Its tensors are those of ``tensors``, not copies."""
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    match kind:
        case "tensor":
            if content not in tensors:
                raise ManifestInvalid(f"the tensor {content!r} is missing from the checkpoint")
            return tensors[content]
        case "dict":
            return {key: decode_tree(each, tensors) for key, each in content}
        case "list":
            return [decode_tree(each, tensors) for each in content]
        case "tuple":
            return tuple(decode_tree(each, tensors) for each in content)
    raise ManifestInvalid(
        f"kind of a value is {kind!r}, expected dict, list, tuple or tensor; a newer release wrote the checkpoint"
    )

"""``save`` and ``load``: the rows of every table module inside a model."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import torch

from monolith.core.errors import ConfigError
from monolith.nn.module import TableModule

__all__ = ["load", "save"]


def save(module: torch.nn.Module, folder: str | PathLike[str]) -> None:
    """Write the rows of all table modules of ``module`` to a new folder.

    A ``state_dict`` taken afterwards refers to the folder, until the rows change again.

    Raises:
        ConfigError: The module has no tables, or the folder has a snapshot already.
    """
    for place, each in _table_modules(module, Path(folder)):
        each.save_rows(place)


def load(module: torch.nn.Module, folder: str | PathLike[str]) -> None:
    """Replace the rows of all table modules of ``module`` by those that ``save`` wrote.

    Raises:
        ArtifactError: A table module has no whole snapshot in the folder.
        SchemaMismatch: A table has another name or other slices in the snapshot.
    """
    for place, each in _table_modules(module, Path(folder)):
        each.load_rows(place)


def _table_modules(module: torch.nn.Module, folder: Path) -> Iterator[tuple[Path, TableModule]]:
    found = [(name, each) for name, each in module.named_modules() if isinstance(each, TableModule)]
    if not found:
        raise ConfigError(f"module is a {type(module).__name__} without table modules; give one that contains mt.nn")
    for name, each in found:
        yield folder / (name or "module"), each

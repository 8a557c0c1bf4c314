"""Growth of dense weights: the weights of a smaller model become part of a larger one.

``grow_weights`` keeps each weight that fits, pads each weight whose inputs became more, and leaves new weights at their
initial values. Models name the columns of their inputs (``Model.input_columns``), and checkpoints keep those names: a
new feature may stand anywhere among the old ones. A model without names gets its new columns at the end, with a
warning. ``Growth.pad`` treats the state of a dense optimizer as its weight.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from monolith.core.errors import SchemaMismatch
from monolith.data import Batch
from monolith.features import Model
from monolith.layers.kernel_norm import column_norms
from monolith.training.checkpoints.dense_weights import Aliases, has_lazy_weights

__all__ = ["Growth", "check_order", "columns_of", "grow_weights"]

logger = logging.getLogger(__name__)

_LEAST_LENGTH = 1e-3
"""Column length below which a normalised kernel stays zero; see ``normalized_kernel``."""

Columns = Sequence[Sequence[Any]]
"""Blocks of input columns from left to right: name and width each, as a tuple or as JSON has them."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The place of a saved weight in a larger one."""

    saved_shape: tuple[int, ...]
    old: tuple[Tensor, ...]
    """Positions in the saved weight, by axis."""
    new: tuple[Tensor, ...]
    """Positions in the model's weight, by axis, in the same order."""

    def pad(self, saved: Tensor, initial: Tensor) -> Tensor:
        """Return ``initial`` with the saved numbers at their places. Shapes: saved_shape -> that of ``initial``."""
        padded = initial.detach().to("cpu", copy=True)
        padded[torch.meshgrid(*self.new, indexing="ij")] = saved[torch.meshgrid(*self.old, indexing="ij")].to(
            padded.dtype
        )
        return padded


def columns_of(model: nn.Module) -> dict[str, list[list[Any]]]:
    """Return the names of a model's input columns in JSON form; empty for a model without names."""
    if not isinstance(model, Model):
        return {}
    return {module: [[name, width] for name, width in columns] for module, columns in model.input_columns().items()}


def check_order(model: nn.Module, saved_columns: Mapping[str, Columns] | None, path: Path) -> None:
    """Refuse a model that reads the columns of the checkpoint in another order: its weights would fit, and be wrong.

    Raises:
        SchemaMismatch: The order differs.
    """
    for module, now in columns_of(model).items():
        before = [list(block) for block in (saved_columns or {}).get(module, now)]
        if before == now:
            continue
        if sorted(before) == sorted(now):
            raise SchemaMismatch(
                f"the input columns of {module} are {_names(now)}, expected the order of '{path}': {_names(before)}; "
                "name the features in that order, or set clear_nn=True"
            )
        if _width(before) == _width(now):
            logger.warning("input columns changed module=%s saved=%s now=%s", module, _names(before), _names(now))


def _names(columns: Columns) -> str:
    return ", ".join(name for name, _ in columns)


def grow_weights(
    model: nn.Module,
    saved: Mapping[str, Tensor],
    alias_map: Mapping[str, str] | None,
    path: Path,
    saved_columns: Mapping[str, Columns] | None,
) -> tuple[dict[str, Tensor], Aliases, dict[str, Growth]]:
    """Return the argument of ``model.load_state_dict`` and the growth of each padded weight, by the model's names.

    Args:
        model: The model; its weights are not changed.
        saved: Weights of the checkpoint.
        alias_map: New names to old names of weights.
        path: Folder of the checkpoint, for errors.
        saved_columns: Names of the input columns of the checkpoint; None = of a release that did not save them.

    Raises:
        SchemaMismatch: A weight has other axes or another width of its outputs, the order of the columns differs, or
            the checkpoint has no names of its columns.
    """
    check_order(model, saved_columns, path)
    _give_shapes(model)
    current = model.state_dict()
    aliases = Aliases(alias_map, current, saved)
    columns = {module: (saved_columns or {}).get(module) for module in columns_of(model)}
    if columns and saved_columns is None and _changed(current, aliases, saved):
        raise SchemaMismatch(
            f"the checkpoint '{path}' has no names of input columns, expected those of this release; save it once with "
            "the old features, or set clear_nn=True"
        )
    weights: dict[str, Tensor] = {}
    growth: dict[str, Growth] = {}
    for name, initial in current.items():
        source = aliases.saved_name(name)
        if source not in saved:
            logger.warning("weight not in the checkpoint, starting at its initial values name=%s", name)
            weights[name] = initial
        elif saved[source].shape == initial.shape:
            weights[name] = saved[source]
        else:
            growth[name] = _growth_of(model, name, saved[source], initial, columns, path)
            weights[name] = growth[name].pad(saved[source], initial)
            logger.warning(
                "weight resized name=%s saved=%s now=%s", name, tuple(saved[source].shape), tuple(initial.shape)
            )
    _keep_lengths(weights, saved, aliases, growth)
    unused = sorted(saved.keys() - {aliases.saved_name(name) for name in current})
    if unused:
        logger.warning("checkpoint weights not in the model, skipped weights=%s", ",".join(unused))
    return weights, aliases, growth


def _keep_lengths(
    weights: dict[str, Tensor], saved: Mapping[str, Tensor], aliases: Aliases, growth: Mapping[str, Growth]
) -> None:
    """Stretch the trained column lengths of normalised kernels by as much as the new rows lengthen the columns.

    The effective weights of the old inputs then stay as they were.
    """
    for name, padding in growth.items():
        scale = weights.get(f"{name}_scale")
        if scale is None or weights[name].dim() != 2 or scale.shape != weights[name].shape[1:]:
            continue
        before = column_norms(saved[aliases.saved_name(name)]).clamp_min(_LEAST_LENGTH)[padding.old[1]]
        after = column_norms(weights[name]).clamp_min(_LEAST_LENGTH)[padding.new[1]]
        stretched = scale.detach().to("cpu", copy=True)
        stretched[padding.new[1]] *= after / before
        weights[f"{name}_scale"] = stretched


def _changed(current: Mapping[str, Tensor], aliases: Aliases, saved: Mapping[str, Tensor]) -> bool:
    sources = {name: aliases.saved_name(name) for name in current}
    return any(source in saved and saved[source].shape != current[name].shape for name, source in sources.items())


def _growth_of(
    model: nn.Module,
    name: str,
    saved: Tensor,
    initial: Tensor,
    columns: Mapping[str, Columns | None],
    path: Path,
) -> Growth:
    shapes = f"{name} (checkpoint {tuple(saved.shape)}, model {tuple(initial.shape)})"
    if saved.dim() != initial.dim():
        raise SchemaMismatch(f"the weights of '{path}' do not fit the model: {shapes}; set clear_nn=True")
    now = {module: blocks for module, blocks in columns_of(model).items() if name.startswith(f"{module}.")}
    module = max(now, key=len, default=None)
    olds, news = [], []
    for before, after in zip(saved.shape, initial.shape, strict=True):
        old_blocks = None if module is None else columns[module]
        if before == after:
            old = new = torch.arange(before)
        elif module is not None and old_blocks and _width(old_blocks) == before and _width(now[module]) == after:
            old, new = _match_columns(old_blocks, now[module])
        elif after > before and module is None:
            logger.warning(
                "input columns without names, new columns taken as the last name=%s columns=%d", name, after - before
            )
            old = new = torch.arange(before)
        else:
            raise SchemaMismatch(
                f"the weights of '{path}' do not fit the model: {shapes}, expected a difference in the input columns "
                "only; restore the widths of the layers, or set clear_nn=True"
            )
        olds.append(old)
        news.append(new)
    return Growth(tuple(saved.shape), tuple(olds), tuple(news))


def _match_columns(old: Columns, new: Columns) -> tuple[Tensor, Tensor]:
    """Return the positions of the columns that both sides have, in the same order. A block of another width is new."""
    old_places, new_places = _places(old), _places(new)
    common = [name for name in new_places if name in old_places and len(old_places[name]) == len(new_places[name])]
    return (
        torch.tensor([place for name in common for place in old_places[name]], dtype=torch.long),
        torch.tensor([place for name in common for place in new_places[name]], dtype=torch.long),
    )


def _places(columns: Columns) -> dict[str, range]:
    places, start = {}, 0
    for name, width in columns:
        places[name] = range(start, start + width)
        start += width
    return places


def _width(columns: Columns) -> int:
    return sum(width for _, width in columns)


def _give_shapes(model: nn.Module) -> None:
    """Give weights that wait for their first input a shape, by one call with two empty rows."""
    if not isinstance(model, Model) or not has_lazy_weights(model):
        return
    declaration = model.declaration
    rows = 2
    batch = Batch.from_arrays(
        ids={feature.input: [[] for _ in range(rows)] for feature in declaration.features.values()},
        dense={name: torch.zeros(rows, feature.width).numpy() for name, feature in declaration.dense.items()},
        label=torch.zeros(rows, declaration.labels).numpy(),
    )
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            model(batch)
    finally:
        model.train(was_training)

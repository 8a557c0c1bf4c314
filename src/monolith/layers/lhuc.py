"""LHUC: a tower whose hidden units are rescaled per user by gates, which are small towers."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, cast, get_type_hints

from torch import Tensor, nn

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_dims
from monolith.layers.activations import ActivationLike
from monolith.layers.configured import Configured
from monolith.layers.initializers import InitializerLike
from monolith.layers.mlp import (
    MLP,
    MLPOptions,
    activations_of_layers,
    tower_batch_norm,
    tower_dense,
    values_of_layers,
)

__all__ = ["LHUCTower"]


class LHUCTower(Configured):
    """h_i = block_i(h_{i−1}) ∘ gate_i(lhuc_input), with block = dense → [batch norm, not last] → activation.

    A gate is an MLP with relu inside and 2 · sigmoid at the end, so it starts near 1. Its input is the original
    ``lhuc_input`` at every layer. With batch norm, the dense input is normalised first.

    Shapes: dense_input (B, k), lhuc_input (B, u) or None for the dense input; y (B, output_dims[-1]).

    Args:
        output_dims: Widths of the blocks.
        lhuc_output_dims: None: each gate is one layer. A list of widths: hidden layers of every gate. A list of lists:
            the whole gate of each block, the last width being the block's own.
        activations: One for all blocks but the last, or a list with one entry per block.
        initializers: First values of the kernels, one for all or a list.
        options: The other arguments of :class:`monolith.layers.MLP`, for blocks and gates. Prefixed with ``lhuc_``
            they are for the gates only; None means that of the blocks.

    >>> import torch
    >>> tower = LHUCTower([8, 4], lhuc_output_dims=[6], lhuc_use_weight_norm=False)
    >>> tower(torch.zeros(2, 5), torch.zeros(2, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        output_dims: Sequence[int],
        lhuc_output_dims: Sequence[int] | Sequence[Sequence[int]] | None = None,
        activations: ActivationLike | Sequence[ActivationLike] = "relu",
        initializers: InitializerLike | Sequence[InitializerLike] = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.output_dims = check_dims("LHUCTower.output_dims", output_dims)
        depth = len(self.output_dims)
        block_options, gate_options, gate_extra = _split_options(options)
        chosen = activations_of_layers("LHUCTower.activations", activations, depth)
        first_values = values_of_layers("LHUCTower.initializers", initializers, depth)
        gate_first_values = gate_extra.get("initializers")
        gate_dims = _gate_dims(self.output_dims, lhuc_output_dims)
        self.blocks = nn.ModuleList()
        self.gates = nn.ModuleList()
        with_norm = block_options.get("enable_batch_normalization", False)
        self.input_norm = tower_batch_norm(block_options) if with_norm else None
        for index, units in enumerate(self.output_dims):
            self.blocks.append(_block(units, chosen[index], first_values[index], index + 1 == depth, block_options))
            self.gates.append(_gate(gate_dims[index], gate_extra, gate_first_values, first_values[index], gate_options))

    def forward(self, dense_input: Tensor, lhuc_input: Tensor | None = None) -> Tensor:
        """Compute y."""
        gate_input = dense_input if lhuc_input is None else lhuc_input
        hidden: Tensor = dense_input if self.input_norm is None else self.input_norm(dense_input)
        for block, gate in zip(self.blocks, self.gates, strict=True):
            hidden = block(hidden) * gate(gate_input)
        return hidden


def _block(
    units: int, activation: nn.Module | None, initializer: InitializerLike, is_last: bool, options: MLPOptions
) -> nn.Sequential:
    parts: list[nn.Module] = [tower_dense(units, initializer, options)]
    if options.get("enable_batch_normalization", False) and not is_last:
        parts.append(tower_batch_norm(options))
    if activation is not None:
        parts.append(activation)
    return nn.Sequential(*parts)


def _gate(
    dims: list[int],
    extra: dict[str, Any],
    gate_initializers: Any,
    initializer: InitializerLike,
    options: MLPOptions,
) -> MLP:
    chosen = extra.get("activations")
    acts = [*["relu"] * (len(dims) - 1), "sigmoid2"] if chosen is None else chosen
    return MLP(dims, acts, initializer if gate_initializers is None else gate_initializers, **options)


def _gate_dims(output_dims: list[int], given: Sequence[int] | Sequence[Sequence[int]] | None) -> list[list[int]]:
    if given is None:
        return [[units] for units in output_dims]
    if all(isinstance(entry, int) for entry in given):
        hidden = [entry for entry in given if isinstance(entry, int)]
        return [[*check_dims("LHUCTower.lhuc_output_dims", hidden), units] for units in output_dims]
    nested = [check_dims("LHUCTower.lhuc_output_dims", entry) for entry in given]
    ends = [dims[-1] for dims in nested]
    if ends != output_dims:
        raise ConfigError(
            f"LHUCTower.lhuc_output_dims end in {ends}, output_dims are {output_dims}; each gate must end in the width "
            "of its block"
        )
    return nested


def _split_options(options: dict[str, Any]) -> tuple[MLPOptions, MLPOptions, dict[str, Any]]:
    """Return the options of blocks, those of gates, and the gates' own activations and initializers."""
    known = set(get_type_hints(MLPOptions))
    gate_only = {"activations", "initializers"}
    names = [*known, *(f"lhuc_{name}" for name in known | gate_only)]
    for key in options:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            raise ConfigError(
                f"LHUCTower has no argument {key!r}; " + (f"did you mean {near[0]!r}?" if near else "see MLP for those")
            )
    block: dict[str, Any] = {key: value for key, value in options.items() if key in known}
    own = {key.removeprefix("lhuc_"): value for key, value in options.items() if key not in known and value is not None}
    gate = block | {key: value for key, value in own.items() if key in known}
    return cast(MLPOptions, block), cast(MLPOptions, gate), {key: own[key] for key in gate_only if key in own}

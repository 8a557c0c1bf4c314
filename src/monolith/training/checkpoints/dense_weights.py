"""Weights by name: fitting those of a checkpoint to a model, renamed ones too, before any of them changes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from monolith.core.errors import ConfigError, SchemaMismatch

__all__ = ["Aliases", "fit_weights", "has_lazy_weights"]

_MOST_NAMES = 8


class Aliases:
    """The names that a model's weights have in a checkpoint.

    Args:
        alias_map: New name to old name, of weights or of whole modules.
        current: Names of the model's weights.
        saved: Names in the checkpoint. When it has all new names it is of the renamed model, and no alias counts.

    >>> aliases = Aliases({"tower": "mlp"}, ["tower.0.weight", "head.bias"], ["mlp.0.weight", "head.bias"])
    >>> aliases.saved_name("tower.0.weight"), aliases.saved_name("head.bias")
    ('mlp.0.weight', 'head.bias')
    """

    def __init__(self, alias_map: Mapping[str, str] | None, current: Iterable[str], saved: Iterable[str]) -> None:
        names, known = list(current), set(saved)
        olds = {}
        for new, old in (alias_map or {}).items():
            covered = [name for name in names if name == new or name.startswith(f"{new}.")]
            if not covered:
                near = difflib.get_close_matches(new, _names_and_modules(names), n=1)
                hint = f"did you mean {near[0]!r}?" if near else "its keys are names of the model as it is now"
                raise ConfigError(f"reload_alias_map names {new!r}, expected a weight of the model; {hint}")
            olds.update({name: old + name.removeprefix(new) for name in covered})
        self._olds = {} if olds.keys() <= known else olds
        for new, old in self._olds.items():
            if old not in known:
                near = difflib.get_close_matches(old, sorted(known), n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {_listed(sorted(known))}"
                raise ConfigError(
                    f"reload_alias_map maps {new!r} to {old!r}, expected a weight of the checkpoint; {hint}"
                )

    def saved_name(self, name: str) -> str:
        """Return the checkpoint's name of a weight of the model."""
        return self._olds.get(name, name)


def fit_weights(
    model: nn.Module, saved: Mapping[str, Tensor], alias_map: Mapping[str, str] | None, path: Path
) -> tuple[dict[str, Tensor], Aliases]:
    """Return the argument of ``model.load_state_dict``, by the model's names; the model is not changed.

    Raises:
        SchemaMismatch: Names or shapes differ; the text lists them.
    """
    current = dict(_weights_of(model))
    aliases = Aliases(alias_map, current, saved)
    sources = {name: aliases.saved_name(name) for name in current}
    missing = [name for name, source in sources.items() if source not in saved]
    unexpected = sorted(saved.keys() - set(sources.values()))
    other_shapes = [
        f"{name} (checkpoint {tuple(saved[source].shape)}, model {tuple(weight.shape)})"
        for name, source in sources.items()
        if (weight := current[name]) is not None and source in saved and weight.shape != saved[source].shape
    ]
    if missing or unexpected or other_shapes:
        reasons = [("not in the checkpoint", missing), ("not in the model", unexpected), ("other shape", other_shapes)]
        text = "; ".join(f"{reason}: {_listed(names)}" for reason, names in reasons if names)
        raise SchemaMismatch(
            f"the weights of '{path}' do not fit the model: {text}. If names changed, set reload_alias_map "
            "{new: old}; if features were added, set grow_nn=True to pad grown matrices; to keep the tables and "
            "initialize the dense part, set clear_nn=True"
        )
    return {name: saved[source] for name, source in sources.items()}, aliases


def has_lazy_weights(model: nn.Module) -> bool:
    """Return whether a weight of the model has no shape before the first call."""
    return any(is_lazy(weight) for weight in (*model.parameters(), *model.buffers()))


def _weights_of(model: nn.Module) -> Iterator[tuple[str, Tensor | None]]:
    """Yield names and tensors of the state dict; lazy weights and extra state come as None."""
    for place, module in model.named_modules(remove_duplicate=False):
        prefix = f"{place}." if place else ""
        kept = {
            **module._parameters,
            **{
                name: buffer
                for name, buffer in module._buffers.items()
                if name not in module._non_persistent_buffers_set
            },
        }
        for name, weight in kept.items():
            if weight is not None:
                yield prefix + name, None if is_lazy(weight) else weight
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield f"{prefix}_extra_state", None


def _names_and_modules(names: Iterable[str]) -> list[str]:
    """Names of weights and of all modules they are in."""
    return sorted(
        {".".join(parts[: end + 1]) for parts in (name.split(".") for name in names) for end in range(len(parts))}
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more

"""``with_option_groups``: lets a command take a group of options as one dataclass; typer sees each option."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

__all__ = ["with_option_groups"]


def with_option_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a typer command the options of its groups, each group a panel of ``--help``.

    A group is a parameter whose type is a dataclass, with fields annotated like parameters of a typer command. The
    command receives an instance. Apply the decorator below ``@app.command()``.

    Raises:
        TypeError: Two groups, or a group and the command, have an option of the same name.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {name: each.annotation for name, each in signature.parameters.items() if _is_group(each.annotation)}
    parameters = [
        flat
        for each in signature.parameters.values()
        for flat in (_flatten(each.annotation) if each.name in groups else [each])
    ]
    names = [each.name for each in parameters]
    if twice := {name for name in names if names.count(name) > 1}:
        raise TypeError(f"option {', '.join(sorted(twice))} of {command.__name__} is declared twice; rename one")

    @functools.wraps(command)
    def run(**arguments: Any) -> Any:
        filled = {
            name: group(**{field.name: arguments.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        return command(**arguments, **filled)

    flattened = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = signature.replace(parameters=flattened)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in flattened}
    del run.__wrapped__  # else typer reads the parameters of the wrapped command
    return run


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def _flatten(group: Any) -> Iterator[inspect.Parameter]:
    panel = f"{group.__name__.removesuffix('Options')} options"
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        annotation = _in_panel(hints[field.name], panel)
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _in_panel(annotation: Any, panel: str) -> Any:
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, *others = get_args(annotation)
    placed = [copy.copy(each) for each in others]
    for each in placed:
        if isinstance(each, OptionInfo) and each.rich_help_panel is None:
            each.rich_help_panel = panel
    return Annotated[(kind, *placed)]

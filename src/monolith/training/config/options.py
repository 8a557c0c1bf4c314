"""Flags from a configuration: one option per field, with its section as the panel of ``--help``.

The options only carry text to :func:`monolith.core.config.load`, which converts and checks it, so an error reads the
same wherever a value comes from. What a command does with it is not known here.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from monolith.core.config import flag_of
from monolith.core.config_fields import ConfigField, config_fields
from monolith.core.errors import ConfigError

__all__ = ["OptionSpec", "config_options", "with_config_options"]

_PARAMETER = "flags"


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One flag."""

    field: str
    flag: str
    is_switch: bool
    """``--flag`` and ``--no-flag``, without a value."""
    metavar: str
    default: str
    help: str
    section: str


def config_options(config_type: type) -> list[OptionSpec]:
    """Return the flag of every field of a configuration type.

    >>> from monolith.training.config import RunConfig
    >>> {spec.flag: spec.metavar for spec in config_options(RunConfig)}["--save-checkpoints-steps"]
    'INTEGER'
    """
    return [_option(field) for field in config_fields(config_type).values()]


def with_config_options(config_type: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a typer command an option for every field of ``config_type``.

    The command has a parameter ``flags: Mapping[str, Any]``, which gets those that were given, by field: what
    ``load(config_type, command_line=flags)`` takes. Apply it below ``@app.command()``.

    Raises:
        ConfigError: The command has no such parameter, or has one that is named like a field.
    """
    specs = config_options(config_type)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        _check_parameters(command, signature, specs)
        own = [parameter for name, parameter in signature.parameters.items() if name != _PARAMETER]
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

        @functools.wraps(command)
        def run(**arguments: Any) -> Any:
            given = {spec.field: arguments.pop(spec.field) for spec in specs}
            flags: Mapping[str, Any] = {field: value for field, value in given.items() if value is not None}
            return command(**arguments, **{_PARAMETER: flags})

        parameters = [*own, *map(_parameter, specs)]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__  # typer would look through to the command's own parameters
        return run

    return decorate


def _check_parameters(command: Callable[..., Any], signature: inspect.Signature, specs: list[OptionSpec]) -> None:
    name = getattr(command, "__name__", "command")
    if _PARAMETER not in signature.parameters:
        raise ConfigError(f"{name} has no parameter {_PARAMETER!r}; add '{_PARAMETER}: Mapping[str, Any]'")
    for spec in specs:
        if spec.field in signature.parameters:
            raise ConfigError(f"{name} has a parameter {spec.field!r}, which is a field too; take it from {_PARAMETER}")


def _option(field: ConfigField) -> OptionSpec:
    return OptionSpec(
        field=field.name,
        flag=flag_of(field.name),
        is_switch=field.kinds == (bool,),
        metavar=_metavar(field),
        default=_default(field),
        help=field.help,
        section=field.section,
    )


def _metavar(field: ConfigField) -> str:
    if field.literals:
        return "|".join(field.literals)
    names: dict[object, str] = {int: "INTEGER", float: "NUMBER", tuple: "A,B,...", Mapping: "{A: B}"}
    return next((names[kind] for kind in field.kinds if kind in names), "TEXT")


def _default(field: ConfigField) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return str(field.default) if field.default not in (None, "", (), {}) else "none"


def _parameter(spec: OptionSpec) -> inspect.Parameter:
    declaration = f"{spec.flag}/--no-{spec.flag.removeprefix('--')}" if spec.is_switch else spec.flag
    option = typer.Option(
        declaration,
        help=spec.help,
        metavar=None if spec.is_switch else spec.metavar,
        show_default=spec.default,
        rich_help_panel=f"{spec.section.replace('_', ' ').capitalize()} options",
    )
    kind: Any = bool | None if spec.is_switch else str | None
    return inspect.Parameter(
        spec.field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )

"""Flags from a configuration: one option per field, with its section as the panel of ``--help``.

The options only carry text to :func:`monolith.core.config.load`, which converts and checks it. So an error reads the
same for every source of a value.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from monolith.core.config import flag_of
from monolith.core.config_fields import ConfigField, config_fields
from monolith.core.errors import ConfigError

__all__ = ["OptionSpec", "config_options", "with_config_options"]

_PARAMETER = "flags"
_OPPOSITE = "opposite_of_"


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One flag."""

    field: str
    flag: str
    """The form in ``--help``; for a switch that is on by default, the form that turns it off."""
    opposite: str | None
    """The opposite form of a switch; None for a flag that takes a value."""
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

    The command has a parameter ``flags: Mapping[str, Any]``, which receives the given flags by field, as
    ``load(config_type, command_line=flags)`` takes them. Apply it below ``@app.command()``.

    Raises:
        ConfigError: The command has no parameter ``flags``, or has a parameter that is named like a field.
    """
    specs = config_options(config_type)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        _check_parameters(command, signature, specs)
        own = [parameter for name, parameter in signature.parameters.items() if name != _PARAMETER]
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

        @functools.wraps(command)
        def run(**arguments: Any) -> Any:
            flags = {spec.field: value for spec in specs if (value := _given(spec, arguments)) is not None}
            return command(**arguments, **{_PARAMETER: flags})

        parameters = [*own, *(parameter for spec in specs for parameter in _parameters(spec))]
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
    on, off = flag_of(field.name), flag_of(f"no_{field.name}")
    is_switch = field.kinds == (bool,)
    return OptionSpec(
        field=field.name,
        flag=off if is_switch and field.default is True else on,
        opposite=None if not is_switch else on if field.default is True else off,
        metavar=_metavar(field),
        default=_default(field),
        help=field.help,
        section=field.section,
    )


def _metavar(field: ConfigField) -> str:
    if field.literals:
        return "WORD"
    names: dict[object, str] = {int: "INTEGER", float: "NUMBER", tuple: "A,B,...", Mapping: "{A: B}"}
    return next((names[kind] for kind in field.kinds if kind in names), "TEXT")


def _default(field: ConfigField) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    return str(field.default) if field.default not in (None, "", (), {}) else "none"


def _parameters(spec: OptionSpec) -> Iterator[inspect.Parameter]:
    """Yield the options of a flag. The opposite of a switch is hidden, which leaves ``--help`` room for long names."""
    shown = spec.help if spec.default == "none" else f"{spec.help} Default: {spec.default}."
    if spec.opposite is None:
        yield _parameter(spec, spec.field, str, spec.flag, help=shown, metavar=spec.metavar)
    else:
        is_negated = spec.flag == flag_of(f"no_{spec.field}")
        text = f"Turn off (on by default): {spec.help}" if is_negated else f"{shown} Opposite: {spec.opposite}."
        yield _parameter(spec, spec.field, bool, spec.flag, help=text, metavar=" ")
        yield _parameter(spec, _OPPOSITE + spec.field, bool, spec.opposite, hidden=True)


def _parameter(spec: OptionSpec, name: str, kind: type, flag: str, **settings: Any) -> inspect.Parameter:
    panel = f"{spec.section.replace('_', ' ').capitalize()} options"
    option = typer.Option(flag, show_default=False, rich_help_panel=panel, **settings)
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _given(spec: OptionSpec, arguments: dict[str, Any]) -> Any:
    """Remove a flag from a command's arguments and return its value; None without the flag."""
    value = arguments.pop(spec.field)
    if spec.opposite is None:
        return value
    opposite = arguments.pop(_OPPOSITE + spec.field)
    if value and opposite:
        raise ConfigError(f"{spec.flag} and {spec.opposite} are both given; give one of the two")
    if not value and not opposite:
        return None
    return bool(value) is not spec.flag.startswith("--no-")

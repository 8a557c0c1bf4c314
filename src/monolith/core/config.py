"""One configuration from many places: code > command line > environment > file > task > default.

``load`` fills a frozen dataclass and reports the origin of each value and the values that it overrode. Only the edge of
a program uses it: the dataclasses do not depend on it, and the environment is an argument.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from monolith.core.config_fields import ConfigField, config_fields
from monolith.core.config_file import FileEntry, read_config_file
from monolith.core.config_sections import unknown_field
from monolith.core.errors import ConfigError

__all__ = [
    "_PREFIX",
    "FieldReport",
    "Layer",
    "Loaded",
    "Setting",
    "changed_fields",
    "flag_of",
    "load",
    "variable_of",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Layer: TypeAlias = Literal["code", "command line", "environment", "file", "task", "default"]

_PREFIX = "MONOLITH_"

# Other programs own variables with this prefix too, so only names that are all but equal to a field are remarked on.
_TYPING_ERROR = 0.85


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that one layer gave to a field."""

    value: Any
    layer: Layer
    place: str
    """Where exactly: ``job.yaml:3``, ``MONOLITH_SEED``, ``--seed``, ``code``, ``default``."""


@dataclass(frozen=True, slots=True)
class FieldReport:
    """A field of a loaded configuration."""

    field: str
    section: str
    value: Any
    layer: Layer
    place: str
    overrode: tuple[Setting, ...]
    """The values of lower layers, highest first, without the default."""
    default: Any


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A configuration and its history."""

    config: T
    report: tuple[FieldReport, ...]
    """One per field, in the configuration's order."""


def load(
    config_type: type[T],
    *,
    code: Mapping[str, Any] | None = None,
    command_line: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    task: Mapping[str, tuple[Any, str]] | None = None,
    retired: Mapping[str, str] | None = None,
) -> Loaded[T]:
    """Merge all layers into one configuration.

    A value counts because it was given, even where it equals the default. Text is converted to the field's type,
    whichever layer it comes from; every given value is checked, also one that is overridden.

    Args:
        config_type: A frozen dataclass; its dataclass bases are its sections.
        code: Values by field, from the program itself.
        command_line: Values by field, those of the flags that were given.
        environment: All variables; those named ``MONOLITH_<FIELD>`` count, unless they are empty.
        file: A YAML or JSON file; fields stand at the top or below their section, as ``section: {field: value}`` or
            ``section.field: value``.
        task: Values by field, from the parameters of a task, each with its place. Other fields are skipped.
        retired: Removed fields, with their replacement.

    Raises:
        ConfigError: A field is unknown, given twice, or has a value that does not fit; the text names the place.
        OSError: The file cannot be read.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Job:
    ...     seed: int = 0
    >>> loaded = load(Job, command_line={"seed": "7"}, environment={"MONOLITH_SEED": "5"})
    >>> loaded.config, loaded.report[0].place, loaded.report[0].overrode[0].place
    (Job(seed=7), '--seed', 'MONOLITH_SEED')
    """
    merge = _Merge(config_type, config_fields(config_type), retired or {})
    layers = (
        merge.from_code(code or {}),
        merge.from_command_line(command_line or {}),
        merge.from_environment(environment or {}),
        merge.from_file(() if file is None else read_config_file(file)),
        merge.from_task(task or {}),
    )
    settings = {
        name: [layer[name] for layer in layers if name in layer]
        for name in merge.fields
        if any(name in layer for layer in layers)
    }
    config: T = merge.build({name: given[0] for name, given in settings.items()})
    return Loaded(config, tuple(_report(config, field, settings.get(name, ())) for name, field in merge.fields.items()))


def flag_of(field: str) -> str:
    """Return the flag of a field.

    >>> flag_of("save_checkpoints_steps")
    '--save-checkpoints-steps'
    """
    return "--" + field.replace("_", "-")


def variable_of(field: str) -> str:
    """Return the environment variable of a field.

    >>> variable_of("seed"), variable_of("monolith_threads")
    ('MONOLITH_SEED', 'MONOLITH_THREADS')
    """
    return _PREFIX + field.upper().removeprefix(_PREFIX)


def changed_fields(config: object) -> dict[str, Any]:
    """Return the fields of a configuration that differ from their defaults."""
    values = {name: (field.read(config), field.default) for name, field in config_fields(type(config)).items()}
    return {name: value for name, (value, default) in values.items() if value != default}


@dataclass(frozen=True, slots=True)
class _Merge:
    """The fields that are to be filled, and one method for each layer."""

    config_type: type
    fields: Mapping[str, ConfigField]
    retired: Mapping[str, str]

    def from_code(self, values: Mapping[str, Any]) -> dict[str, Setting]:
        return {name: self.setting(name, value, "code", "code") for name, value in values.items()}

    def from_command_line(self, values: Mapping[str, Any]) -> dict[str, Setting]:
        return {name: self.setting(name, value, "command line", flag_of(name)) for name, value in values.items()}

    def from_task(self, values: Mapping[str, tuple[Any, str]]) -> dict[str, Setting]:
        return {
            name: self.setting(name, value, "task", place)
            for name, (value, place) in values.items()
            if name in self.fields
        }

    def from_environment(self, environment: Mapping[str, str]) -> dict[str, Setting]:
        variables = {variable_of(name): name for name in self.fields}
        retired = {variable_of(name): remedy for name, remedy in self.retired.items()}
        found = {}
        for variable, text in environment.items():
            if not text or not variable.startswith(_PREFIX):
                continue
            if name := variables.get(variable):
                found[name] = self.setting(name, text, "environment", variable)
            elif variable in retired:
                logger.warning("environment variable is ignored: %s name=%s", retired[variable], variable)
            elif near := _near_variable(variable, variables):
                logger.warning("environment variable is ignored, did you mean %s? name=%s", near, variable)
        return found

    def from_file(self, entries: Sequence[FileEntry]) -> dict[str, Setting]:
        found: dict[str, Setting] = {}
        for entry, section in self._placed(entries):
            name = entry.key
            setting = self.setting(name, entry.value, "file", entry.place)
            if section not in ("", self.fields[name].section):
                home = self.fields[name].section
                raise ConfigError(f"{entry.place} sets {name!r} in section {section!r}; it belongs into {home!r}")
            if name in found:
                before = found[name].place
                raise ConfigError(f"{entry.place} sets {name!r}, which {before} sets already; keep one of them")
            found[name] = setting
        return found

    def _placed(self, entries: Sequence[FileEntry]) -> Iterator[tuple[FileEntry, str]]:
        """The fields of a file, each with the section that it stands in, or none."""
        sections = {field.section for field in self.fields.values()}
        for entry in entries:
            if entry.key in self.fields or entry.key in self.retired:
                yield entry, ""
            elif entry.key in sections and entry.value is not None:
                if entry.entries is None:
                    raise ConfigError(
                        f"{entry.place}: section {entry.key!r} is {entry.value!r}; put its fields below it"
                    )
                yield from ((below, entry.key) for below in entry.entries)
            elif entry.entries is not None:
                near = difflib.get_close_matches(entry.key, sections, n=1)
                remedy = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(sections))}"
                raise ConfigError(f"{entry.place} has the unknown section {entry.key!r}; {remedy}")
            elif entry.key not in sections:
                section, _, name = entry.key.rpartition(".")
                yield dataclasses.replace(entry, key=name), section

    def setting(self, name: str, value: Any, layer: Layer, place: str) -> Setting:
        field = self.fields.get(name)
        if field is None:
            raise unknown_field(name, self.fields, self.retired, place=place, config_type=self.config_type)
        if layer in ("command line", "environment") and isinstance(value, str):
            try:
                value = field.from_text(value)
            except ValueError as error:
                raise field.refusal(value, place) from error
        return Setting(field.convert(value, place), layer, place)

    def build(self, chosen: Mapping[str, Setting]) -> Any:
        for name, field in self.fields.items():
            if field.default is dataclasses.MISSING and name not in chosen:
                raise ConfigError(f"{name} is missing; give {flag_of(name)}, {variable_of(name)} or a file that has it")
        try:
            return self.config_type(**{name: setting.value for name, setting in chosen.items()})
        except ConfigError as error:
            culprits = [name for name in chosen if re.search(rf"\b{name}\b", str(error))]
            if not culprits:
                raise
            places = ", ".join(f"{name} from {chosen[name].place}" for name in culprits)
            raise ConfigError(f"{error} ({places})") from error


def _near_variable(variable: str, known: Iterable[str]) -> str | None:
    """The variable that was meant, of those with the same prefix."""
    fields = [name.removeprefix(_PREFIX) for name in known]
    near = difflib.get_close_matches(variable.removeprefix(_PREFIX), fields, n=1, cutoff=_TYPING_ERROR)
    return _PREFIX + near[0] if near else None


def _report(config: object, field: ConfigField, given: Sequence[Setting]) -> FieldReport:
    used = given[0] if given else Setting(field.default, "default", "default")
    return FieldReport(
        field=field.name,
        section=field.section,
        value=field.read(config),
        layer=used.layer,
        place=used.place,
        overrode=tuple(given[1:]),
        default=None if field.default is dataclasses.MISSING else field.default,
    )

"""``Params``: a tree of named values with descriptions, read and written as attributes.

For registered tasks and for layers that are described before they are made; everything else in Monolith is configured
by frozen dataclasses. Names must be defined before they are set, so a misspelt one is an error that names the nearest.
``InstantiableParams`` calls the class that it holds.
"""

from __future__ import annotations

import copy
import enum
import inspect
import re
import sys
import typing
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import Any, Self

from monolith.core.errors import ConfigError

__all__ = [
    "REQUIRED",
    "IllegalParam",
    "InstantiableParams",
    "Params",
    "ParamsFrozen",
    "UnknownParam",
    "copy_params_to",
    "params_of",
    "update_params",
]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ELEMENT = re.compile(r"(.+)\[(.+)\]")

# Arguments that a constructor may take through **kwargs without naming them.
_LAYER_OPTIONS = (
    "input_dim",
    "input_shape",
    "batch_input_shape",
    "weights",
    "activity_regularizer",
    "autocast",
    "implementation",
    "name",
)


class _Unset(enum.Enum):
    # An enum, because its members stay themselves when they are copied and pickled.
    REQUIRED = enum.auto()

    def __repr__(self) -> str:
        return "<required>"

    __str__ = __repr__


REQUIRED = _Unset.REQUIRED
"""The value of a parameter that must be set, because the constructor has no default for it."""


class UnknownParam(ConfigError, AttributeError):
    """No parameter has this name; the text is the name, and those that are like it."""


class ParamsFrozen(ConfigError, TypeError):
    """The parameters were frozen, and are not to change."""


class IllegalParam(ConfigError, AssertionError):
    """The name cannot be one of a parameter, or the path goes through a value that holds no parameters."""


class _Param:
    """One value and its description."""

    __slots__ = ("description", "value")

    def __init__(self, value: Any, description: str) -> None:
        self.value = value
        self.description = description

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Param) and _is_same(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> _Param:
        value = self.value if _is_tensor(self.value) else copy.deepcopy(self.value, memo)
        return _Param(value, self.description)


class Params:
    """Named values, some of which may be ``Params`` again.

    >>> p = Params()
    >>> p.define("units", 8, "Width of the output.")
    >>> p.define("train", Params(), "How to train.")
    >>> p.train.define("steps", 100, "Steps to train.")
    >>> p.set(units=16, **{"train.steps": 50}).get("train.steps")
    50
    >>> print(p)
    {
      train: {
        steps: 50
      }
      units: 16
    }
    """

    _params: dict[str, _Param]
    _immutable: bool

    def __init__(self) -> None:
        self.__dict__["_params"] = {}
        self.__dict__["_immutable"] = False

    # --- names --------------------------------------------------------------------------------------------------------

    def define(self, name: str, default_value: Any, description: str) -> None:
        """Add a parameter.

        Raises:
            IllegalParam: The name is not made of small letters, digits and underscores, with a letter first. Also an
                ``AssertionError``.
            UnknownParam: The name is taken. An ``AttributeError``, as the original raises.
            ParamsFrozen: ``freeze`` was called.
        """
        self._refuse_if_frozen()
        if not _is_name(name):
            raise IllegalParam(f"{name!r} cannot name a parameter; use small letters, digits and _, a letter first")
        if name in self._params:
            raise UnknownParam(f"Parameter {name} is already defined")
        self._params[name] = _Param(default_value, description)

    def delete(self, *names: str) -> Self:
        """Remove parameters; dots lead into nested ones.

        Raises:
            UnknownParam: The parameter does not exist.
        """
        self._refuse_if_frozen()
        for name in names:
            holder, key = self._holder(name)
            holder._refuse_if_frozen()
            if key not in holder._params:
                raise holder._unknown(key, name)
            del holder._params[key]
        return self

    def contain(self, name: str) -> bool:
        """Return whether a parameter has this name."""
        return name in self._params

    def describe(self, name: str) -> str:
        """Return the description given to ``define``; dots lead into nested parameters."""
        holder, key = self._holder(name)
        if key not in holder._params:
            raise holder._unknown(key, name)
        return holder._params[key].description

    def __contains__(self, name: object) -> bool:
        return name in self._params

    def __len__(self) -> int:
        return len(self._params)

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __dir__(self) -> list[str]:
        return sorted(self._params)

    def iter_params(self) -> Iterator[tuple[str, Any]]:
        """Go through (name, value), in the order of definition."""
        for name, param in self._params.items():
            yield name, param.value

    # --- values -------------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Any:
        """Return a value; dots lead into nested parameters, ``name[2]`` into a list of them.

        Raises:
            UnknownParam: The parameter does not exist.
            IllegalParam: The path leads through a value that holds no parameters.
        """
        holder, key = self._holder(name)
        if key not in holder._params:
            raise holder._unknown(key, name)
        return holder._params[key].value

    def set(self, **values: Any) -> Self:
        """Set values, by names or (``**{"train.steps": 5}``) by paths as in ``get``. Returns these parameters.

        Raises:
            UnknownParam: The parameter does not exist.
            ParamsFrozen: These, or the nested parameters, are frozen.
        """
        if self._immutable:
            raise ParamsFrozen(f"This Params instance is immutable: {self}")
        for name, value in values.items():
            holder, key = self._holder(name)
            holder._refuse_if_frozen()
            if key not in holder._params:
                raise holder._unknown(key, name)
            holder._params[key].value = value
        return self

    def __getattr__(self, name: str) -> Any:
        # Called only for names outside __dict__; an object without _params is being copied or unpickled.
        params: dict[str, _Param] = self.__dict__.get("_params", {})
        if name not in params:
            raise self._unknown(name, name)
        return params[name].value

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse_if_frozen()
        if name not in self._params:
            raise self._unknown(name, name)
        self._params[name].value = value

    __getitem__ = __getattr__
    __setitem__ = __setattr__

    # --- the whole ----------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Refuse changes from now on. Nested parameters can still be changed; copies are frozen too."""
        self.__dict__["_immutable"] = True

    def is_immutable(self) -> bool:
        """Return whether ``freeze`` was called."""
        return self._immutable

    def copy(self) -> Self:
        """Return a deep copy. Values that are tensors are shared."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(_params=copy.deepcopy(self._params, memo), _immutable=self._immutable)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {"_params": self._params, "_immutable": self._immutable}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Params) and self._params == other._params

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self._text("")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_inline(self)})"

    # --- private ------------------------------------------------------------------------------------------------------

    def _refuse_if_frozen(self) -> None:
        if self._immutable:
            raise ParamsFrozen("This Params instance is immutable.")

    def _holder(self, path: str) -> tuple[Params, str]:
        """Return the parameters that the last name of a path belongs to, and that name."""
        *way, key = path.split(".")
        at: Any = self
        for depth, part in enumerate(way):
            so_far = ".".join(way[: depth + 1])
            element = _ELEMENT.fullmatch(part)
            try:
                at = at._params[element[1] if element else part].value
                if element:
                    at = at[int(element[2])]
            except (LookupError, TypeError, ValueError):
                raise UnknownParam(so_far) from None
            if not isinstance(at, Params):
                raise IllegalParam(f"Cannot introspect {type(at)} for {so_far}")
        return at, key

    def _unknown(self, key: str, path: str) -> UnknownParam:
        similar = sorted(name for name in self.__dict__.get("_params", ()) if _overlap(key, name) > 0.5)
        return UnknownParam(f"{path} (did you mean: [{','.join(similar)}])" if similar else path)

    def _text(self, indent: str) -> str:
        inner = indent + "  "
        lines = []
        for name in sorted(self._params):
            value = self._params[name].value
            if isinstance(value, Params):
                text = value._text(inner)
            elif isinstance(value, str):
                text = f'"{value}"'
            else:
                text = _inline(value) if isinstance(value, dict | list | tuple) else str(value)
            lines.append(f"{inner}{name}: {text}")
        return "{\n" + "\n".join(lines) + f"\n{indent}}}"


class InstantiableParams(Params):
    """Parameters of a class, that can make an object of it. The class is the parameter ``cls``.

    >>> from fractions import Fraction
    >>> p = InstantiableParams(Fraction)
    >>> p.define("numerator", 3, "")
    >>> p.define("denominator", 4, "")
    >>> p.instantiate()
    Fraction(3, 4)
    """

    def __init__(self, cls: type[Any] | None = None) -> None:
        super().__init__()
        self.define("cls", cls, "The class that these parameters belong to.")

    def instantiate(self) -> Any:
        """Make the object.

        A class with a ``params`` method whose constructor takes ``params`` alone gets these parameters. Any other gets
        keyword arguments: each argument that is named like a parameter here or, when none is, in nested parameters (the
        nearest counts). An argument through ``**kwargs`` is omitted while it is None.

        Raises:
            ConfigError: ``cls`` is None, or an argument without a default was not set.
        """
        if self.cls is None:
            raise ConfigError("cls is None, so there is nothing to make; give InstantiableParams(cls) a class")
        arguments = _arguments(self.cls)
        if list(arguments.named) == ["params"] and not arguments.optional and hasattr(self.cls, "params"):
            return self.cls(self)
        values = _flatten(self)
        given = {name: values[name] for name in arguments.named if name in values}
        if unset := [name for name, value in given.items() if value is REQUIRED]:
            raise ConfigError(f"{self.cls.__name__}: {', '.join(unset)} has no default; set it before instantiate()")
        for name in (*arguments.optional, *(_LAYER_OPTIONS if arguments.takes_any else ())):
            if name not in given and values.get(name) is not None:
                given[name] = values[name]
        return self.cls(**given)


def params_of(cls: type[Any]) -> InstantiableParams:
    """Return parameters with the names and defaults of a constructor's arguments.

    Arguments that a constructor hands on by ``**kwargs`` are those of the base's constructor, or of the ``TypedDict``
    that it names. An argument without a default is ``REQUIRED`` until it is set.

    >>> class Scale:
    ...     def __init__(self, factor=2.0, *, name=None): ...
    >>> params_of(Scale).factor
    2.0

    Raises:
        ConfigError: An argument that must be given cannot be named by a parameter.
    """
    made = InstantiableParams(cls)
    arguments = _arguments(cls)
    for name, default in (arguments.named | arguments.optional).items():
        is_required = default is inspect.Parameter.empty
        if not _is_name(name) or name == "cls":
            if is_required:
                raise ConfigError(f"{cls.__name__}'s argument {name!r} cannot name a parameter; give it a default")
            continue
        made.define(name, REQUIRED if is_required else copy.deepcopy(default), f"{cls.__name__}'s argument {name}.")
    return made


def copy_params_to(source: Params, target: Params, skip: Collection[str] | None = None) -> Params:
    """Set every parameter of ``source`` that is not in ``skip`` on ``target``, which has it; nested ones are copied."""
    for name, value in source.iter_params():
        if skip is None or name not in skip:
            target.set(**{name: value.copy() if isinstance(value, Params) else value})
    return target


def update_params(params: Params, values: MutableMapping[str, Any]) -> None:
    """Set the parameters, nested ones too, that ``values`` names, and remove them from it; unknown names remain."""
    for name, value in list(params.iter_params()):
        if isinstance(value, Params):
            update_params(value, values)
        elif name in values:
            params[name] = values.pop(name)


class _Arguments(typing.NamedTuple):
    named: dict[str, Any]
    """Default of each argument that has a name; ``Parameter.empty`` for none."""
    optional: dict[str, Any]
    """Arguments that go through ``**kwargs``, with None."""
    takes_any: bool
    """Return True if ``**kwargs`` takes undeclared names."""


def _arguments(cls: type[Any]) -> _Arguments:
    """Return the arguments of a constructor, including those that ``**kwargs`` passes to the constructors of bases."""
    named: dict[str, Any] = {}
    for maker in _constructors(cls):
        rest: inspect.Parameter | None = None
        for parameter in list(inspect.signature(maker).parameters.values())[1:]:
            if parameter.kind is parameter.VAR_KEYWORD:
                rest = parameter
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                named.setdefault(parameter.name, parameter.default)
        if rest is None:
            return _Arguments(named, {}, takes_any=False)
        if (keys := _typed_keys(maker, rest.name)) is not None:
            return _Arguments(named, dict.fromkeys(key for key in keys if key not in named), takes_any=False)
    return _Arguments(named, {}, takes_any=bool(named))


def _constructors(cls: type[Any]) -> list[Any]:
    """The ``__init__`` of the class and of its bases, nearest first; the ``__new__`` when they have none."""
    bases = [vars(base) for base in cls.__mro__[:-1]]
    return [own["__init__"] for own in bases if "__init__" in own] or [
        own["__new__"] for own in bases if "__new__" in own
    ]


def _typed_keys(maker: Any, name: str) -> list[str] | None:
    """The keys of ``**name: Unpack[SomeTypedDict]``, or None when it is not written so."""
    try:
        hint = typing.get_type_hints(maker).get(name)
    except NameError:  # names imported for type checkers only
        return None
    inner = typing.get_args(hint)
    return list(typing.get_type_hints(inner[0])) if inner and typing.is_typeddict(inner[0]) else None


def _flatten(params: Params) -> dict[str, Any]:
    """All values by name, those near the root first to be found."""
    values: dict[str, Any] = {}
    level = [params]
    while level:
        below = []
        for each in level:
            for name, value in each.iter_params():
                if name != "cls":
                    values.setdefault(name, value)
                if isinstance(value, Params):
                    below.append(value)
        level = below
    return values


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _overlap(name: str, key: str) -> float:
    """The share of three-letter pieces of ``name`` that ``key`` has; as in the original, the last piece is left out."""
    pieces = [name[at : at + 3] for at in range(len(name) - 3)]
    return sum(piece in key for piece in pieces) / len(pieces) if pieces else 0.0


def _inline(value: Any) -> str:
    """A value on one line, with the keys of mappings sorted."""
    if isinstance(value, Params):
        return _inline(dict(value.iter_params()))
    if isinstance(value, Mapping):
        try:
            keys = sorted(value)
        except TypeError:  # keys of several kinds
            keys = sorted(value, key=repr)
        return "{" + ", ".join(f"{key!r}: {_inline(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return "(" + ", ".join(map(_inline, value)) + (",)" if len(value) == 1 else ")")
    return repr(value)


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if getattr(one, "shape", None) != getattr(other, "shape", None):
        return False
    same = one == other
    return bool(same.all()) if hasattr(same, "all") else bool(same)


def _is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor; a program without torch has none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)

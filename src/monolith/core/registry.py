"""Classes by name: the registry of task models, and ``load_class`` for ``package.module.Class`` or a Python file."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import logging
import os
import re
import sys
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from monolith.core.errors import ConfigError

if TYPE_CHECKING:
    from monolith.core.params import InstantiableParams

__all__ = [
    "GetAllRegisteredClasses",
    "GetClass",
    "GetParams",
    "ModelRegistry",
    "RegisterSingleTaskModel",
    "SingleTaskModelParams",
    "UnknownModel",
    "get_all_registered_classes",
    "get_class",
    "get_params",
    "load_class",
    "register_single_task_model",
]

logger = logging.getLogger(__name__)

_TASKS_PREFIX = "monolith.tasks."
_IMPORTING = threading.RLock()  # sys.modules has a file's module before its classes exist


class UnknownModel(ConfigError, LookupError):
    """No model is registered under this name."""


class SingleTaskModelParams:
    """Holds the parameters of one task. Subclasses are registered, and made without arguments."""

    def task(self) -> InstantiableParams:
        """Return the parameters of the task."""
        raise NotImplementedError("Abstract method")


_Model = TypeVar("_Model", bound=type[SingleTaskModelParams])


class ModelRegistry:
    """Model classes by name.

    A class has the name ``<module>.<Class>``, and that without ``monolith.tasks.`` in front and without ``params.``.
    When one class alone is called so, its own name is enough.

    >>> models = ModelRegistry()
    >>> @models.register
    ... class Ranker(SingleTaskModelParams): ...
    >>> models.get_class("Ranker") is Ranker
    True
    """

    def __init__(self) -> None:
        self._classes: dict[str, type[SingleTaskModelParams]] = {}

    def register(self, cls: _Model) -> _Model:
        """Add a class; to be used as a decorator.

        Raises:
            TypeError: The class is not a ``SingleTaskModelParams``.
            ConfigError: Its name is taken.
        """
        if not _is_model(cls):
            raise TypeError(f"{getattr(cls, '__name__', cls)} is not a SingleTaskModelParams!")
        full = f"{cls.__module__}.{cls.__name__}"
        keys = {full, full.replace(_TASKS_PREFIX, "").replace("params.", "")}
        for key in keys:
            if key in self._classes:
                raise ConfigError(
                    f"Duplicate model registered for key {key}: {full}; rename one, or import the module once"
                )
        self._classes |= dict.fromkeys(keys, cls)
        logger.debug("model registered key=%s", full)
        return cls

    @property
    def classes(self) -> Mapping[str, type[SingleTaskModelParams]]:
        """The classes by all their names."""
        return MappingProxyType(self._classes)

    def get_class(self, key: str) -> type[SingleTaskModelParams]:
        """Return a class. When it is not known yet, the module that ``key`` begins with is imported first.

        Raises:
            UnknownModel: No model has this name; the known names are logged. Also a ``LookupError``.
        """
        if (found := self._find(key)) is None and "." in key:
            _import_if_there(key.rpartition(".")[0])
            found = self._find(key)
        if found is None:
            for known in sorted(self._classes):
                logger.info("Known model: %s", known)
            raise UnknownModel(f"Model {key} is not registered; {_nearest(key, self._classes)}")
        return found

    def get_params(self, key: str) -> InstantiableParams:
        """Return the task parameters of a class.

        Raises:
            UnknownModel: No model has this name.
        """
        return self.get_class(key)().task()

    def _find(self, key: str) -> type[SingleTaskModelParams] | None:
        if key in self._classes:
            return self._classes[key]
        named = {cls for cls in self._classes.values() if cls.__name__ == key}
        return named.pop() if len(named) == 1 else None


def _is_model(cls: object) -> bool:
    return inspect.isclass(cls) and issubclass(cls, SingleTaskModelParams)


_models = ModelRegistry()

register_single_task_model = _models.register
get_class = _models.get_class
get_params = _models.get_params


def get_all_registered_classes() -> Mapping[str, type[SingleTaskModelParams]]:
    """Return the registered classes by all their names."""
    return _models.classes


RegisterSingleTaskModel = register_single_task_model
GetAllRegisteredClasses = get_all_registered_classes
GetClass = get_class
GetParams = get_params


def load_class(spec: str, *, homes: Sequence[str] = ()) -> type[Any]:
    """Return the class that a user names.

    ``spec`` is ``package.module.Class`` or ``package.module:Class``, ``path/to/file.py:Class``, or the name alone of a
    registered model or of a class in one of the modules ``homes``. A file is imported once, however often it is named.

    Raises:
        ConfigError: The module, file or class does not exist; the text names the nearest. An exception of the imported
            module is raised unchanged.
    """
    place, colon, name = spec.rpartition(":")
    if not colon and spec.endswith(".py"):
        place, name = spec, ""
    if place.endswith(".py"):
        return _class_in(_import_file(place), name, spec)
    if colon:
        return _class_in(_import_module(place, spec), name, spec)
    if (registered := _models._find(spec)) is not None:
        return registered
    if "." in spec:
        place, _, name = spec.rpartition(".")
        return _class_in(_import_module(place, spec), name, spec)
    return _class_at_home(spec, homes)


def _class_in(module: ModuleType, name: str, spec: str) -> type[Any]:
    found = getattr(module, name, None) if name else None
    if inspect.isclass(found):
        return found
    own = [
        each for each, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    where = getattr(module, "__file__", None) or module.__name__
    if not name:
        raise ConfigError(f"{spec!r} names no class; write {spec}:CLASS; {_nearest('', own)}")
    what = "no class" if found is None else f"a {type(found).__name__}, not a class,"
    raise ConfigError(f"{spec!r}: {where} has {what} called {name!r}; {_nearest(name, own)}")


def _class_at_home(name: str, homes: Sequence[str]) -> type[Any]:
    known: list[str] = [cls.__name__ for cls in _models.classes.values()]
    for home in homes:
        module = importlib.import_module(home)
        if inspect.isclass(found := getattr(module, name, None)):
            return found
        public = getattr(module, "__all__", ())
        known += [each for each in public if inspect.isclass(getattr(module, each, None))]
    raise ConfigError(
        f"no class is called {name!r}; {_nearest(name, known)}, or write package.module.Class or FILE.py:Class"
    )


def _import_module(name: str, spec: str) -> ModuleType:
    if (module := _import_if_there(name)) is not None:
        return module
    raise ConfigError(
        f"{spec!r}: module {name!r} does not exist; check the name, and that its folder is on the Python path, "
        "or write path/to/file.py:Class"
    )


def _import_if_there(name: str) -> ModuleType | None:
    """Import a module; return None if it does not exist. A missing module that it imports raises."""
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            return None
        raise


def _import_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise ConfigError(f"file {path!r} does not exist; check the path, it is relative to {os.getcwd()}")
    absolute = os.path.realpath(path)
    stem = re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0])
    name = f"{stem}_{zlib.crc32(absolute.encode()):08x}"
    with _IMPORTING:
        if name in sys.modules:
            return sys.modules[name]
        description = importlib.util.spec_from_file_location(name, absolute)
        if description is None or description.loader is None:
            raise ConfigError(f"{path!r} cannot be imported; is it a Python file?")
        module = importlib.util.module_from_spec(description)
        sys.modules[name] = module
        try:
            description.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known: {', '.join(names[:20])}{' and more' if len(names) > 20 else ''}" if names else "none is known"

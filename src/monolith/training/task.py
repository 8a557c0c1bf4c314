"""``Task``: the interface of a job that brings its own data and model. ``monolith.compat.tasks`` implements it.

``open_own_data`` opens the data of a task or a model for one of several workers. ``make_task`` makes the object that a
class of tasks describes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

from monolith.core.errors import ConfigError
from monolith.core.params import InstantiableParams
from monolith.core.registry import SingleTaskModelParams
from monolith.layers.base_layer import BaseLayer

__all__ = ["Mode", "Task", "make_task", "open_own_data", "settings_of_task"]

Mode: TypeAlias = Literal["train", "eval", "predict"]
"""The purpose of a task's data."""


@runtime_checkable
class Task(Protocol):
    """A job as two functions: one makes the data, one makes the model.

    A task may also have ``training_hooks()``, which returns the hooks of its training.
    """

    def create_input_fn(self, mode: Mode) -> Callable[..., Any]:
        """Return a function that returns the data for a mode; its option ``shard`` is the worker's share."""
        ...

    def create_model_fn(self) -> Callable[..., Any]:
        """Return the model, or a function that returns it."""
        ...


def open_own_data(input_fn: Callable[..., Any], shard: tuple[int, int], *, owner: str) -> Any:
    """Return the data of an ``input_fn`` for one of several workers.

    Args:
        input_fn: The function; each call opens the data again.
        shard: The worker's (index, count). A function that takes ``shard`` gets it.
        owner: The task in errors.

    Raises:
        ConfigError: There are several workers, and the function does not take ``shard``.
    """
    if _takes_shard(input_fn):
        return input_fn(shard=shard)
    if shard[1] > 1:
        raise ConfigError(
            f"input_fn of {owner} does not take shard, and {shard[1]} workers would read all of its data each; add "
            "the argument shard=(index, count), or give --data"
        )
    return input_fn()


def _takes_shard(input_fn: Callable[..., Any]) -> bool:
    parameters = inspect.signature(input_fn).parameters
    return "shard" in parameters and parameters["shard"].kind is not inspect.Parameter.POSITIONAL_ONLY


def _params_of_task(cls: type[Any], options: Mapping[str, Any]) -> InstantiableParams | None:
    """Return the parameters of a class of tasks, with options set; None for a class without parameters.

    Raises:
        ConfigError: An option is not a parameter.
    """
    if issubclass(cls, SingleTaskModelParams):
        described: Any = cls().task()
    elif issubclass(cls, BaseLayer):
        described = cls.params()
    else:
        return None
    params: Any = described.p if isinstance(described, BaseLayer) else described  # an instance may replace parameters
    params.set(**options)
    return cast(InstantiableParams, params)


def settings_of_task(cls: type[Any], options: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Return the settings of a run that the parameters of a task ask for: setting to (value, place).

    The class of the task may have ``run_settings(params)``; other classes ask for none.

    Raises:
        ConfigError: An option is not a parameter, or no code reads a parameter that was set.
    """
    params = _params_of_task(cls, options)
    make_settings = getattr(getattr(params, "cls", None), "run_settings", None)
    return {} if params is None or make_settings is None else make_settings(params)


def make_task(cls: type[Any], task: str, options: Mapping[str, Any]) -> Any:
    """Make the object of a class: from its parameters, or from keyword arguments.

    Raises:
        ConfigError: An option does not fit the class.
    """
    if issubclass(cls, SingleTaskModelParams):
        described: Any = cls().task()
        if isinstance(described, BaseLayer):  # an instance in place of parameters
            described.p.set(**options)
            return described
        return described.set(**options).instantiate()
    if issubclass(cls, BaseLayer):
        return cls.params().set(**options).instantiate()
    signature = inspect.signature(cls)
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"task_options is {dict(options)}, expected {signature} for task {task!r}: {error}"
        ) from error
    return cls(**options)

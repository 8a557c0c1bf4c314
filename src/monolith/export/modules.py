"""``export_module``: exports a module of torch that contains modules of ``mt.nn``, for any server of exports.

The table modules become features of requests. ``mt.nn.EmbeddingBag`` and ``mt.nn.Embedding`` have the feature of their
path in the module, such as ``items``; a collection has its own names. Floating tensors among the arguments of
``forward`` become dense features, named by their parameter or by their key.

The rest of ``forward`` is traced with stand-ins for the table modules. The stand-ins take their places in the module
until the trace ends, so no other thread uses the module meanwhile.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.data import DenseFeature
from monolith.embedding import MultiTable, Table
from monolith.export.exporter import export_model
from monolith.export.options import ExportOptions
from monolith.features import Declaration, EmbeddedBatch, EmbeddingFeature, Model, Output
from monolith.features.layouts import Item, Layout, Piece
from monolith.nn import Embedding, EmbeddingBag, EmbeddingBagCollection, TableModule
from monolith.nn.jagged import keyed_tensor

__all__ = ["export_module"]

_SLICE = "row"
_SCORE = "score"
_IDS = "ids"
"""Feature of a module that is a table module itself."""


def export_module(
    module: nn.Module,
    base: str | os.PathLike[str],
    *,
    name: str,
    example: Sequence[Any] | Mapping[str, Any],
    step: int | None = None,
    version: int | None = None,
    options: ExportOptions | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a version of a module below ``base``; a server returns the results of ``forward``.

    Args:
        module: The module, with its present weights and rows.
        base: Folder or URL of the exports.
        name: Name of the model.
        example: Arguments of one call of ``module``, with at least two examples: a sequence, or a mapping by parameter.
        step: Training step; None takes the updates of the table modules.
        version: Number of the version; None takes unix seconds.
        options: Layout and precision.
        overwrite: Replace an existing version.

    Returns:
        Folder of the version.

    Raises:
        ConfigError: The module has no tables, uses ids outside its tables, or cannot be traced.
        VersionConflict: The version exists.
    """
    places = {path or _IDS: each for path, each in module.named_modules() if isinstance(each, TableModule)}
    if not places:
        raise ConfigError(f"module is a {type(module).__name__} without table modules; give one that contains mt.nn")
    arguments = _bind(module, example)
    calls = _record_calls(module, places, arguments)
    readers = [_make_reader(path, places[path], calls[path]) for path in places if path in calls]
    unused = [path for path in places if path not in calls]
    if unused:
        raise ConfigError(f"table module {unused[0]!r} is not called by forward; remove it from the module")
    tables = _collect_tables(places)
    model = _ModuleModel(module, readers, arguments, tables)
    steps = max(each.steps for each in places.values())
    with _stand_ins(model, {id(places[each.path]): each for each in readers}):
        return export_model(
            model,
            tables,
            base,
            name=name,
            step=steps if step is None else step,
            version=version,
            options=options,
            overwrite=overwrite,
        )


@dataclass(frozen=True, slots=True)
class _Input:
    """One feature that a table module reads."""

    feature: str
    table: str
    dim: int
    mode: str
    length: int = 0
    """Ids per example of a module that returns a row per id; 0 for bags."""


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """The input of a collection in the example, which tells the form of its result."""

    value: Any


class _Rows:
    """The layouts of a reader during one call; torch refuses tensors among the attributes of a traced module."""

    __slots__ = ("tensors",)

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []


class _Reader(nn.Module):
    """Takes the place of a table module during a trace: returns the layouts of its features."""

    def __init__(self, path: str, inputs: Sequence[_Input], features: Any, is_collection: bool) -> None:
        super().__init__()
        self.path, self.inputs = path, tuple(inputs)
        self._features, self._is_collection = _Held(features), is_collection
        self.rows = _Rows()

    @override
    def forward(self, *inputs: Any, **options: Any) -> Any:
        if not self._is_collection:
            return self.rows.tensors[0]
        return keyed_tensor(self._features.value, [each.feature for each in self.inputs], self.rows.tensors)


class _ModuleModel(Model):
    """A module as a ``Model``: layouts in, the results of ``forward`` out."""

    def __init__(
        self, module: nn.Module, readers: Sequence[_Reader], arguments: Mapping[str, Any], tables: MultiTable
    ) -> None:
        super().__init__()
        self.module = module
        self._readers = tuple(readers)
        self._dense: dict[str, Tensor] = {}
        self._arguments = {key: self._stand_for(key, value) for key, value in arguments.items()}
        inputs = [each for reader in readers for each in reader.inputs]
        self.declaration = _declare(inputs, self._dense, tables)

    def _stand_for(self, key: str, value: Any) -> Any:
        """Return the stand-in of an argument: a dense feature, ids that only tables may read, or the value itself."""
        if isinstance(value, Tensor):
            if not value.is_floating_point():
                return _Ids(key)
            if key in self._dense or value.dim() not in (1, 2):
                raise ConfigError(
                    f"argument {key!r} has shape {tuple(value.shape)}, expected one dense input (B,) or (B, K) per name"
                )
            self._dense[key] = value
            return _Dense(key, is_flat=value.dim() == 1)
        if isinstance(value, Mapping):
            return {each: self._stand_for(str(each), entry) for each, entry in value.items()}
        if isinstance(value, tuple | list) and any(isinstance(each, Tensor) for each in value):
            return type(value)(_Ids(key) for _ in value)
        if hasattr(value, "offset_per_key"):
            return _Ids(key)
        return value

    @override
    def forward(self, batch: EmbeddedBatch) -> list[Output]:
        for reader in self._readers:
            reader.rows.tensors = [batch.layouts[each.feature] for each in reader.inputs]
        result = self.module(**{key: _fill(value, batch) for key, value in self._arguments.items()})
        scores = result if isinstance(result, Mapping) else {_SCORE: result}
        for key, value in scores.items():
            if not isinstance(value, Tensor):
                raise ConfigError(
                    f"result {key!r} of forward is a {type(value).__name__}, expected a tensor or a dict of tensors"
                )
        return [Output(head=str(key), predictions=value) for key, value in scores.items()]


@dataclass(frozen=True, slots=True)
class _Dense:
    name: str
    is_flat: bool


@dataclass(frozen=True)
class _Ids:
    """Ids during a trace: table modules take them, and any computation with them raises."""

    argument: str
    _moves: frozenset[str] = field(default=frozenset({"to", "long", "int", "cpu", "cuda", "contiguous"}), repr=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._moves:
            return lambda *_, **__: self
        self._refuse(name)

    def __getitem__(self, key: Any) -> _Ids:
        return self

    @override
    def __eq__(self, other: object) -> NoReturn:
        self._refuse("==")

    def __iter__(self) -> NoReturn:
        self._refuse("iter")

    def __len__(self) -> int:
        raise ConfigError(f"forward reads the size of argument {self.argument!r}; take it from a row of a table module")

    def _refuse(self, name: str) -> NoReturn:
        raise ConfigError(
            f"forward reads {name!r} of the ids in argument {self.argument!r}, which an export does not support: a "
            "request brings the ids of each table module; compute other features from dense inputs"
        )


def _fill(value: Any, batch: EmbeddedBatch) -> Any:
    if isinstance(value, _Dense):
        dense = torch.as_tensor(batch.dense[value.name])
        return dense.squeeze(1) if value.is_flat else dense
    if isinstance(value, dict):
        return {key: _fill(each, batch) for key, each in value.items()}
    return value


def _bind(module: nn.Module, example: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the example by the parameters of ``forward``."""
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(**example) if isinstance(example, Mapping) else signature.bind(*example)
    except TypeError as error:
        raise ConfigError(f"example does not fit forward{signature}: {error}; give the arguments of a call") from error
    arguments = dict(bound.arguments)
    for each in signature.parameters.values():
        if each.kind is each.VAR_KEYWORD:
            arguments |= arguments.pop(each.name, {})
        elif each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL) and each.name in arguments:
            raise ConfigError(
                f"parameter {each.name!r} of forward{signature} is positional, expected one that a call can name; give "
                "the module that a wrapper contains, or one with named parameters"
            )
    return arguments


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


def _record_calls(
    module: nn.Module, places: Mapping[str, TableModule], arguments: Mapping[str, Any]
) -> dict[str, _Call]:
    """Run the example and return the call of each table module."""
    calls: dict[str, _Call] = {}

    def record(path: str, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        if path in calls:
            raise ConfigError(
                f"table module {path!r} is called twice by forward, expected once: a request has one feature for it; "
                "use mt.nn.EmbeddingBagCollection with features that share a table"
            )
        calls[path] = _Call(inputs, options)

    hooks = [
        each.register_forward_pre_hook(lambda _, args, kwargs, path=path: record(path, args, kwargs), with_kwargs=True)
        for path, each in places.items()
    ]
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            module(**arguments)
    finally:
        module.train(was_training)
        for hook in hooks:
            hook.remove()
    return calls


def _make_reader(path: str, module: TableModule, call: _Call) -> _Reader:
    """Return the stand-in of a table module, from its call in the example."""
    if isinstance(module, EmbeddingBagCollection):
        inputs = []
        for each in module.features:
            table = each.table or each.name
            _check_padding(each.name, each.padding, each.mode, module.table_set.specs[table].on_miss)
            inputs.append(_Input(each.name, table, each.dim, each.mode))
        features = call.arguments[0] if call.arguments else next(iter(call.options.values()))
        return _Reader(path, inputs, features, is_collection=True)
    spec = next(iter(module.table_set.specs.values()))
    if isinstance(module, EmbeddingBag):
        if module.mode == "max" or len(call.arguments) > 2 or "per_sample_weights" in call.options:
            raise ConfigError(
                f"table module {path!r} pools by mode {module.mode!r} or by per_sample_weights, expected 'sum' or "
                "'mean' without weights in an export"
            )
        _check_padding(path, module.padding_idx, module.mode, spec.on_miss)
        inputs = [_Input(path, spec.name, spec.dim, module.mode)]
    elif isinstance(module, Embedding):
        ids = call.arguments[0] if call.arguments else call.options["input"]
        if ids.dim() not in (1, 2):
            raise ConfigError(f"input of {path!r} has shape {tuple(ids.shape)}, expected (B,) or (B, L) in an export")
        _check_padding(path, module.padding_idx, "sum", spec.on_miss)
        inputs = [_Input(path, spec.name, spec.dim, "sum" if ids.dim() == 1 else "first", (*ids.shape, 0)[1])]
    else:
        raise ConfigError(
            f"table module {path!r} is a {type(module).__name__}, which returns as many rows as there are ids; an "
            "export needs mt.nn.EmbeddingBagCollection, EmbeddingBag or Embedding"
        )
    return _Reader(path, inputs, None, is_collection=False)


def _check_padding(feature: str, padding: int | None, mode: str, on_miss: str) -> None:
    if padding is not None and (mode == "mean" or on_miss == "initial"):
        raise ConfigError(
            f"feature {feature!r} has the padding id {padding} with mode {mode!r} and on_miss {on_miss!r}; a server "
            "counts every id of a request. Use a spec with on_miss='zeros' and mode 'sum', or bags without padding ids"
        )


def _declare(inputs: Sequence[_Input], dense: Mapping[str, Tensor], tables: MultiTable) -> Declaration:
    declaration = Declaration()
    declaration.slices = {name: {_SLICE: spec.slices[0]} for name, spec in tables.specs.items()}
    for each in inputs:
        if each.feature in declaration.features or each.feature in dense:
            raise ConfigError(f"feature {each.feature!r} is an input twice; rename the module, feature or argument")
        declaration.features[each.feature] = EmbeddingFeature(
            name=each.feature,
            slot=None,
            table=each.table,
            combiner=each.mode,  # type: ignore[arg-type]
            length=each.length,
            value_type="integer",
        )
        piece = Piece(feature=each.feature, slice=_SLICE, width=each.dim, length=each.length)
        declaration.layouts[each.feature] = Layout(name=each.feature, items=(Item((piece,)),), out=None, is_single=True)
    for name, tensor in dense.items():
        declaration.dense[name] = DenseFeature(name, width=1 if tensor.dim() == 1 else tensor.shape[1])
    return declaration


def _collect_tables(places: Mapping[str, TableModule]) -> MultiTable:
    """Return the tables of all modules."""
    tables: dict[str, Table] = {}
    for path, each in places.items():
        for name, table in each.table_set.host_tables().items():
            if name in tables:
                raise ConfigError(
                    f"table {name!r} of module {path!r} has the name of another table; give each module its own name="
                )
            tables[name] = table
    return MultiTable.of(tables)


@contextmanager
def _stand_ins(module: nn.Module, readers: Mapping[int, _Reader]) -> Iterator[None]:
    """Put the readers into the places of the table modules."""
    swapped: list[tuple[nn.Module, str, nn.Module]] = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in readers:
                swapped.append((parent, name, child))
                setattr(parent, name, readers[id(child)])
    try:
        yield
    finally:
        for parent, name, child in swapped:
            setattr(parent, name, child)

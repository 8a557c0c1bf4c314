"""``TaskModel``: a ``MonolithBaseModel`` as a ``Model``, so that estimators, exports and servers can use it.

The adapter declares the inputs of the task and calls its ``model_fn``. The task is a submodule, so its weights are the
dense part. Columns and slices that ``model_fn`` declares are known after one *dry run*: a call with a batch of zeros,
which reads no record. ``Features`` is the argument of ``model_fn``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from typing_extensions import override

from monolith.compat.original_names import OriginalNames
from monolith.compat.tasks.base_task import Mode
from monolith.compat.tasks.estimator_spec import outputs_of
from monolith.core.errors import ConfigError
from monolith.data import Batch, Dataset, FeatureList, Ragged, Schema
from monolith.features import Declaration, EmbeddedBatch, Output
from monolith.features.declaration import FeatureName
from monolith.features.model import EmbeddingSlice

if TYPE_CHECKING:
    from monolith.compat.tasks.monolith_base_model import MonolithBaseModel

__all__ = ["Features", "TaskModel", "schema_of_data"]

_DRY_ROWS = 2
_COLUMNS = ("label_mask", "weight", "sample_rate", "event_time_s", "uid")
_ALIASES = {"req_time": "event_time_s", "instance_weight": "weight"}


class Features(EmbeddedBatch):
    """Batch that a ``model_fn`` gets. ``features[name]`` finds each input by its name.

    ``features["label"]`` is (B,) for one label and (B, labels) for several. ``req_time`` and ``instance_weight`` are
    the times and weights of the examples.
    """

    @override
    def __getitem__(self, name: str) -> Any:
        name = _ALIASES.get(name, name)
        if name == "label":
            return self.label[:, 0] if self.label.shape[1] == 1 else self.label
        if name in set(self.dense):  # a set: in an export, the mappings refuse to be asked for other names
            return self.dense[name]
        return getattr(self, name) if name in _COLUMNS else super().__getitem__(name)


class TaskModel(OriginalNames):
    """Model whose ``forward`` is the ``model_fn`` of a task.

    Args:
        task: The task.
    """

    def __init__(self, task: MonolithBaseModel) -> None:
        feature_list = task.p.feature_list
        super().__init__(feature_list=None if feature_list is None else FeatureList.parse(feature_list))
        self.task = task
        self._schema: Schema | None = None
        self._slices: dict[str, EmbeddingSlice] = {}
        self._features: Features | None = None

    # --- declaring ----------------------------------------------------------------------------------------------------

    def build(self, schema: Schema) -> None:
        """Declare the inputs of a schema, and those that ``model_fn`` declares in a dry run.

        Raises:
            ConfigError: ``model_fn`` creates weights, or reads an input that the schema does not have.
        """
        self._schema = schema
        self.declaration.labels = schema.labels
        for feature in schema.dense_features:
            if feature.name not in self.declaration.dense:
                self.declaration.dense[feature.name] = feature
        was_training = self.task.training
        self.task.eval()  # a dry run must not change running averages
        try:
            with torch.no_grad(), _refuse_new_weights(type(self.task).__name__):
                self._run(_dry_features(schema, self.declaration), "train")
        except KeyError as error:
            raise ConfigError(
                f"model_fn of {type(self.task).__name__} reads an input that its schema does not have: "
                f"{error.args[0]}; add the input to the schema of input_fn and serving_input_receiver_fn"
            ) from error
        finally:
            self.task.train(was_training)
        self.declaration.freeze()

    @override
    def create_embedding_feature_column(
        self,
        feature_name: FeatureName,
        occurrence_threshold: int | None = None,
        expire_time: int = 36500,
        max_seq_length: int = 0,
        shared_name: FeatureName | None = None,
        combiner: str | None = None,
        *,
        slot: int | None = None,
    ) -> None:
        if self.declaration.is_frozen:
            self.declaration.feature(feature_name)  # raises for a feature that the dry run did not declare
            return
        if slot is None and shared_name is None and self._schema is not None:
            slots = {each.name: each.slot for each in self._schema.sparse_features}
            slot = slots.get(str(feature_name))
        threshold = self.task.p.default_occurrence_threshold if occurrence_threshold is None else occurrence_threshold
        super().create_embedding_feature_column(
            feature_name, threshold, expire_time, max_seq_length, shared_name, combiner, slot=slot
        )

    @override
    def lookup_embedding_slice(self, *args: Any, **options: Any) -> Any:
        """Declare a slice; return its tensors inside of ``model_fn``, and an ``EmbeddingSlice`` outside."""
        key = repr((args, sorted(options.items())))
        if key not in self._slices:
            if self.declaration.is_frozen:
                raise ConfigError(
                    f"model_fn looks up the slice {args!r} that its dry run in mode 'train' did not; look up the same "
                    "slices in every mode, or declare them in __init__"
                )
            self._slices[key] = super().lookup_embedding_slice(*args, **options)
        made = self._slices[key]
        return made if self._features is None else made(self._features)

    # --- computing ----------------------------------------------------------------------------------------------------

    @override
    def forward(self, batch: EmbeddedBatch) -> list[Output]:
        """Return the outputs of ``model_fn``, in the mode of the module; the mode of an exported program is predict."""
        mode: Mode = "train" if self.training else "eval"
        if torch.compiler.is_compiling():
            mode = "predict"
        return self._run(Features.of(batch, batch.layouts), mode)

    def _run(self, features: Features, mode: Mode) -> list[Output]:
        self._features = features
        try:
            result = self.task(features, mode)
        finally:
            self._features = None
        return outputs_of(
            result,
            mode=mode,
            default_heads=self.task.p.metrics.deep_insight_target,
            extra=self.task.take_extra_outputs(),
        )


def schema_of_data(data: Any) -> Schema:
    """Return the schema of a dataset, or of a list of batches; an empty one for data without a schema."""
    if isinstance(data, Dataset):
        return data.schema or Schema()
    batch = data[0] if isinstance(data, list | tuple) and data else None
    if not isinstance(batch, Batch):
        return Schema()
    dense = {name: array.shape[1] for name, array in batch.dense.items() if hasattr(array, "shape")}
    return Schema(sparse=list(batch.ids), dense=dense, labels=batch.label.shape[1])


class _ZeroLayouts(Mapping[str, Any]):
    """Layouts of a dry run: zeros with the shapes of the declaration, which grows while ``model_fn`` runs."""

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration

    def __getitem__(self, name: str) -> Any:
        layout = self._declaration.layouts[name]
        tensors = [torch.zeros(_DRY_ROWS, *tensor.shape) for tensor in layout.tensors()]
        return tensors if layout.out is None and not layout.is_single else tensors[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._declaration.layouts)

    def __len__(self) -> int:
        return len(self._declaration.layouts)


def _dry_features(schema: Schema, declaration: Declaration) -> Features:
    size = _DRY_ROWS
    nothing = Ragged.from_lists([[]] * size)
    kinds: dict[str, torch.dtype] = {"float32": torch.float32, "int64": torch.int64}
    dense: dict[str, Tensor] = {
        each.name: torch.zeros(size, each.width, dtype=kinds[each.dtype])
        for each in declaration.dense.values()
        if each.dtype in kinds
    }
    return Features(
        size=size,
        ids={each.name: nothing for each in schema.sparse_features},
        dense=dense,
        label=torch.zeros(size, schema.labels),
        label_mask=torch.ones(size, schema.labels, dtype=torch.bool),
        weight=torch.ones(size),
        sample_rate=torch.ones(size),
        event_time_s=torch.zeros(size, dtype=torch.int64),
        uid=torch.zeros(size, dtype=torch.int64),
        actions=nothing,
        extras={name: torch.zeros(size, width, dtype=torch.int64) for name, width in _widths(schema.extras).items()},
        layouts=_ZeroLayouts(declaration),
    )


def _widths(extras: Mapping[str, int] | Sequence[str]) -> Mapping[str, int]:
    return extras if isinstance(extras, Mapping) else dict.fromkeys(extras, 1)


@contextmanager
def _refuse_new_weights(task: str) -> Iterator[None]:
    """Refuse weights that ``model_fn`` creates: each call would create others, and no optimizer would know them."""
    thread = threading.get_ident()

    def refuse(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if threading.get_ident() == thread and parameter is not None:
            raise ConfigError(
                f"model_fn of {task} creates the weight {name!r} of a {type(module).__name__}, expected none; create "
                "layers in __init__ and call them in model_fn"
            )

    handle = register_module_parameter_registration_hook(refuse)
    try:
        yield
    finally:
        handle.remove()

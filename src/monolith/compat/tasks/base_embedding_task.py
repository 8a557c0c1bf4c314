"""``BaseEmbeddingTask``: training on folders of days, with ids that are counted in vocabulary files.

Combines the sizes of ``vocabulary``, declared transforms of ids and the reading of ``monolith.data``. The subclass
defines the model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor
from typing_extensions import override

from monolith import data
from monolith.compat.tasks.base_task import BaseTask, Mode
from monolith.compat.tasks.host_call import HostCallHook
from monolith.compat.tasks.input_files import files_between
from monolith.compat.tasks.unknown_ids import noise_for_unknown
from monolith.compat.tasks.vocabulary import read_vocabulary, vocabulary_sizes
from monolith.core import storage
from monolith.core.errors import ConfigError
from monolith.core.params import InstantiableParams, Params
from monolith.data import Dataset, Schema
from monolith.data.sources import patterns
from monolith.features import IdTransform, Model, QuotientRemainder
from monolith.training.hooks import Hook

__all__ = ["BaseEmbeddingTask", "FeatureGroup", "InputFn"]

logger = logging.getLogger(__name__)

InputFn: TypeAlias = Callable[..., Dataset]
"""``input_fn(shard=(0, 1))``."""
FeatureGroup: TypeAlias = tuple[str, ...]
"""Features whose rows are added."""


class BaseEmbeddingTask(BaseTask):
    """A task whose features are ids of known vocabularies.

    A subclass makes the model (:meth:`create_model_fn`), which declares its features by :meth:`declare_feature`. A
    batch has the ids of the records; the declared transforms apply at each lookup.
    """

    @classmethod
    @override
    def params(cls) -> InstantiableParams:
        """Add vocabularies, hashing and, to ``train``, folders of days."""
        p = super().params()
        p.define("vocab_size_per_slot", None, "One size for all slots; ids are taken modulo this.")
        p.define("custom_vocab_size_mapping", None, "Sizes of single slots.")
        p.define("vocab_size_offset", None, "Added to all sizes.")
        p.define("qr_multi_hashing", False, "Whether large vocabularies are split into quotients and remainders.")
        p.define("qr_hashing_threshold", 100_000_000, "Sizes above this are split.")
        p.define("qr_collision_rate", 4, "Ids that share a remainder.")
        p.define("vocab_file_path", None, "File with lines slot<TAB>count.")
        p.define("enable_deepinsight", False, "Whether metrics of sampled users are written; see HostCallHook.")
        p.define("enable_host_call_scalar_metrics", False, "Whether the loss is written with them.")
        p.define("enable_host_call_norm_metrics", False, "Whether norms are gathered every step.")
        p.define("host_call_every_n_steps", 100, "Steps of a window of enable_caching_with_tpu_var_mode.")
        p.define("files_interleave_cycle_length", 4, "Files that are read in turn.")
        p.define("deterministic", False, "Whether batches come in a fixed order; here they always do.")
        p.define("gradient_multiplier", 1.0, "Factor on the gradients of embeddings.")
        p.define("enable_caching_with_tpu_var_mode", False, "Whether samples are gathered over windows of steps.")
        p.define("top_k_sampling_num_per_core", 6, "Most samples of a step.")
        p.define("use_random_init_embedding_for_oov", False, "Whether unknown ids get noise in place of zeros.")
        p.eval.define("file_pattern", None, "Files to evaluate on; None for those of the training.")
        p.train.define("file_folder", None, "Folder before the date.")
        p.train.define("date_and_file_name_format", "*/*/part*", "Pattern of the files below the folder.")
        p.train.define("start_date", None, "First day, YYYYMMDD.")
        p.train.define("end_date", None, "Last day, YYYYMMDD, which is read too.")
        p.train.define("vocab_file_folder_prefix", None, "Folder before the end date of a vocabulary file per day.")
        p.train.define("record", "tf_example", "Which message the records are; see monolith.data.files.")
        return p

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        if params.vocab_size_per_slot is not None or params.custom_vocab_size_mapping is not None:
            logger.info(
                "vocabulary sizes fixed per_slot=%s custom=%s",
                params.vocab_size_per_slot,
                params.custom_vocab_size_mapping,
            )
        self.vocabulary_sizes = vocabulary_sizes(
            read_vocabulary(self._vocabulary_file()),
            size_per_slot=params.vocab_size_per_slot,
            custom_sizes=params.custom_vocab_size_mapping,
            offset=params.vocab_size_offset,
        )

    # --- defined by a subclass ----------------------------------------------------------------------------------------

    def schema(self) -> Schema | None:
        """Return the inputs to read from each record; None = those that the model declares."""
        return None

    # --- input --------------------------------------------------------------------------------------------------------

    @override
    def create_input_fn(self, mode: Mode = "train") -> InputFn:
        """Return ``input_fn(shard=(0, 1))``, which returns the data of a worker.

        ``shard`` is this worker's share of the files. In the modes ``eval`` and ``predict`` the data is read once, and
        the last batch may be smaller.
        """

        def input_fn(shard: tuple[int, int] = (0, 1)) -> Dataset:
            dataset = data.files(
                self.input_files(mode),
                record=self.p.train.record,
                schema=_with_slots_in_ids(self.schema()),
                shard=shard,
                interleave=self.p.files_interleave_cycle_length,
            )
            if mode != "train":
                return dataset.batch(self._batch_size(mode))
            if self.p.train.repeat:
                dataset = dataset.repeat()
            return dataset.batch(self._batch_size(mode), drop_last=True)

        return input_fn

    def input_files(self, mode: Mode = "train") -> list[str]:
        """Return the files of a mode.

        Training reads ``train.file_pattern``, or the files of ``train.file_folder`` within the dates. Other modes read
        ``eval.file_pattern``, or else the files of the training.

        Raises:
            ConfigError: Neither is set, no file matches, or none has a date within the bounds.
        """
        train = self.p.train
        if mode != "train" and self.p.eval.file_pattern is not None:
            return patterns.expand(self.p.eval.file_pattern)
        if train.file_pattern is not None:
            return patterns.expand(train.file_pattern)
        if train.file_folder is None:
            raise ConfigError("train.file_pattern and train.file_folder are None; set one of them")
        found = patterns.expand([f"{train.file_folder.rstrip('/')}/{train.date_and_file_name_format}"])
        files = files_between(found, train.file_folder, train.start_date, train.end_date)
        if not files:
            raise ConfigError(
                f"none of {len(found)} files in {train.file_folder!r} is from {train.start_date} to {train.end_date}; "
                "check train.start_date and train.end_date"
            )
        return files

    @override
    def training_hooks(self) -> list[Hook]:
        """Return the hook that writes metrics of sampled users, when a parameter asks for it."""
        p = self.p
        if not p.enable_deepinsight and not p.enable_host_call_scalar_metrics:
            return super().training_hooks()
        hook = HostCallHook(
            every_n_steps=p.host_call_every_n_steps if p.enable_caching_with_tpu_var_mode else 1,
            rows_per_step=p.top_k_sampling_num_per_core,
            scalars=p.enable_host_call_scalar_metrics,
            samples=p.enable_deepinsight,
        )
        return [*super().training_hooks(), hook]

    # --- embeddings ---------------------------------------------------------------------------------------------------

    def declare_feature(self, model: Model, name: str, *, slot: int | None = None, **options: Any) -> FeatureGroup:
        """Declare a feature of a model with the vocabulary of its slot.

        The declared transform brings ids into the vocabulary, and splits a large vocabulary by quotient-remainder
        hashing. Training, evaluation, prediction and serving apply it.

        Args:
            model: The model, in its ``__init__``.
            name: Name of the feature.
            slot: Its slot; None = as ``Model.embedding_feature`` finds it.
            options: Further options of ``Model.embedding_feature``.

        Returns:
            The features to add up, one or two, as a group for ``Model.embedding_slice`` with ``dim``.
        """
        slot = model.declaration.resolve(name, slot)[1]
        size: int | None = self.p.vocab_size_per_slot
        if (split := self.split_of(slot)) is not None:
            return model.split_feature(name, split, vocabulary_size=size, slot=slot, **options)
        model.embedding_feature(name, slot=slot, id_transform=IdTransform(size=size), **options)
        return (name,)

    def split_of(self, slot: int | None) -> QuotientRemainder | None:
        """Return how the ids of a slot are split, or None when they are not."""
        size = 0 if slot is None else self.vocabulary_sizes.get(slot, 0)
        if not self.p.qr_multi_hashing or size <= self.p.qr_hashing_threshold:
            return None
        return QuotientRemainder(size, self.p.qr_collision_rate)

    def prepare_embedding(
        self, rows: Tensor, init_minval_for_oov: float | None = None, init_maxval_for_oov: float | None = None
    ) -> Tensor:
        """Apply the parameters to looked-up rows: noise for unknown ids, and the factor on gradients.

        Noise needs both bounds; every call draws it again.
        """
        factor: float = self.p.gradient_multiplier
        if factor != 1.0 and rows.requires_grad:
            rows = rows.view_as(rows)  # another tensor, so that the hook is not on the caller's
            rows.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]
        if not self.p.use_random_init_embedding_for_oov or init_minval_for_oov is None or init_maxval_for_oov is None:
            return rows
        return noise_for_unknown(rows, init_minval_for_oov, init_maxval_for_oov)

    # --- private ------------------------------------------------------------------------------------------------------

    def _batch_size(self, mode: Mode) -> int:
        size = self.p.train.per_replica_batch_size
        if mode != "train" and self.p.eval.per_replica_batch_size is not None:
            size = self.p.eval.per_replica_batch_size
        if type(size) is not int or size < 1:
            raise ConfigError(f"train.per_replica_batch_size is {size!r}; set it to a whole number from 1 up")
        return size

    def _vocabulary_file(self) -> str:
        """Return the file of the end date if there is exactly one, else ``vocab_file_path``."""
        prefix, date = self.p.train.vocab_file_folder_prefix, self.p.train.end_date
        if prefix is not None and date is not None:
            found = storage.find_files(f"{prefix}{date}/part*.csv")
            if len(found) == 1:
                self.p.vocab_file_path = found[0]
            else:
                logger.warning(
                    "vocabulary file of the end date missing or ambiguous folder=%s%s found=%s", prefix, date, found
                )
        path: str | None = self.p.vocab_file_path
        if path is None:
            raise ConfigError("vocab_file_path is None; set it to a file with lines slot<TAB>count")
        return path


def _with_slots_in_ids(schema: Schema | None) -> Schema | None:
    """Return the schema with ids of slot and value, as vocabularies need them; a negative value is unknown."""
    if schema is None:
        return None
    return schema.with_value_types({each.name: each.value_type or "slot48" for each in schema.sparse_features})

"""``BaseEmbeddingTask``: training on folders of days, with ids that are counted in vocabulary files.

Combines the sizes of ``vocabulary``, the splitting of ``qr_hashing`` and the reading of ``monolith.data``. The subclass
defines the model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from torch import Tensor
from typing_extensions import override

from monolith import data
from monolith.compat.tasks.base_task import BaseTask, Mode
from monolith.compat.tasks.host_call import UID_BUCKETS
from monolith.compat.tasks.input_files import files_between
from monolith.compat.tasks.qr_hashing import QuotientRemainder
from monolith.compat.tasks.stop_batches import StopBatches
from monolith.compat.tasks.unknown_ids import noise_for_unknown
from monolith.compat.tasks.vocabulary import read_vocabulary, vocabulary_sizes
from monolith.core import fid, storage
from monolith.core.errors import ConfigError
from monolith.core.params import InstantiableParams, Params
from monolith.data import Batch, Dataset, Schema
from monolith.data.batch import Ragged
from monolith.data.sources import patterns

__all__ = ["UID_BUCKET", "BaseEmbeddingTask", "InputFn"]

logger = logging.getLogger(__name__)

UID_BUCKET = "uid_bucket"
"""The extra of a batch, (size,) int32: uid mod 1000."""

InputFn = Callable[..., Dataset | StopBatches]
"""``input_fn(shard=(0, 1), enable_stopping_signals=False)``."""

IdArray = npt.NDArray[np.int64]

_SIGN = 64 - fid.V2_SIGNATURE_BITS
_SIGNATURE = np.int64((1 << fid.V2_SIGNATURE_BITS) - 1)


class BaseEmbeddingTask(BaseTask):
    """A task whose features are ids of known vocabularies.

    A subclass defines the features (:meth:`schema`) and makes the model (:meth:`create_model_fn`). A feature that is
    split by quotient-remainder hashing (:meth:`split_of`) becomes two in a batch, ``<name>_0`` and ``<name>_1``; the
    model adds their embeddings.
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
        p.define("enable_deepinsight", False, "Whether samples of predictions are gathered.")
        p.define("enable_host_call_scalar_metrics", False, "Whether scalars are gathered every step.")
        p.define("enable_host_call_norm_metrics", False, "Whether norms are gathered every step.")
        p.define("files_interleave_cycle_length", 4, "Files that are read in turn.")
        p.define("deterministic", False, "Whether batches come in a fixed order; here they always do.")
        p.define("gradient_multiplier", 1.0, "Factor on the gradients of embeddings.")
        p.define("enable_caching_with_tpu_var_mode", False, "Whether samples are gathered over a window of steps.")
        p.define("top_k_sampling_num_per_core", 6, "Most samples of a step.")
        p.define("use_random_init_embedding_for_oov", False, "Whether unknown ids get noise in place of zeros.")
        p.define("merge_vector", False, "Whether the vectors of a slot are one row; here they always are.")
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

    def schema(self) -> Schema:
        """Return the features to read from each record; every sparse feature needs its slot."""
        raise NotImplementedError("Abstract method.")

    # --- input --------------------------------------------------------------------------------------------------------

    @override
    def create_input_fn(self, mode: Mode = "train") -> InputFn:
        """Return ``input_fn(shard=(0, 1), enable_stopping_signals=False)``, which returns the data of a worker.

        ``shard`` is this worker's share of the files. With stopping signals the data is followed by stop batches
        without end; see :class:`monolith.compat.tasks.StopBatches`.

        Raises:
            ConfigError: The mode is not ``"train"``.
        """
        if mode != "train":
            raise ConfigError(f"mode is {mode!r}; BaseEmbeddingTask reads data for 'train' only")

        def input_fn(shard: tuple[int, int] = (0, 1), enable_stopping_signals: bool = False) -> Dataset | StopBatches:
            train = self.p.train
            if train.repeat and enable_stopping_signals:
                raise ConfigError("train.repeat and enable_stopping_signals are both set; data that repeats never ends")
            dataset = data.files(
                self.input_files(),
                record=train.record,
                schema=_with_slots_in_ids(self.schema()),
                shard=shard,
                interleave=self.p.files_interleave_cycle_length,
            )
            if train.repeat:
                dataset = dataset.repeat()
            dataset = dataset.batch(self._batch_size(), drop_last=True).map(self.post_process)
            return StopBatches(dataset) if enable_stopping_signals else dataset

        return input_fn

    def input_files(self) -> list[str]:
        """Return the files to train on: ``train.file_pattern``, or those of ``train.file_folder`` within the dates.

        Raises:
            ConfigError: Neither is set, no file matches, or none has a date within the bounds.
        """
        train = self.p.train
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

    def post_process(self, batch: Batch) -> Batch:
        """Bring ids into their vocabularies, split large ones, and add the bucket of each user."""
        return batch.changed(self._process)

    # --- embeddings ---------------------------------------------------------------------------------------------------

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

    def _process(self, batch: Batch) -> Batch:
        slots = {feature.name: feature.slot for feature in self.schema().sparse_features}
        ids: dict[str, Ragged] = {}
        for name, bags in batch.ids.items():
            inside = self._within_vocabulary(bags.values)
            if (split := self.split_of(slots.get(name))) is None:
                ids[name] = Ragged(inside, bags.offsets, bags.shared)
                continue
            for part, values in enumerate(split.split_fids(inside)):
                ids[f"{name}_{part}"] = Ragged(values, bags.offsets, bags.shared)
        buckets = np.remainder(batch.uid, UID_BUCKETS).astype(np.int32)
        return replace(batch, ids=ids, extras={**batch.extras, UID_BUCKET: buckets})

    def _within_vocabulary(self, values: IdArray) -> IdArray:
        """Return fids with signatures as vocabularies have them.

        With one size for all slots a signature may be a hash: it is taken modulo the size. Otherwise it is a place in
        a vocabulary, and a negative one, which stands for an unknown value, becomes 0.
        """
        size: int | None = self.p.vocab_size_per_slot
        places = np.maximum((values << _SIGN) >> _SIGN, 0) if size is None else (values & _SIGNATURE) % size
        return (values & ~_SIGNATURE) | places

    def _batch_size(self) -> int:
        size = self.p.train.per_replica_batch_size
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


def _with_slots_in_ids(schema: Schema) -> Schema:
    """Return the schema with ids of slot and value, as vocabularies need them; a negative value is unknown."""
    return schema.with_value_types({each.name: each.value_type or "slot48" for each in schema.sparse_features})

"""``Model``: a torch module that declares its features in ``__init__``; ``Output``: the result of one of its heads.

A model never sees a table: ``forward`` gets a batch with filled layouts. The training loop computes losses, clips
gradients and updates rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from torch import Tensor, nn

from monolith.core.errors import ConfigError
from monolith.core.fid import ValueType
from monolith.data import Batch, FeatureList
from monolith.embedding import MultiTable
from monolith.embedding.admission import AdmissionFilter
from monolith.embedding.specs import NEVER_EXPIRES_DAYS, WhenFull
from monolith.features.autograd import embed
from monolith.features.declaration import Declaration, FeatureName, FeatureNames
from monolith.features.embedder import EmbeddedBatch, Embedder, HostEmbedder
from monolith.features.id_transforms import IdTransform, QuotientRemainder, SplitPart
from monolith.features.layouts import Combiner, Layout, Out

if TYPE_CHECKING:
    from monolith.embedding import EmbeddingStore, LearningRateFunction
    from monolith.embedding.compressors import Compressor
    from monolith.embedding.initializers import Initializer
    from monolith.embedding.optimizers import Optimizer

__all__ = ["EmbeddingSlice", "Model", "Output"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Output:
    """Result of one head for a batch. Shapes: (B,) unless noted otherwise."""

    head: str = "ctr"
    """Name of the head; several heads have different ones."""
    logits: Tensor | None = None
    """Loss: Σ weight · cross entropy(label, logit − ln sample_rate). Prediction: sigmoid(logit), uncorrected."""
    label: Tensor | None = None
    """Label to predict. A column of ``batch.label`` brings its mask with it."""
    mask: Tensor | None = None
    """True where the label is known."""
    weight: Tensor | None = None
    """Weight of each example; None = the batch's."""
    loss: Tensor | None = None
    """Loss that replaces that of the logits: a scalar, or (B,), which is masked, weighted and summed."""
    delayed_feedback: Literal["fnw", "fnc"] | None = None
    """Loss of the logits for streams of a fast joiner, with r = sample_rate: fake negative weighted, or calibrated."""
    predictions: Tensor | None = None
    """Other predictions than sigmoid(logits)."""
    is_classification: bool = True
    """Whether the predictions are probabilities: measured by AUC and log loss, else by the squared error."""
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """Further outputs of ``predict`` and of the exported model."""

    def __post_init__(self) -> None:
        if self.logits is None and self.predictions is None:
            raise ConfigError(f"head {self.head!r} has neither logits nor predictions; give one")
        if self.delayed_feedback not in (None, "fnw", "fnc"):
            raise ConfigError(
                f"delayed_feedback of head {self.head!r} is {self.delayed_feedback!r}, expected 'fnw', 'fnc' or None"
            )
        if self.delayed_feedback is not None and (self.logits is None or self.loss is not None):
            raise ConfigError(
                f"head {self.head!r} has delayed_feedback without logits or beside a loss; give logits, and no loss"
            )


class EmbeddingSlice:
    """Tensors of one slice: call it with the batch in ``forward``."""

    __slots__ = ("layout",)

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __call__(self, batch: Batch) -> Any:
        """Return the layout's tensor, or its list of tensors."""
        if not isinstance(batch, EmbeddedBatch):
            raise ConfigError("this batch has no embeddings; call the model with it, model(batch), not its forward()")
        return batch.layouts[self.layout.name]

    def __repr__(self) -> str:
        return f"EmbeddingSlice({self.layout.name})"


class _Uninitialized:
    """Stands for the declaration of a model whose ``__init__`` has not called that of ``Model``."""

    def __get__(self, model: object, owner: type) -> Self:
        if model is None:
            return self
        raise ConfigError(
            f"__init__ of {owner.__name__} has not called super().__init__(); call it before the first declaration"
        )


class Model(nn.Module):
    """Base of all models: a ``torch.nn.Module`` with embedding features.

    Declare everything in ``__init__``, compute in ``forward``:

    >>> class Ranker(Model):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embedding_feature("user_id", slot=1)
    ...         self.embedding_feature("item_id", slot=2)
    ...         self.bias = self.embedding_slice(["user_id", "item_id"], "bias", dim=1, out="add_n")
    ...     def forward(self, batch):
    ...         return Output(logits=self.bias(batch).squeeze(1), label=batch.label[:, 0])
    >>> batch = Batch.from_arrays(ids={"user_id": [[7], [8]], "item_id": [[1, 2], []]}, label=[1, 0])
    >>> Ranker()(batch).logits.tolist()
    [0.0, 0.0]
    """

    declaration: Declaration = cast(Any, _Uninitialized())  # __init__ hides it by an attribute of the instance
    """The features, slices and labels of the model."""

    def __init__(self, *, labels: int = 1, feature_list: FeatureList | None = None) -> None:
        super().__init__()
        self.declaration = Declaration(labels=labels, feature_list=feature_list)
        self._embedder: Embedder | None = None

    # --- declaring ----------------------------------------------------------------------------------------------------

    def embedding_feature(
        self,
        name: FeatureName,
        *,
        slot: int | None = None,
        shared_with: FeatureName | None = None,
        combiner: Combiner | None = None,
        max_sequence_length: int = 0,
        expire_days: int = NEVER_EXPIRES_DAYS,
        occurrence_threshold: int = 0,
        admission: AdmissionFilter | None = None,
        on_miss: Literal["zeros", "initial"] = "zeros",
        max_bytes: int | None = None,
        when_full: WhenFull = "refuse",
        column: str | None = None,
        id_transform: IdTransform | None = None,
        value_type: ValueType | None = None,
        hash_wide: bool = False,
    ) -> None:
        """Declare a feature whose values are ids.

        Args:
            name: Name in the batch; or a slot number, for ``fc_slot_<n>`` or the name in the feature list.
            slot: Slot of its ids in records that carry ready-made ids; other data needs none.
            shared_with: Another feature whose rows this one uses, with its expiry, threshold and budget.
            combiner: How the ids of an example become one row: ``sum``, ``mean``, or ``first``, which keeps the first
                ``max_sequence_length`` of them apart. None: ``first`` when a length is given, else ``sum``.
            max_sequence_length: Ids kept by ``first``; shorter lists are padded with zeros, ids beyond are not read.
            expire_days: Days without an update after which a row may be removed.
            occurrence_threshold: Sightings of an id before it gets a row.
            admission: The filter that counts the sightings; None = ``SlidingHashFilter()``, whose memory follows the
                ids. ``ProbabilisticFilter()`` admits by chance and takes no memory.
            on_miss: Values of an id without a row: ``zeros``, or its ``initial`` values.
            max_bytes: Hard memory budget of the table; None = unbounded.
            when_full: A table at its budget refuses new ids (``refuse``, which ends a training), or evicts its least
                recently updated rows (``evict_oldest``).
            column: Name in the records; None = the same.
            id_transform: Place of each id in a vocabulary of a fixed size, applied before each lookup; None = ids are
                rows as they are.
            value_type: Type of its values: ``integer`` and ``text`` have ids of 64 bits, ``fid`` are ready-made ids
                or values beside the slot, ``bucket`` are numbers that fall into powers of two. None: the type of the
                first value; the model folder and exports record it.
            hash_wide: Hash an integer that does not fit beside the slot of a ``fid`` feature, instead of refusing it.
        """
        self.declaration.add_feature(
            name,
            slot=slot,
            shared_with=shared_with,
            combiner=combiner,
            max_sequence_length=max_sequence_length,
            expire_days=expire_days,
            occurrence_threshold=occurrence_threshold,
            admission=admission,
            on_miss=on_miss,
            max_bytes=max_bytes,
            when_full=when_full,
            column=column,
            id_transform=id_transform,
            value_type=value_type,
            hash_wide=hash_wide,
        )

    def split_feature(
        self, name: str, split: QuotientRemainder, *, vocabulary_size: int | None = None, **options: Any
    ) -> tuple[str, str]:
        """Declare a feature by quotient-remainder hashing: a small table holds a large vocabulary.

        Two features of one table, ``<name>_0`` (remainders) and ``<name>_1`` (quotients), read the input ``name``.
        Give the returned pair to ``embedding_slice`` as a group, which adds the two rows:
        ``self.embedding_slice([pair], "vec", dim=8)``.

        Args:
            name: Name in the batch.
            split: Size and collision rate of the vocabulary.
            vocabulary_size: Ids are taken modulo this first; None = ids are places in the vocabulary already.
            options: Further options of ``embedding_feature``.

        Returns:
            The names of the two features.
        """
        names = f"{name}_0", f"{name}_1"
        slot = self.declaration.resolve(name, options.pop("slot", None))[1]
        parts: tuple[tuple[SplitPart, str, str | None], ...] = (
            ("remainder", names[0], None),
            ("quotient", names[1], names[0]),
        )
        for part, own, owner in parts:
            self.declaration.add_feature(
                own,
                slot=slot,
                source=name,
                shared_with=owner,
                id_transform=IdTransform.of_split(split, part, size=vocabulary_size),
                **options,
            )
        return names

    def embedding_slice(
        self,
        features: FeatureNames,
        name: str,
        dim: int | None = None,
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        compressor: Compressor | None = None,
        learning_rate: float | LearningRateFunction | None = None,
        out: Out | Literal["addn"] | None = None,
        group_out: Literal["add_n", "concat"] = "add_n",
    ) -> EmbeddingSlice:
        """Declare a slice of the rows of features, and how their tensors are joined.

        A slice is known by its feature's table and its name: naming it again reads the same columns.

        Args:
            features: One feature; a list of features; pairs of (feature, dim), or a mapping; or, with ``dim``, groups:
                tuples of features that are joined first.
            name: Name of the slice.
            dim: Columns, the same for all features.
            optimizer: Update rule; None = Adagrad with rate 0.01 and an accumulator of 1.
            initializer: First values; None = uniform in ±0.05.
            compressor: Form when served; None = half precision.
            learning_rate: Rate or schedule; None = the optimizer's.
            out: ``concat`` along columns, ``stack`` along a new axis, ``add_n``; None = a list with one tensor per
                feature (the tensor itself when one feature is given, not a list).
            group_out: How the features of a group are joined.

        Returns:
            A callable for ``forward``: with the batch, it returns the tensors.
        """
        parts = {
            "optimizer": optimizer,
            "initializer": initializer,
            "compressor": compressor,
            "learning_rate": learning_rate,
        }
        return EmbeddingSlice(self.declaration.add_layout(features, name, dim, out=out, group_out=group_out, **parts))

    def dense_feature(self, name: str, width: int = 1, **options: Any) -> None:
        """Declare a dense input, ``batch.dense[name]``; ``options`` are those of ``monolith.data.DenseFeature``."""
        self.declaration.add_dense(name, width=width, **options)

    # --- use ----------------------------------------------------------------------------------------------------------

    def input_columns(self) -> Mapping[str, Sequence[tuple[str, int]]]:
        """Return the input columns of dense modules: module name to blocks of columns, from left to right.

        Checkpoints keep these names. When a feature is added (``grow_nn``), each weight keeps the numbers of its old
        columns wherever they stand now. A model that returns nothing gets its new columns at the end.

        Returns:
            Name of a module such as ``tower`` to (name of a block, width) of the columns that it reads.
        """
        return {}

    def attach(self, store: EmbeddingStore) -> Embedder:
        """Read rows from ``store`` from now on; return the embedder."""
        self.declaration.freeze()
        self._embedder = HostEmbedder(self.declaration, store)
        return self._embedder

    @property
    def embedder(self) -> Embedder:
        """Embedder, which turns batches into layouts; without ``attach``, with new tables in this process."""
        if self._embedder is None:
            return self.attach(MultiTable(self.declaration.table_specs()))
        return self._embedder

    def __call__(self, batch: Batch, *args: Any, **options: Any) -> Any:
        """Compute the outputs of a batch; its rows are looked up unless it brings them."""
        if not isinstance(batch, EmbeddedBatch):
            batch = embed(self.embedder, self.embedder.pull(batch)).batch
        return super().__call__(batch, *args, **options)

    def forward(self, batch: Any) -> Output | list[Output]:
        """Return the output of every head. Override it."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(self, batch)")

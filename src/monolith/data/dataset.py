"""``Dataset``: what is read, what is done to its rows, and how they become batches.

A dataset is a description; it reads nothing until it is iterated over. Every method returns a new dataset with one more
step, and steps run in the order in which they were named. ``state`` and ``restore`` resume at the exact record.

Which steps exist is listed here; what they do is in ``stages`` and ``transforms``, what they read in ``sources``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias

from monolith import _native
from monolith.core.errors import ConfigError, DataError
from monolith.data import transforms
from monolith.data.batch import Batch
from monolith.data.records.messages import Example
from monolith.data.row_counts import RowCounts
from monolith.data.schema import BatchMaker, Schema, make_parser
from monolith.data.sources.base import Source
from monolith.data.sources.work_list import FilesGivenAway
from monolith.data.stages import (
    BatchStage,
    MapStage,
    Mark,
    MergeStage,
    ParseStage,
    PrefetchStage,
    RepeatStage,
    RewriteStage,
    ShuffleStage,
    Stage,
    State,
    TransformStage,
)
from monolith.data.transforms.base import BuildContext, Transform

__all__ = ["Dataset"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
RowStage: TypeAlias = Stage[_native.Rows]

_STATE_VERSION = 1


@dataclass(slots=True)
class _Opening:
    """What the stages of one iteration share."""

    schema: Schema
    seed: int
    columns: _native.Columns = field(default_factory=_native.Columns)
    counts: RowCounts = field(default_factory=RowCounts)

    def build(self, transform: Transform, number: int) -> _native.RowOp:
        """Make the native operation of a transform; each has random numbers of its own."""
        context = BuildContext(
            columns=self.columns,
            line_fields=self.schema.line_fields.native(),
            seed=self.seed,
            slots={
                each.column or each.name: each.slot for each in self.schema.sparse_features if each.slot is not None
            },
        )
        operation = transform.build(context.at(number + 1))
        self.counts.add(type(transform).__name__, operation)
        return operation

    def for_epoch(self, epoch: int) -> _Opening:
        """The same with other random choices."""
        return replace(self, seed=_native.mix(self.seed, epoch)) if epoch else self


class _Origin(Protocol):
    """Where rows come from."""

    def open(self, opening: _Opening, *, keep_all: bool) -> RowStage: ...

    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _FromSource:
    make: Callable[[], Source]
    skip_corrupt: bool

    def open(self, opening: _Opening, *, keep_all: bool) -> RowStage:
        source = self.make()
        parser = make_parser(
            opening.schema,
            source.record,
            opening.columns,
            keep_all=keep_all,
            skip_corrupt=self.skip_corrupt,
            seed=opening.seed,
        )
        opening.counts.add("parser", parser)
        return ParseStage(source, parser)

    def name(self) -> str:
        return "source"


@dataclass(frozen=True, slots=True)
class _Merged:
    parts: tuple[Dataset, ...]
    block: int

    def open(self, opening: _Opening, *, keep_all: bool) -> RowStage:
        stages = []
        for number, part in enumerate(self.parts):
            own = replace(opening, seed=_native.mix(opening.seed, number))
            stages.append(part._open_rows(own, keep_all=keep_all))
        return MergeStage(stages, self.block)

    def name(self) -> str:
        return "merge(" + ", ".join(part._signature() for part in self.parts) + ")"


@dataclass(frozen=True, slots=True)
class _Rewrite:
    rewrite: Callable[[bytes], Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class _Shuffle:
    size: int
    seed: int


@dataclass(frozen=True, slots=True)
class _Repeat:
    epochs: int | None


@dataclass(frozen=True, slots=True)
class _Batched:
    size: int
    drop_last: bool


@dataclass(frozen=True, slots=True)
class _MapBatches:
    change: Callable[[Batch], Batch | None]


@dataclass(frozen=True, slots=True)
class _Prefetch:
    depth: int


def _step(make: Callable[P, Transform]) -> Callable[Concatenate[Dataset, P], Dataset]:
    """Return the method that adds a transform: it takes the transform's own arguments."""

    @functools.wraps(make, assigned=("__doc__",), updated=())
    def method(self: Dataset, /, *args: P.args, **options: P.kwargs) -> Dataset:
        return self.transform(make(*args, **options))

    return method


@dataclass(frozen=True, slots=True)
class _Cursor:
    """The running, or last, iteration of a dataset."""

    stage: Stage[Any] | None = None
    opening: _Opening | None = None
    mark: Mark | None = None


class Dataset:
    """Rows out of a source, changed by steps, in batches. Made by ``monolith.data.files`` and its like.

    Iterating gives ``Batch`` objects; before ``batch`` was called it gives rows, as ``Example`` messages. Each ``iter``
    starts at the beginning, or once at the place given to ``restore``.
    """

    def __init__(
        self,
        make_source: Callable[[], Source],
        *,
        schema: Schema | None = None,
        seed: int = 0,
        skip_corrupt: bool = False,
    ) -> None:
        self._origin: _Origin = _FromSource(make_source, skip_corrupt)
        self._steps: tuple[Any, ...] = ()
        self._schema = schema
        self._seed = seed
        self._cursor = _Cursor()
        self._restored: State | None = None

    # --- steps on rows ------------------------------------------------------------------------------------------------

    def transform(self, step: Transform | str) -> Dataset:
        """Add a transform, or the text proto of a ``TransformConfig``.

        Raises:
            ConfigError: The dataset is batched already, or the text is not a TransformConfig.
        """
        made = transforms.parse_transform_config(step) if isinstance(step, str) else step
        if self.is_batched != made.is_per_batch:
            what = "the rows of a batch: put it after" if made.is_per_batch else "rows: put it before"
            raise ConfigError(f"{type(made).__name__} works on {what} batch()")
        return self._with(made)

    filter_by_fids = _step(transforms.FilterByFids)
    filter_by_action = _step(transforms.FilterByAction)
    filter_by_label = _step(transforms.FilterByLabel)
    filter_by_value = _step(transforms.FilterByValue)
    filter_by_feature_value = _step(transforms.FilterByFeatureValue)
    filter_by_source = _step(transforms.FilterBySource)
    special_strategy = _step(transforms.SpecialStrategy)
    add_action = _step(transforms.AddAction)
    add_label = _step(transforms.AddLabel)
    scatter_label = _step(transforms.ScatterLabel)
    multi_label_gen = _step(transforms.MultiLabelGen)
    label_upper_bound = _step(transforms.LabelUpperBound)
    label_normalization = _step(transforms.LabelNormalization)
    use_field_as_label = _step(transforms.UseFieldAsLabel)
    fill_multi_rank_output = _step(transforms.FillMultiRankOutput)
    instance_reweight = _step(transforms.InstanceReweight)
    switch_slot = _step(transforms.SwitchSlot)
    feature_combine = _step(transforms.FeatureCombine)
    string_to_fid = _step(transforms.StringToFid)
    negative_sample = _step(transforms.NegativeSample)
    negative_gen = _step(transforms.NegativeGen)
    in_batch_negatives = _step(transforms.InBatchNegatives)

    def map(self, change: Callable[[Any], Any]) -> Dataset:
        """Change every item by a Python function; None drops it.

        Before ``batch`` the function gets each row as an ``Example`` message and returns it, or several in a list, or
        None: general, and slow. After ``batch`` it gets a ``Batch`` and returns one, or None.
        The function must be pure, or a resumed run will differ.
        """
        if self.is_batched:
            return self._with(_MapBatches(change))

        def rewrite(record: bytes) -> list[bytes]:
            changed = change(Example.FromString(record))
            messages = [] if changed is None else changed if isinstance(changed, list | tuple) else [changed]
            return [message.SerializeToString() for message in messages]

        return self._with(_Rewrite(rewrite))

    def filter(self, keep: Callable[[Any], bool]) -> Dataset:
        """Keep the items for which a Python function says True; see ``map``."""
        return self.map(lambda item: item if keep(item) else None)

    def shuffle(self, size: int, seed: int | None = None) -> Dataset:
        """Put rows into random order within windows of ``size`` rows; 0 and 1 change nothing.

        A window is read, shuffled and given out before the next one, so memory holds up to ``size`` rows and a saved
        state holds none. For more than a window, shuffle the order of the files too.
        """
        self._rows_only("shuffle")
        _check_count("shuffle size", size, 0)
        return self if size <= 1 else self._with(_Shuffle(size, self._seed if seed is None else seed))

    def repeat(self, epochs: int | None = None) -> Dataset:
        """Read everything before this step again and again: ``epochs`` times, or for ever.

        Random choices differ from epoch to epoch. Item pools start anew with each.
        """
        self._rows_only("repeat")
        if epochs is not None:
            _check_count("epochs", epochs, 1)
        return self._with(_Repeat(epochs))

    def split_flow(self, names: Sequence[str]) -> list[Dataset]:
        """Return one dataset per data source: the rows whose header, or message, names it.

        Each of them reads the input for itself. Rows of other sources are in none of them.
        """
        return [self.filter_by_source(names=[name]) for name in names]

    def merge_flow(self, *others: Dataset, block: int = 1) -> Dataset:
        """Return the rows of this dataset and of others in turn, ``block`` rows of each; one that ends is left out.

        Raises:
            ConfigError: One of them is batched already, or has another schema.
        """
        _check_count("block", block, 1)
        for each in (self, *others):
            each._rows_only("merge_flow")
            if each._schema not in (None, self._schema):
                raise ConfigError("merge_flow merges datasets of one schema; set it on the merged one by with_schema()")
        merged = Dataset(_nothing, schema=self._schema, seed=self._seed)
        merged._origin = _Merged((self, *others), block)
        return merged

    # --- batches ------------------------------------------------------------------------------------------------------

    def with_schema(self, schema: Schema) -> Dataset:
        """Return the same dataset that reads other features."""
        copy = self._with()
        copy._schema = schema
        return copy

    def batch(self, size: int, drop_last: bool = False) -> Dataset:
        """Assemble batches of ``size`` rows; the last one may be smaller, unless it is dropped.

        Columns that are SHARED in an ExampleBatch stay stored once in every batch whose rows are all of that record.
        """
        self._rows_only("batch")
        _check_count("batch size", size, 1)
        return self._with(_Batched(size, drop_last))

    def prefetch(self, depth: int = 2) -> Dataset:
        """Make up to ``depth`` batches ahead in a thread, while the caller works on one; 0 changes nothing."""
        _check_count("prefetch depth", depth, 0)
        if not self.is_batched:
            raise ConfigError("prefetch() makes batches ahead: put it after batch()")
        return self if depth == 0 else self._with(_Prefetch(depth))

    @property
    def schema(self) -> Schema | None:
        """What its batches are read as; None when that is not said yet."""
        return self._schema

    @property
    def is_batched(self) -> bool:
        """Whether it gives batches."""
        return any(isinstance(step, _Batched) for step in self._steps)

    # --- reading ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Read from the beginning, or once from the restored place."""
        state, self._restored = self._restored, None
        try:
            yield from self._read_from(state)
        except FilesGivenAway as given_away:  # told before anything was read
            logger.warning("a worker begins anew with the files that are left: %s", given_away)
            yield from self._read_from(None)

    def _read_from(self, state: State | None) -> Iterator[Any]:
        opening = _Opening(self._schema or Schema(labels=0), self._seed)
        stage = self._open(opening)
        self._cursor = _Cursor(stage, opening, None)
        try:
            if state is not None:
                stage.restore(state)
            self._cursor = _Cursor(stage, opening, stage.mark())
            while (item := stage.read()) is not None:
                self._cursor = _Cursor(stage, opening, stage.mark())
                yield item
            self._cursor = _Cursor(None, opening, stage.mark())
        finally:
            stage.close()

    def state(self) -> dict[str, Any]:
        """Return the place behind the item that was read last, as plain JSON.

        It holds positions and counts, never rows; with ``negative_gen`` it holds the item pools too.
        """
        return self.mark()()

    def mark(self) -> Callable[[], dict[str, Any]]:
        """Return what gives the state of this moment when it is called, also after more was read.

        Marking is cheap, making the state may not be: mark every batch that is read ahead, ask the one that counts.
        """
        restored, mark, steps = self._restored, self._cursor.mark, self._signature()

        def state() -> dict[str, Any]:
            at = restored if restored is not None else None if mark is None else mark()
            return {"version": _STATE_VERSION, "steps": steps, "at": at}

        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration start at a place that ``state`` gave, in this process or another.

        Raises:
            DataError: The state is of a dataset with other steps.
        """
        if state.get("version") != _STATE_VERSION:
            raise DataError(f"the state has version {state.get('version')!r}, this release reads {_STATE_VERSION}")
        if state.get("steps") != self._signature():
            raise DataError(
                f"the state was saved by the steps {state.get('steps')}, this dataset has {self._signature()}; "
                "restore it into the same steps, or start anew"
            )
        self._restored = state["at"]

    def committed(self, state: Mapping[str, Any]) -> None:
        """Take note that ``state`` is safe in a checkpoint; Kafka's group offsets move only by this."""
        if self._cursor.stage is not None and state["at"] is not None:
            self._cursor.stage.committed(state["at"])

    def counts(self) -> dict[str, int]:
        """Return how many rows came and went in this iteration: read, corrupt, and in and out of each transform.

        Those of all epochs together, where a step is repeated.
        """
        opening = self._cursor.opening
        return {} if opening is None else opening.counts.as_dict()

    @property
    def operations(self) -> list[_native.RowOp]:
        """The native operations of the epoch being read, in order; ``transforms.save_pools`` saves their item pools."""
        opening = self._cursor.opening
        return [] if opening is None else opening.counts.operations

    # --- private ------------------------------------------------------------------------------------------------------

    def _rows_only(self, what: str) -> None:
        if self.is_batched:
            raise ConfigError(f"{what} works on rows: put it before batch()")

    def _with(self, *steps: Any) -> Dataset:
        copy = Dataset(_nothing, schema=self._schema, seed=self._seed)
        copy._origin = self._origin
        copy._steps = (*self._steps, *steps)
        return copy

    def _signature(self) -> str:
        # Reading ahead has no place of its own: it may change between two runs.
        steps = [step for step in self._steps if not isinstance(step, _Prefetch)]
        names = [type(step).__name__.lstrip("_").lower() for step in steps]
        return " > ".join([self._origin.name(), *names])

    @property
    def _needs_all_features(self) -> bool:
        return any(isinstance(step, _Rewrite) or getattr(step, "needs_all_features", False) for step in self._steps)

    def _open(self, opening: _Opening) -> Stage[Any]:
        if self.is_batched:
            if self._schema is None:
                raise ConfigError(
                    "no schema says which features to read; give schema=Schema(sparse=[...], dense=[...]) or call "
                    "with_schema(); Schema.infer(path) proposes one"
                )
            return self._open_batches(opening)
        rows = self._open_rows(opening, keep_all=True)

        def as_example(lot: _native.Rows) -> Any:
            return Example.FromString(_native.encode_examples(lot, opening.columns)[0])

        return BatchStage(rows, 1, as_example, drop_last=False)

    def _open_rows(self, opening: _Opening, *, keep_all: bool) -> RowStage:
        row_steps = self._steps[: self._batch_place]
        return self._open_steps(opening, row_steps, keep_all=keep_all or self._needs_all_features)

    @property
    def _batch_place(self) -> int:
        places = [place for place, step in enumerate(self._steps) if isinstance(step, _Batched)]
        return places[0] if places else len(self._steps)

    def _open_steps(self, opening: _Opening, steps: tuple[Any, ...], *, keep_all: bool) -> RowStage:
        """Open the rows behind ``steps``; a repeat opens what is before it once per epoch."""
        if not steps:
            return self._origin.open(opening, keep_all=keep_all)
        *before_steps, step = steps

        def open_before(own: _Opening) -> RowStage:
            return self._open_steps(own, tuple(before_steps), keep_all=keep_all)

        if isinstance(step, _Repeat):
            place = opening.counts.place

            def open_epoch(epoch: int) -> RowStage:
                opening.counts.go_to(place)
                return open_before(opening.for_epoch(epoch))

            return RepeatStage(open_epoch, step.epochs)
        before = open_before(opening)
        if isinstance(step, _Shuffle):
            return ShuffleStage(before, step.size, _native.mix(opening.seed, step.seed))
        if isinstance(step, _Rewrite):
            parser = make_parser(opening.schema, "example", opening.columns, keep_all=True, seed=opening.seed)
            return RewriteStage(before, step.rewrite, opening.columns, parser)
        return TransformStage(before, opening.build(step, len(before_steps)))

    def _open_batches(self, opening: _Opening) -> Stage[Batch]:
        place = self._batch_place
        make = BatchMaker(opening.schema, opening.columns)
        rows = self._open_rows(opening, keep_all=False)
        batched, after = self._steps[place], self._steps[place + 1 :]
        per_batch = [step for step in after if isinstance(step, Transform)]
        operations = [opening.build(step, place + number) for number, step in enumerate(per_batch)]
        stage: Stage[Batch] = BatchStage(rows, batched.size, make, drop_last=batched.drop_last, operations=operations)
        for step in after:
            if isinstance(step, _MapBatches):
                stage = MapStage[Batch](stage, step.change)
            elif isinstance(step, _Prefetch):
                stage = PrefetchStage(stage, step.depth)
        return stage


def _nothing() -> Source:
    raise AssertionError("a dataset without a source was opened")


def _check_count(name: str, value: int, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number from {least} up")

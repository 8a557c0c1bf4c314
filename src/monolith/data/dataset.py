"""``Dataset``: describes a source, the steps on its rows, and how rows become batches.

A dataset reads nothing until it is iterated over. Every method returns a new dataset with one more step, and steps run
in the order of the calls. ``state`` and ``restore`` resume at the exact record. ``look_ahead`` finds the last batch.

This module lists the steps; ``stages`` and ``transforms`` implement them, ``sources`` reads the input.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from monolith import _native
from monolith.core.errors import ConfigError, DataError
from monolith.data import transforms
from monolith.data.batch import Batch
from monolith.data.records.messages import Example
from monolith.data.row_counts import RowCounts
from monolith.data.schema import BatchMaker, Schema, make_parser
from monolith.data.sources.base import MeteredSource, MetricSink, Source
from monolith.data.sources.column_options import ColumnSource, WantedColumns
from monolith.data.sources.work_list import FilesReassigned
from monolith.data.stages import (
    BatchStage,
    ChainStage,
    MapStage,
    Mark,
    MergeBatchesStage,
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

__all__ = ["Dataset", "look_ahead"]

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
P = ParamSpec("P")
RowStage: TypeAlias = Stage[_native.Rows]

_STATE_VERSION = 1


@dataclass(slots=True)
class _Opening:
    """Parser columns, seed and counts that the stages of one iteration share."""

    schema: Schema
    seed: int
    made_features: frozenset[str] | None = frozenset()
    """Features that steps make of others, so that sources need not have them; None = any."""
    reads_all: bool = True
    """True if steps may use features that the schema does not name."""
    columns: _native.Columns = field(default_factory=_native.Columns)
    counts: RowCounts = field(default_factory=RowCounts)
    metrics: MetricSink | None = None
    """Receives the metrics of the sources."""

    def build(self, transform: Transform, number: int) -> _native.RowOp:
        """Build the native operation of a transform; each operation has its own random seed."""
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

    def wanted_columns(self, *, keep_all: bool) -> WantedColumns:
        """Return the columns that the schema needs from sources of tables."""
        schema, made = self.schema, self.made_features
        if made is None:
            return WantedColumns(weight=schema.weight_feature, reads_all=True)
        features: dict[str, tuple[str, ...]] = {}
        for each in schema.sparse_features:
            slot = each.slot
            features[each.column or each.name] = () if slot is None else (f"slot_{slot}", f"fc_slot_{slot}")
        features |= {each.column or each.name: () for each in schema.dense_features}
        return WantedColumns(
            features={name: others for name, others in features.items() if name not in made},
            labels=tuple(schema.label_features),
            weight=schema.weight_feature,
            reads_all=keep_all or self.reads_all,
        )

    def for_epoch(self, epoch: int) -> _Opening:
        """Return the opening of another epoch: the same with another seed."""
        return replace(self, seed=_native.mix(self.seed, epoch)) if epoch else self


class _Origin(Protocol):
    """Opens the rows of a dataset, before its steps."""

    def open(self, opening: _Opening, *, keep_all: bool) -> RowStage: ...

    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _FromSource:
    make: Callable[[], Source]
    skip_corrupt: bool

    def open(self, opening: _Opening, *, keep_all: bool) -> RowStage:
        source = self.make()
        if opening.metrics is not None and isinstance(source, MeteredSource):
            source.export_to(opening.metrics)
        if isinstance(source, ColumnSource):
            source.require(opening.wanted_columns(keep_all=keep_all))
            opening.counts.add_source(source)
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
            part_opening = replace(opening, seed=_native.mix(opening.seed, number))
            stages.append(part._open_rows(part_opening, keep_all=keep_all))
        return MergeStage(stages, self.block)

    def name(self) -> str:
        return "merge(" + ", ".join(part._signature() for part in self.parts) + ")"


@dataclass(frozen=True, slots=True)
class _Chained:
    parts: tuple[Dataset, ...]

    def open(self, opening: _Opening, *, keep_all: bool) -> RowStage:
        stages = []
        for number, part in enumerate(self.parts):
            part_opening = replace(opening, seed=_native.mix(opening.seed, number))
            stages.append(part._open_rows(part_opening, keep_all=keep_all))
        return ChainStage(stages)

    def name(self) -> str:
        return "chain(" + ", ".join(part._signature() for part in self.parts) + ")"


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


_LONGEST_WAIT_S = 1e6


@dataclass(frozen=True, slots=True)
class _Batched:
    size: int
    drop_last: bool
    wait_s: float | None


@dataclass(frozen=True, slots=True)
class _MapBatches:
    change: Callable[[Batch], Batch | None]


@dataclass(frozen=True, slots=True)
class _MergeBatches:
    count: int
    drop_last: bool


@dataclass(frozen=True, slots=True)
class _Prefetch:
    depth: int


def _step(make: Callable[P, Transform]) -> Callable[Concatenate[Dataset, P], Dataset]:
    """Return the method that adds a transform; its arguments are those of the transform."""

    @functools.wraps(make, assigned=("__doc__",), updated=())
    def method(self: Dataset, /, *args: P.args, **options: P.kwargs) -> Dataset:
        return self.transform(make(*args, **options))

    return method


@dataclass(frozen=True, slots=True)
class _Cursor:
    """The current or last iteration of a dataset."""

    stage: Stage[Any] | None = None
    opening: _Opening | None = None
    mark: Mark | None = None


class Dataset:
    """Rows of a source, changed by steps, in batches. ``monolith.data.files`` and similar functions return datasets.

    Iterating yields ``Batch`` objects, or rows as ``Example`` messages if ``batch`` was not called. An iteration starts
    at the beginning. Only the first one after ``restore`` starts at the restored position.
    """

    def __init__(
        self,
        make_source: Callable[[], Source],
        *,
        schema: Schema | None = None,
        seed: int = 0,
        skip_corrupt: bool = False,
        is_stream: bool = False,
    ) -> None:
        self.is_stream = is_stream
        """Whether more records may follow the end of an iteration: a later run resumes there."""
        self.metrics: MetricSink | None = None
        """Receives counts and lag of a stream; set before the iteration."""
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
        transform = transforms.parse_transform_config(step) if isinstance(step, str) else step
        if self.is_batched != transform.is_per_batch:
            rule = "the rows of a batch: put it after" if transform.is_per_batch else "rows: put it before"
            raise ConfigError(f"{type(transform).__name__} works on {rule} batch()")
        for each in self._steps:  # it runs while a batch is assembled, so before these steps in any case
            if isinstance(each, _MergeBatches | _MapBatches):
                later = "merge_batches()" if isinstance(each, _MergeBatches) else "map() and filter()"
                raise ConfigError(f"{type(transform).__name__} works on the rows of a batch: put it before {later}")
        return self._with(transform)

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
        """Change every item by a Python function; an item for which it returns None is dropped.

        Before ``batch`` the function takes a row as an ``Example`` message and returns a message, a list of messages
        or None. This is general and slow. After ``batch`` it takes a ``Batch`` and returns a ``Batch`` or None.
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
        """Keep the items for which a Python function returns True; see ``map``."""
        return self.map(lambda item: item if keep(item) else None)

    def shuffle(self, size: int, seed: int | None = None) -> Dataset:
        """Shuffle rows within windows of ``size`` rows; 0 and 1 keep the order.

        One window is read, shuffled and returned before the next. Memory holds up to ``size`` rows, a saved state none.
        To shuffle across windows, shuffle the order of the files too.
        """
        self._require_rows("shuffle")
        _check_count("shuffle size", size, 0)
        return self if size <= 1 else self._with(_Shuffle(size, self._seed if seed is None else seed))

    def repeat(self, epochs: int | None = None) -> Dataset:
        """Repeat everything before this step ``epochs`` times, or endlessly if None.

        Random choices differ between epochs. Item pools are empty at the start of each epoch.
        """
        self._require_rows("repeat")
        if epochs is not None:
            _check_count("epochs", epochs, 1)
        return self._with(_Repeat(epochs))

    def split_flow(self, names: Sequence[str]) -> list[Dataset]:
        """Return one dataset per data source, with the rows whose header or message names that source.

        Each dataset reads the whole input. Rows of other sources are in none of the datasets.
        """
        return [self.filter_by_source(names=[name]) for name in names]

    def merge_flow(self, *others: Dataset, block: int = 1) -> Dataset:
        """Return the rows of this dataset and of others in turn, ``block`` rows of each; ended datasets are skipped.

        Raises:
            ConfigError: A dataset is batched already, or has another schema.
        """
        _check_count("block", block, 1)
        for each in (self, *others):
            each._require_rows("merge_flow")
            if each._schema not in (None, self._schema):
                raise ConfigError("merge_flow merges datasets of one schema; set it on the merged one by with_schema()")
        merged = Dataset(_nothing, schema=self._schema, seed=self._seed)
        merged._origin = _Merged((self, *others), block)
        merged.is_stream = any(each.is_stream for each in (self, *others))
        return merged

    def then(self, *others: Dataset) -> Dataset:
        """Return the rows of this dataset, and after its end the rows of others: history first, then a stream.

        A state names the dataset that it is in. The last dataset may be endless.

        Raises:
            ConfigError: A dataset is batched already, or has another schema.
        """
        for each in (self, *others):
            each._require_rows("then")
            if each._schema not in (None, self._schema):
                raise ConfigError("then chains datasets of one schema; set it on the result by with_schema()")
        chained = Dataset(_nothing, schema=self._schema, seed=self._seed)
        chained._origin = _Chained((self, *others))
        chained.is_stream = any(each.is_stream for each in (self, *others))
        return chained

    # --- batches ------------------------------------------------------------------------------------------------------

    def with_schema(self, schema: Schema) -> Dataset:
        """Return a copy of the dataset that reads the features of ``schema``."""
        copy = self._with()
        copy._schema = schema
        return copy

    def batch(self, size: int, drop_last: bool = False, *, wait_s: float | None = None) -> Dataset:
        """Assemble batches of ``size`` rows; the last batch may be smaller, unless ``drop_last`` drops it.

        A SHARED column of an ExampleBatch is stored once in every batch whose rows all come from that record.

        Args:
            size: Rows of a batch.
            drop_last: Whether a smaller last batch is dropped.
            wait_s: Seconds that the first row of a batch waits for further ones, for streams with few rows; a batch is
                smaller then. None = until the batch is full.
        """
        self._require_rows("batch")
        _check_count("batch size", size, 1)
        if wait_s is not None and not 0 <= wait_s <= _LONGEST_WAIT_S:
            raise ConfigError(f"wait_s is {wait_s!r}, expected seconds from 0 to {_LONGEST_WAIT_S:g}, or None")
        if wait_s is not None and drop_last:
            raise ConfigError(f"wait_s is {wait_s!r} and drop_last is True, expected one of them; leave one out")
        return self._with(_Batched(size, drop_last, wait_s))

    def merge_batches(self, count: int, drop_last: bool = False) -> Dataset:
        """Join ``count`` consecutive batches into one; the last may have fewer, unless ``drop_last`` drops it.

        Transforms of batches run before the join: negatives of small batches, for example, and one large batch per
        step. A saved position lies between two joined batches.
        """
        _check_count("merge_batches count", count, 1)
        if not self.is_batched:
            raise ConfigError("merge_batches() is called on rows, expected batches; call it after batch()")
        return self if count == 1 else self._with(_MergeBatches(count, drop_last))

    def prefetch(self, depth: int = 2) -> Dataset:
        """Prepare up to ``depth`` batches ahead in a thread; 0 disables it."""
        _check_count("prefetch depth", depth, 0)
        if not self.is_batched:
            raise ConfigError("prefetch() is called on rows, expected batches; call it after batch()")
        return self if depth == 0 else self._with(_Prefetch(depth))

    @property
    def schema(self) -> Schema | None:
        """The schema of the batches; None if it is not set yet."""
        return self._schema

    @property
    def is_batched(self) -> bool:
        """True if iterating yields batches."""
        return any(isinstance(step, _Batched) for step in self._steps)

    # --- reading ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Read from the beginning, or once from the restored position."""
        state, self._restored = self._restored, None
        try:
            yield from self._read_from(state)
        except FilesReassigned as reassigned:  # raised before the first record is read
            logger.warning("position dropped, reading the remaining files error=%s", reassigned)
            yield from self._read_from(None)

    def _read_from(self, state: State | None) -> Iterator[Any]:
        # Until the stage is at the position, also after an error, the position is this state.
        self._cursor = _Cursor(mark=None if state is None else lambda: state)
        made = self._made_features()
        opening = _Opening(
            self._schema or Schema(labels=0),
            self._seed,
            made_features=made,
            reads_all=self._has_transforms,
            metrics=self.metrics,
        )
        stage = self._open(opening)
        self._cursor = _Cursor(stage, opening, self._cursor.mark)
        try:
            if state is not None:
                stage.restore(state)
            self._cursor = _Cursor(stage, opening, stage.mark())
            while (item := stage.read()) is not None:
                self._cursor = _Cursor(stage, opening, stage.mark())
                yield item
            # A closed source still takes the commit of its last position.
            self._cursor = _Cursor(stage, opening, stage.mark())
        finally:
            stage.close()

    def state(self) -> dict[str, Any]:
        """Return the position behind the last item, as plain JSON.

        The state contains positions and counts, never rows. With ``negative_gen`` it contains the item pools too.
        """
        return self.mark()()

    def mark(self) -> Callable[[], dict[str, Any]]:
        """Return a function that returns the state of this moment, even after more items were read.

        Taking a mark is cheap, materializing the state may not be. Mark every batch that is read ahead, and call only
        the mark to be saved.
        """
        restored, mark, steps = self._restored, self._cursor.mark, self._signature()

        def state() -> dict[str, Any]:
            at = restored if restored is not None else None if mark is None else mark()
            return {"version": _STATE_VERSION, "steps": steps, "at": at}

        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Start the next iteration at a position that ``state`` returned, in this process or another.

        Raises:
            DataError: The state belongs to a dataset with other steps.
        """
        if state.get("version") != _STATE_VERSION:
            raise DataError(
                f"the state has version {state.get('version')!r}, expected {_STATE_VERSION}; "
                "use the release that wrote it"
            )
        if state.get("steps") not in (self._signature(), self._signature(has_sizes=False)):
            raise DataError(
                f"the state was saved by the steps {state.get('steps')!r}, this dataset has {self._signature()!r}; "
                "restore it into the same steps, or start without it"
            )
        self._restored = state["at"]

    def committed(self, state: Mapping[str, Any]) -> None:
        """Pass on to the source that a checkpoint contains ``state``; only this commits the group offsets of Kafka."""
        if self._cursor.stage is not None and state["at"] is not None:
            self._cursor.stage.committed(state["at"])

    def interrupt(self) -> None:
        """End the current iteration of a stream, also while another thread waits for its next record.

        The iteration still yields the rows that it has read. Other datasets ignore the call: their reads do not wait.
        """
        if self.is_stream and self._cursor.stage is not None:
            self._cursor.stage.close()

    def counts(self) -> dict[str, int]:
        """Return the row counts of this iteration: read, corrupt, and in and out of each transform.

        Counts of a repeated step are sums over its epochs.
        """
        opening = self._cursor.opening
        return {} if opening is None else opening.counts.as_dict()

    @property
    def operations(self) -> list[_native.RowOp]:
        """The native operations of the current epoch, in order; ``transforms.save_pools`` saves their item pools."""
        opening = self._cursor.opening
        return [] if opening is None else opening.counts.operations

    # --- private ------------------------------------------------------------------------------------------------------

    def _require_rows(self, step: str) -> None:
        if self.is_batched:
            raise ConfigError(f"{step} works on rows: put it before batch()")

    def _with(self, *steps: Any) -> Dataset:
        copy = Dataset(_nothing, schema=self._schema, seed=self._seed)
        copy._origin = self._origin
        copy._steps = (*self._steps, *steps)
        copy.is_stream = self.is_stream
        copy.metrics = self.metrics
        return copy

    def _signature(self, *, has_sizes: bool = True) -> str:
        """Return the names of the steps, and the windows of shuffles, which states of earlier releases lack."""
        # Prefetching has no state, so it may change between two runs.
        steps = [step for step in self._steps if not isinstance(step, _Prefetch)]
        names = [type(step).__name__.lstrip("_").lower() for step in steps]
        if has_sizes:
            names = [
                f"{name}({step.size})" if isinstance(step, _Shuffle) else name
                for name, step in zip(names, steps, strict=True)
            ]
        return " > ".join([self._origin.name(), *names])

    @property
    def _needs_all_features(self) -> bool:
        return any(isinstance(step, _Rewrite) or getattr(step, "needs_all_features", False) for step in self._steps)

    def _all_steps(self) -> Iterator[Any]:
        """Yield the steps of this dataset and of the datasets that it merges or chains."""
        yield from self._steps
        if isinstance(self._origin, _Merged | _Chained):
            for merged in self._origin.parts:
                yield from merged._all_steps()

    @property
    def _has_transforms(self) -> bool:
        return any(isinstance(step, Transform | _Rewrite) for step in self._all_steps())

    def _made_features(self) -> frozenset[str] | None:
        """Return the features that transforms make; None if a Python function may make any."""
        if any(isinstance(step, _Rewrite) for step in self._all_steps()):
            return None
        steps = [step for step in self._all_steps() if isinstance(step, Transform)]
        return frozenset(name for step in steps for name in step.made_features)

    def _open(self, opening: _Opening) -> Stage[Any]:
        if self.is_batched:
            if self._schema is None:
                raise ConfigError(
                    "schema is None, expected the features to read; pass schema=Schema(sparse=[...], dense=[...]) or "
                    "call with_schema(); mt.data.infer_schema(path) proposes a schema"
                )
            return self._open_batches(opening)
        rows = self._open_rows(opening, keep_all=True)

        def as_example(row: _native.Rows) -> Any:
            return Example.FromString(_native.encode_examples(row, opening.columns)[0])

        return BatchStage(rows, 1, as_example, drop_last=False)

    def _open_rows(self, opening: _Opening, *, keep_all: bool) -> RowStage:
        row_steps = self._steps[: self._batch_index]
        return self._open_steps(opening, row_steps, keep_all=keep_all or self._needs_all_features)

    @property
    def _batch_index(self) -> int:
        indices = [index for index, step in enumerate(self._steps) if isinstance(step, _Batched)]
        return indices[0] if indices else len(self._steps)

    def _open_steps(self, opening: _Opening, steps: tuple[Any, ...], *, keep_all: bool) -> RowStage:
        """Open the rows behind ``steps``; a repeat opens the steps before it once per epoch."""
        if not steps:
            return self._origin.open(opening, keep_all=keep_all)
        *before_steps, step = steps

        def open_before(epoch_opening: _Opening) -> RowStage:
            return self._open_steps(epoch_opening, tuple(before_steps), keep_all=keep_all)

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
        index = self._batch_index
        make = BatchMaker(opening.schema, opening.columns)
        rows = self._open_rows(opening, keep_all=False)
        batched, after = self._steps[index], self._steps[index + 1 :]
        per_batch = [step for step in after if isinstance(step, Transform)]
        operations = [opening.build(step, index + number) for number, step in enumerate(per_batch)]
        stage: Stage[Batch] = BatchStage(
            rows,
            batched.size,
            make,
            drop_last=batched.drop_last,
            wait_s=batched.wait_s,
            operations=operations,
        )
        for step in after:
            if isinstance(step, _MapBatches):
                stage = MapStage[Batch](stage, step.change)
            elif isinstance(step, _MergeBatches):
                stage = MergeBatchesStage(stage, step.count, drop_last=step.drop_last)
            elif isinstance(step, _Prefetch):
                stage = PrefetchStage(stage, step.depth)
        return stage


def look_ahead(items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
    """Yield each item with True if it is the last one. Reads one item ahead.

    >>> list(look_ahead([1, 2]))
    [(1, False), (2, True)]
    """
    waiting: list[Item] = []
    for following in items:
        if waiting:
            yield waiting.pop(), False
        waiting.append(following)
    if waiting:
        yield waiting.pop(), True


def _nothing() -> Source:
    raise AssertionError("a dataset without a source was opened")


def _check_count(name: str, value: int, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} is {value!r}, expected a whole number from {least} up")

"""Random records: for tests, load tests and first steps. Every choice follows from the seed.

Records are handed to a writer; which file they go to, and in which framing, is the writer's business. The time of
requests is an argument, so equal calls give equal bytes.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data.feature_list import FeatureList, ListedFeature
from monolith.data.records.convert import examples_to_batch
from monolith.data.records.line_id import LineIdField
from monolith.data.records.messages import LINE_ID, SHARED, STANDARD, Messages

if TYPE_CHECKING:
    from monolith.data.records.messages import Example, ExampleBatch, Instance, Message, TfExample
    from monolith.data.sources.base import RecordKind

__all__ = [
    "PayloadWriter",
    "RandomRows",
    "mark_shared",
    "random_batch",
    "random_example",
    "random_example_batch",
    "random_instance",
    "write_random_records",
]

_DEFAULT_VOCAB_SIZES = (5, 5, 5, 5, 5, 5)
_REQUEST_SPREAD_S = 1000
_TEXT_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class PayloadWriter(Protocol):
    """Receives the records."""

    def write(self, payload: bytes) -> Any:
        """Append one serialized record."""


@dataclass(frozen=True, kw_only=True)
class RandomRows:
    """The features of random rows."""

    sparse: Mapping[str, int]
    """The slot of each feature that holds ids."""
    dense: Mapping[str, int] = field(default_factory=dict)
    """The width of each feature that holds floats."""
    line_id: Mapping[str, int] = field(default_factory=dict)
    """More LineId fields than uid, item_id, req_time, sample_rate and actions; of a repeated one, how many values."""
    shared: Collection[str] = ()
    """Sparse features that all rows of a batch share."""
    fid_version: fid.Version = 2
    max_ids: int = 3
    """A sparse feature has 1 to this many ids."""
    drop_rate: float = 0.5
    """The chance that a row lacks a sparse feature. Shared features are always there."""
    labels: int = 1
    actions: Sequence[int] = (1, 2)
    """A row has one of these as its action."""
    sample_rate: float = 1.0
    now_s: int = 1_700_000_000
    """Requests happened in the 1000 seconds before."""

    def __post_init__(self) -> None:
        slots = fid.V1_SLOTS if self.fid_version == 1 else fid.V2_SLOTS
        for name, slot in self.sparse.items():
            if not 0 <= slot < slots:
                raise ConfigError(
                    f"sparse feature {name!r} has slot {slot}; version {self.fid_version} has {slots} slots"
                )
        if both := sorted(set(self.sparse) & set(self.dense)):
            raise ConfigError(f"feature {both[0]!r} is both sparse and dense; choose one")
        if unknown := sorted(set(self.shared) - set(self.sparse)):
            raise ConfigError(f"shared feature {unknown[0]!r} is not among the sparse ones")
        if not 0 <= self.drop_rate <= 1:
            raise ConfigError(f"drop_rate must be within 0..1, got {self.drop_rate}")
        if self.max_ids < 1 or self.labels < 0 or any(width < 1 for width in self.dense.values()):
            raise ConfigError("max_ids and the widths of dense features must be at least 1, labels at least 0")


# --- single records ---------------------------------------------------------------------------------------------------


def random_instance(
    slots: Sequence[int] | None = None,
    vocab_sizes: Sequence[int] = _DEFAULT_VOCAB_SIZES,
    *,
    seed: int,
    messages: Messages = STANDARD,
) -> Instance:
    """Return an Instance of flat v1 ids, from vocabularies that do not overlap.

    The i-th slot has ``vocab_sizes[i]`` ids, of signatures ``i * max(vocab_sizes) + 1 .. + vocab_sizes[i]``.

    Args:
        slots: One per vocabulary; None means 1, 2, 3, ...
        vocab_sizes: How many values each slot has.
        seed: Decides every choice.
        messages: The family of the result.

    Raises:
        ConfigError: Numbers of slots and vocabularies differ, or a slot does not exist.
    """
    chosen = range(1, len(vocab_sizes) + 1) if slots is None else slots
    if len(chosen) != len(vocab_sizes) or not vocab_sizes or min(vocab_sizes) < 1:
        raise ConfigError(f"{len(chosen)} slots and the vocabulary sizes {list(vocab_sizes)} do not fit each other")
    rng = random.Random(seed)
    widest = max(vocab_sizes)
    return messages.Instance(
        fid=[
            fid.as_unsigned(fid.make_v1(slot, place * widest + rng.randint(1, size)))
            for place, (slot, size) in enumerate(zip(chosen, vocab_sizes, strict=True))
            for _ in range(size)
        ]
    )


def random_example(rows: RandomRows, *, seed: int, messages: Messages = STANDARD) -> Example:
    """Return one row.

    Raises:
        ConfigError: ``rows`` names a LineId field that the family does not have.
    """
    return _Maker(rows, seed, messages).example()


def random_batch(rows: RandomRows, batch_size: int, *, seed: int, messages: Messages = STANDARD) -> ExampleBatch:
    """Return a batch of rows; the shared features are marked as such, and stored once.

    Raises:
        ConfigError: ``rows`` names a LineId field that the family does not have, or ``batch_size`` is not positive.
    """
    return _Maker(rows, seed, messages).batch(batch_size)


def random_example_batch(
    features: FeatureList | Mapping[str, int],
    batch_size: int = 256,
    *,
    seed: int,
    now_s: int = 1_700_000_000,
    only: Collection[str] | None = None,
    skip: Collection[str] = (),
    messages: Messages = STANDARD,
) -> ExampleBatch:
    """Return a batch of v2 ids for the features of a list, with LineIds and without labels: a request to a server.

    A feature whose method is ``VectorTop...`` has 1 to ``args[0]`` ids, any other one.

    Args:
        features: A feature list, or the slot of each name.
        batch_size: How many rows.
        seed: Decides every choice.
        now_s: Requests happened in the 1000 seconds before.
        only: Keep features with one of these in their name. None keeps, of a feature list, those with ``_id`` or
            ``_name``; of a mapping, all.
        skip: Leave out features with one of these in their name.
        messages: The family of the result.

    Raises:
        ConfigError: No feature is left, or ``batch_size`` is not positive.
    """
    _check_batch_size(batch_size)
    if isinstance(features, FeatureList):
        listed = [feature for feature in features if feature.slot is not None]
        only = ("_id", "_name") if only is None else only
    else:
        listed = [ListedFeature(feature_name=name, slot=slot) for name, slot in features.items()]
    kept = [
        feature
        for feature in listed
        if (only is None or any(token in feature.feature_name for token in only))
        and not any(token in feature.feature_name for token in skip)
    ]
    if not kept:
        raise ConfigError(f"none of {len(listed)} features is left; check only={only!r} and skip={skip!r}")
    rng = random.Random(seed)
    batch = messages.ExampleBatch(batch_size=batch_size)
    for feature in kept:
        column = batch.named_feature_list.add(name=feature.feature_name)
        most = _most_ids(feature)
        for _ in range(batch_size):
            count = rng.randint(1, most) if most > 0 else 0
            column.feature.add().fid_v2_list.value.extend(_ids(rng, feature.slot or 0, count, 2))
    line_ids = batch.named_feature_list.add(name=LINE_ID)
    for _ in range(batch_size):
        line_id = messages.LineId(
            sample_rate=0.001,
            req_time=now_s - rng.randint(1, _REQUEST_SPREAD_S),
            actions=[rng.randint(1, 3), rng.randint(3, 5)],
        )
        line_ids.feature.add().bytes_list.value.append(line_id.SerializeToString())
    return batch


def mark_shared(batch: ExampleBatch, names: Collection[str], *, stored_once: bool = False) -> None:
    """Make columns of ``batch`` shared: the first row's feature holds for all rows.

    Args:
        batch: Changed in place.
        names: The columns; names that the batch does not have are passed over.
        stored_once: Keep one feature in the column. By default it is repeated for every row, as the original's client
            sends it.
    """
    for column in batch.named_feature_list:
        if column.name in names and column.feature:
            column.type = SHARED
            first = column.feature[0]
            del column.feature[1:]
            column.feature.extend([first] * (0 if stored_once else batch.batch_size - 1))


# --- streams of records -----------------------------------------------------------------------------------------------


def write_random_records(
    writer: PayloadWriter,
    record: RecordKind,
    rows: RandomRows,
    count: int,
    *,
    seed: int,
    batch_size: int = 128,
    messages: Messages = STANDARD,
) -> int:
    """Write ``count`` random rows, and return how many records that were.

    Args:
        writer: Open; stays open.
        record: Which records to make.
        rows: The features of the rows.
        count: How many rows; the last batch may be smaller.
        seed: Decides every choice.
        batch_size: Rows of one record, for kinds that hold several.
        messages: The family of the records.

    Raises:
        ConfigError: No such record, or ``rows`` does not fit it.
    """
    messages.record_class(record)
    _check_batch_size(batch_size)
    maker = _Maker(rows, seed, messages)
    made: dict[str, Any] = {"instance": maker.instance, "example": maker.example, "tf_example": maker.tf_example}
    if record in made:
        for _ in range(count):
            writer.write(_serialized(made[record]()))
        return count
    make = maker.batch if record == "example_batch" else maker.row_major
    for begin in range(0, count, batch_size):
        writer.write(_serialized(make(min(batch_size, count - begin))))
    return -(-count // batch_size)


def _serialized(message: Message) -> bytes:
    # Maps are unordered; equal seeds must give equal bytes.
    return message.SerializeToString(deterministic=True)


class _Maker:
    """Draws rows, one after another, from one stream of random numbers."""

    def __init__(self, rows: RandomRows, seed: int, messages: Messages) -> None:
        self._rows = rows
        self._rng = random.Random(seed)
        self._messages = messages
        self._line_id_fields = [(messages.line_id_fields[name], count) for name, count in rows.line_id.items()]

    def example(self, *, skip_shared: bool = False) -> Example:
        rows, rng = self._rows, self._rng
        example = self._messages.Example(
            label=[float(rng.random() < 0.5) for _ in range(rows.labels)], instance_weight=1.0
        )
        self._fill_line_id(example.line_id)
        arm = f"fid_v{rows.fid_version}_list"
        for index, (name, slot) in enumerate(rows.sparse.items()):
            is_shared = name in rows.shared
            if (is_shared and skip_shared) or (not is_shared and rng.random() < rows.drop_rate):
                continue
            named = example.named_feature.add(name=name, id=index)
            held: Any = getattr(named.feature, arm)
            held.value.extend(_ids(rng, slot, rng.randint(1, rows.max_ids), rows.fid_version))
        for index, (name, width) in enumerate(rows.dense.items(), len(rows.sparse)):
            named = example.named_feature.add(name=name, id=index)
            named.feature.float_list.value.extend(rng.random() for _ in range(width))
        return example

    def instance(self) -> Instance:
        """One row; ids of version 1 are flat, those of version 2 in named features."""
        example = self.example()
        instance = self._messages.Instance(label=example.label, instance_weight=1.0, line_id=example.line_id)
        for named in example.named_feature:
            if named.feature.WhichOneof("type") == "fid_v1_list":
                instance.fid.extend(named.feature.fid_v1_list.value)
            else:
                fids, floats = named.feature.fid_v2_list.value, named.feature.float_list.value
                instance.feature.add(name=named.name, fid=fids, float_value=floats)
        return instance

    def batch(self, size: int) -> ExampleBatch:
        _check_batch_size(size)
        batch = examples_to_batch([self.example() for _ in range(size)])
        mark_shared(batch, self._rows.shared, stored_once=True)
        return batch

    def row_major(self, size: int) -> Message:
        _check_batch_size(size)
        batch = self._messages.ExampleBatchRowMajor()
        shared = [named for named in self.example().named_feature if named.name in self._rows.shared]
        batch.shared_feature.extend(shared)
        batch.example.extend(self.example(skip_shared=True) for _ in range(size))
        return batch

    def tf_example(self) -> TfExample:
        """One row as TensorFlow has them: ids are signatures, as their slot is declared by the reader."""
        example = self.example()
        made = self._messages.TfExample()
        for named in example.named_feature:
            target = made.features.feature[named.name]
            if named.feature.WhichOneof("type") == "float_list":
                target.float_list.value.extend(named.feature.float_list.value)
            else:
                held: Any = getattr(named.feature, f"fid_v{self._rows.fid_version}_list")
                target.int64_list.value.extend(fid.signature_v2(one) for one in held.value)
        made.features.feature["label"].float_list.value.extend(example.label)
        return made

    def _fill_line_id(self, line_id: Any) -> None:
        rows, rng = self._rows, self._rng
        line_id.uid = rng.getrandbits(63)
        line_id.item_id = rng.getrandbits(63)
        line_id.req_time = rows.now_s - rng.randint(1, _REQUEST_SPREAD_S)
        line_id.sample_rate = rows.sample_rate
        if rows.actions:
            line_id.actions.append(rng.choice(rows.actions))
        for described, count in self._line_id_fields:
            if described.is_repeated:
                getattr(line_id, described.name).extend(_line_value(rng, described) for _ in range(count))
            else:
                setattr(line_id, described.name, _line_value(rng, described))


def _ids(rng: random.Random, slot: int, count: int, version: Literal[1, 2]) -> list[int]:
    make = fid.make_v1 if version == 1 else fid.make_v2
    return [fid.as_unsigned(make(slot, rng.randrange(1, 1 << fid.V2_SIGNATURE_BITS))) for _ in range(count)]


def _line_value(rng: random.Random, described: LineIdField) -> Any:
    if described.type == "bool":
        return rng.random() < 0.5
    if described.kind in ("float", "double"):
        return rng.random()
    if described.kind == "text":
        text = "".join(rng.choices(_TEXT_LETTERS, k=8))
        return text.encode() if described.type == "bytes" else text
    return rng.randrange(1 << 31)


def _most_ids(feature: ListedFeature) -> int:
    first = feature.args[0] if feature.args else ""
    if feature.method.lower().startswith("vectortop") and first.lstrip("-").isdecimal():
        return max(0, int(first))
    return 1


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size}")

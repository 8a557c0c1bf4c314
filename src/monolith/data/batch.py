"""``Batch``: one mini-batch of arrays, the same for all record formats.

The arrays are views of native buffers, which live as long as any array. ``as_torch`` returns tensors of the same
memory; only this function imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from monolith import _native
from monolith.core.errors import ConfigError
from monolith.core.fid import ValueType

__all__ = ["Array", "Batch", "ParsedIds", "Ragged", "Texts"]

Array: TypeAlias = Any
"""A NumPy array, or after ``as_torch`` a tensor."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A list of ids per row, all in one array.

    Row ``i`` has ``values[offsets[i]:offsets[i + 1]]``.
    """

    values: Array
    """(n,) int64: the ids of all rows, row after row."""

    offsets: Array
    """(rows + 1,) int64; (2,) when ``shared``."""

    shared: bool = False
    """There is one bag of ids, and every row of the batch has it. It is stored once; ``expanded`` repeats it."""

    def __len__(self) -> int:
        """Return the number of bags: 1 when shared."""
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Array:
        """Return the ids of one row, a view."""
        bag = 0 if self.shared else row if row >= 0 else row + len(self)
        if not 0 <= bag < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self.values[self.offsets[bag] : self.offsets[bag + 1]]

    def expanded(self, rows: int) -> Ragged:
        """Return the same lists with a bag per row: itself, unless it is shared."""
        if not self.shared:
            return self
        count = len(self.values)
        values = np.tile(np.asarray(self.values), rows)
        return Ragged(values, np.arange(rows + 1, dtype=np.int64) * count)

    def tolist(self) -> list[list[int]]:
        """Return plain lists, one per bag."""
        return [self.values[begin:end].tolist() for begin, end in zip(self.offsets, self.offsets[1:], strict=False)]

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """Make one from a list of ids per row."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(np.array([fid for row in rows for fid in row], np.int64), offsets)


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Byte strings, all in one array: string ``i`` is ``data[offsets[i]:offsets[i + 1]]``."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        place = index if index >= 0 else index + len(self)
        if not 0 <= place < len(self):
            raise IndexError(f"string {index} of {len(self)}")
        return self.data[self.offsets[place] : self.offsets[place + 1]].tobytes()

    def tolist(self) -> list[bytes]:
        """Return all strings."""
        return [self[index] for index in range(len(self))]


class _Lazy(Mapping[str, _Value]):
    """Arrays by name, each made when it is first asked for."""

    def __init__(self, places: Mapping[str, int], make: Callable[[int], _Value]) -> None:
        self._places = places
        self._make = make
        self._made: dict[str, _Value] = {}

    def __getitem__(self, name: str) -> _Value:
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = self._make(self._places[name])
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class _ChangedIds(Mapping[str, "Ragged"]):
    """Lists of ids with changed arrays, each changed when it is first asked for: most models never ask."""

    def __init__(self, ids: Mapping[str, Ragged], change: Callable[[Array], Array]) -> None:
        self._ids = ids
        self._change = change
        self._made: dict[str, Ragged] = {}

    def __getitem__(self, name: str) -> Ragged:
        made = self._made.get(name)
        if made is None:
            ids = self._ids[name]
            made = self._made[name] = Ragged(self._change(ids.values), self._change(ids.offsets), ids.shared)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __reduce__(self) -> tuple[type[dict[str, Ragged]], tuple[dict[str, Ragged]]]:
        return dict, (dict(self),)


class ParsedIds(_Lazy["Ragged"]):
    """Lists of ids in the parser's memory; native code reads them there."""

    def __init__(self, places: Mapping[str, int], data: _native.BatchData, writable: bool) -> None:
        super().__init__(places, lambda place: Ragged(*data.ids(place, writable)))
        self.data = data
        """The batch that holds them."""

    def places(self, names: Sequence[str]) -> list[int]:
        """Return where in ``data`` the ids of these features are."""
        return [self._places[name] for name in names]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """One mini-batch. Immutable: attributes cannot be set, and its NumPy arrays refuse to be written.

    ``batch["user_id"]`` finds any feature, extra field or attribute by its name.
    """

    size: int
    """Rows."""

    ids: Mapping[str, Ragged]
    """The ids of each sparse feature."""

    dense: Mapping[str, Array]
    """(size, width) per dense feature: float32, or int64, or Texts of size x width strings."""

    label: Array
    """(size, heads) float32; 0 (or the schema's ``missing_label``) if a label is missing."""

    label_mask: Array
    """(size, heads) bool: whether there is a label."""

    weight: Array
    """(size,) float32; 1 where the record has none."""

    sample_rate: Array
    """(size,) float32; 1 where the record has none."""

    event_time_s: Array
    """(size,) int64: when the event happened (LineId's req_time), unix seconds; 0 = unknown."""

    uid: Array
    """(size,) int64; 0 = unknown."""

    actions: Ragged
    """LineId's actions of each row."""

    extras: Mapping[str, Array]
    """(size, width) per extra field of LineId: int64 or float32, or Texts."""

    value_types: Mapping[str, ValueType] = field(default_factory=dict, repr=False)
    """Types of the values behind ``ids``, of features with values so far; empty if the ids are from elsewhere."""

    _writable: Callable[[], Batch] | None = field(default=None, repr=False)
    """Gives the same arrays without their protection: a tensor cannot be read-only."""

    def __getitem__(self, name: str) -> Any:
        for group in (self.ids, self.dense, self.extras):
            if name in group:
                return group[name]
        if name in _ATTRIBUTES:
            return getattr(self, name)
        known = ", ".join([*self.ids, *self.dense, *self.extras, *_ATTRIBUTES])
        raise KeyError(f"the batch has no {name!r}; it has {known}")

    def __len__(self) -> int:
        return self.size

    def as_torch(self) -> Batch:
        """Return the batch with torch tensors in place of NumPy arrays: the same memory, nothing is copied.

        Writing to such a tensor writes to the batch. Texts stay as they are.
        """
        import torch

        def tensor(array: Array) -> Array:
            return torch.from_numpy(array) if isinstance(array, np.ndarray) else array

        return (self if self._writable is None else self._writable())._map_arrays(tensor)

    def to(self, device: Any, *, non_blocking: bool = False) -> Batch:
        """Return the batch with all its arrays as tensors on ``device``.

        Args:
            device: Device of the tensors.
            non_blocking: Do not wait for the copies. Those to a GPU are made from copies in pinned memory.
        """
        import torch

        is_pinned = non_blocking and torch.device(device).type == "cuda"

        def move(array: Array) -> Array:
            if not hasattr(array, "to"):
                return array
            if is_pinned:
                staging = torch.empty_like(array, pin_memory=True)
                staging.numpy()[:] = array.numpy()  # pin_memory() copies by threads, and waits for them
                array = staging
            return array.to(device, non_blocking=non_blocking)

        return self.as_torch()._map_arrays(move)

    def numpy(self) -> Batch:
        """Return the batch with NumPy arrays in place of tensors."""
        return self._map_arrays(lambda array: array.numpy(force=True) if hasattr(array, "numpy") else array)

    def changed(self, change: Callable[[Batch], Batch]) -> Batch:
        """Return the batch that ``change`` makes of this one, which must be a copy: ``dataclasses.replace``."""
        writable = self._writable
        again = None if writable is None else lambda: replace(change(writable()), _writable=None)
        return replace(change(self), _writable=again)

    def _map_arrays(self, change: Callable[[Array], Array]) -> Batch:
        arrays = {name: change(getattr(self, name)) for name in _ATTRIBUTES if name != "actions"}
        return replace(
            self,
            ids=_ChangedIds(self.ids, change),
            dense={name: change(array) for name, array in self.dense.items()},
            extras={name: change(array) for name, array in self.extras.items()},
            actions=Ragged(change(self.actions.values), change(self.actions.offsets), self.actions.shared),
            _writable=None,
            **arrays,
        )

    @classmethod
    def from_arrays(
        cls,
        *,
        ids: Mapping[str, Ragged | Sequence[Sequence[int]]] | None = None,
        dense: Mapping[str, npt.ArrayLike] | None = None,
        label: npt.ArrayLike | None = None,
        label_mask: npt.ArrayLike | None = None,
        weight: npt.ArrayLike | None = None,
        sample_rate: npt.ArrayLike | None = None,
        event_time_s: npt.ArrayLike | None = None,
        uid: npt.ArrayLike | None = None,
        actions: Ragged | Sequence[Sequence[int]] | None = None,
        extras: Mapping[str, npt.ArrayLike] | None = None,
    ) -> Batch:
        """Make a batch from arrays. Missing arguments get the values of a record without these fields.

        A label that is NaN or the lowest float is missing, as in records: its value becomes 0 and its mask False.

        Raises:
            ConfigError: The arrays have different numbers of rows, or there is no array.
        """
        lists = {
            name: value if isinstance(value, Ragged) else Ragged.from_lists(value)
            for name, value in (ids or {}).items()
        }
        columns = {name: _matrix(value) for name, value in (dense or {}).items()}
        sizes = {name: len(value) for name, value in lists.items() if not value.shared}
        sizes |= {name: len(value) for name, value in columns.items()}
        labels = None if label is None else _matrix(label)
        if labels is not None:
            sizes["label"] = len(labels)
        if len(set(sizes.values())) != 1:
            raise ConfigError(f"the arrays of a batch must have the same number of rows, they have {sizes}")
        size = next(iter(sizes.values()))
        if labels is None:
            labels = np.zeros((size, 1), np.float32)
            label_mask = np.zeros((size, 1), np.bool_) if label_mask is None else label_mask
        labels, known = _mark_missing(labels, label_mask)

        def vector(value: npt.ArrayLike | None, default: float, kind: Any) -> npt.NDArray[Any]:
            return np.full(size, default, kind) if value is None else np.asarray(value, kind).reshape(size)

        acted = Ragged.from_lists([[]] * size) if actions is None else actions
        return cls(
            size=size,
            ids=lists,
            dense=columns,
            label=labels,
            label_mask=known,
            weight=vector(weight, 1, np.float32),
            sample_rate=vector(sample_rate, 1, np.float32),
            event_time_s=vector(event_time_s, 0, np.int64),
            uid=vector(uid, 0, np.int64),
            actions=acted if isinstance(acted, Ragged) else Ragged.from_lists(acted),
            extras={name: np.asarray(value) for name, value in (extras or {}).items()},
        )

    @classmethod
    def concat(cls, batches: Sequence[Batch]) -> Batch:
        """Return the rows of all batches as one batch, copied.

        Raises:
            ConfigError: There is no batch, or the batches differ in their columns, or a feature has two types of
                values.
        """
        if not batches:
            raise ConfigError("batches is empty, expected at least one batch")
        first = batches[0]
        columns = {group: list(getattr(first, group)) for group in ("ids", "dense", "extras")}
        for batch in batches:
            for group, names in columns.items():
                if set(getattr(batch, group)) != set(names):
                    given = ", ".join(getattr(batch, group)) or "none"
                    raise ConfigError(f"the {group} of a batch are {given}, expected those of the first: {names}")
        lists = {name: _concat_ragged([(each.ids[name], each.size) for each in batches]) for name in first.ids}
        return cls(
            size=sum(batch.size for batch in batches),
            ids=lists,
            dense={name: _concat_arrays([each.dense[name] for each in batches], name) for name in first.dense},
            extras={name: _concat_arrays([each.extras[name] for each in batches], name) for name in first.extras},
            actions=_concat_ragged([(each.actions, each.size) for each in batches]),
            label=np.concatenate([np.asarray(each.label) for each in batches]),
            label_mask=np.concatenate([np.asarray(each.label_mask) for each in batches]),
            weight=np.concatenate([np.asarray(each.weight) for each in batches]),
            sample_rate=np.concatenate([np.asarray(each.sample_rate) for each in batches]),
            event_time_s=np.concatenate([np.asarray(each.event_time_s) for each in batches]),
            uid=np.concatenate([np.asarray(each.uid) for each in batches]),
            value_types=_merge_value_types(batches),
        )


_ATTRIBUTES = ("label", "label_mask", "weight", "sample_rate", "event_time_s", "uid", "actions")


def _matrix(value: npt.ArrayLike) -> npt.NDArray[np.float32]:
    array = np.asarray(value, np.float32)
    return array.reshape(len(array), math.prod(array.shape[1:]))  # -1 is ambiguous without rows


def _mark_missing(
    labels: npt.NDArray[np.float32], mask: npt.ArrayLike | None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return the labels with 0 for missing ones, and their mask, in one shape."""
    known = ~np.isnan(labels) & (labels != np.finfo(np.float32).min)
    if not known.all():
        labels = np.where(known, labels, np.float32(0))
    if mask is None:
        return labels, known
    given = np.asarray(mask, np.bool_)
    if given.size != labels.size or given.shape[:1] != labels.shape[:1]:
        raise ConfigError(
            f"label_mask has shape {given.shape}, expected {labels.shape}, that of label; give a truth value per label"
        )
    return labels, known & given.reshape(labels.shape)


def _merge_value_types(batches: Sequence[Batch]) -> dict[str, ValueType]:
    merged: dict[str, ValueType] = {}
    for batch in batches:
        for name, found in batch.value_types.items():
            if merged.setdefault(name, found) != found:
                raise ConfigError(
                    f"value_type of feature {name!r} is {found!r} in a batch, expected {merged[name]!r} as in the "
                    "batches before; declare it in the schema"
                )
    return merged


def _concat_ragged(parts: Sequence[tuple[Ragged, int]]) -> Ragged:
    lists = [ids.expanded(rows) for ids, rows in parts]
    lengths = np.concatenate([np.diff(np.asarray(ids.offsets)) for ids in lists])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = [np.asarray(ids.values)[ids.offsets[0] : ids.offsets[-1]] for ids in lists]
    return Ragged(np.concatenate(values), offsets)


def _concat_arrays(arrays: Sequence[Array], name: str) -> Array:
    texts = [array for array in arrays if isinstance(array, Texts)]
    if not texts:
        return np.concatenate([np.asarray(array) for array in arrays])
    if len(texts) < len(arrays):
        raise ConfigError(f"column {name!r} holds texts and numbers, expected one of them; declare its dtype")
    lengths = np.concatenate([np.diff(each.offsets) for each in texts])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Texts(np.concatenate([each.data[each.offsets[0] : each.offsets[-1]] for each in texts]), offsets)


def _numbers_or_texts(value: Any) -> Array:
    return Texts(*value) if isinstance(value, tuple) else value


def batch_of(
    data: _native.BatchData,
    sparse: Mapping[str, int],
    dense: Mapping[str, int],
    extras: Mapping[str, int],
    value_types: Mapping[str, ValueType],
    writable: bool = False,
) -> Batch:
    """Make a batch of native arrays; the mappings give the index of each name."""
    return Batch(
        size=data.rows,
        ids=ParsedIds(sparse, data, writable),
        dense=_Lazy(dense, lambda place: _numbers_or_texts(data.dense(place, writable))),
        label=data.label(writable),
        label_mask=data.label_mask(writable),
        weight=data.weight(writable),
        sample_rate=data.sample_rate(writable),
        event_time_s=data.event_time_s(writable),
        uid=data.uid(writable),
        actions=Ragged(*data.actions(writable)),
        extras=_Lazy(extras, lambda place: _numbers_or_texts(data.extra(place, writable))),
        value_types=value_types,
        _writable=None if writable else lambda: batch_of(data, sparse, dense, extras, value_types, writable=True),
    )

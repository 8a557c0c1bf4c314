"""The steps of a distributed lookup as plain functions: split, reorder, deduplicate, gather, and their gradients.

They compute the same as the original's operators, on NumPy arrays. The training loop uses a native plan instead. Use
them to build or to check another exchange of ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.data.batch import Ragged
from monolith.data.transforms import ragged

__all__ = [
    "FusedOrder",
    "UniqueKeys",
    "aligned_flat_concat",
    "aligned_flat_split",
    "fill_with_offset_map",
    "fill_with_offset_map_gradient",
    "fused_gather_embeddings",
    "fused_gather_embeddings_gradient",
    "fused_reduce_sum_and_split",
    "fused_reorder_by_indices",
    "gather_embeddings_by_input",
    "gather_embeddings_gradient",
    "gen_seq_mask",
    "map_id_to_embedding",
    "map_id_to_embedding_gradient",
    "normalize_merged_split",
    "pack_tensors",
    "pack_typed_tensors",
    "ragged_split_by_indices",
    "reduce_sqrtn",
    "reduce_sqrtn_gradient",
    "reorder_by_indices",
    "split_by_indices",
    "split_by_indices_gradient",
    "unique_key_with_value_and_offset",
    "unpack_tensors",
    "unpack_typed_tensors",
]

_Array: TypeAlias = NDArray[Any]
_Ids: TypeAlias = NDArray[np.int64]
_Floats: TypeAlias = NDArray[np.float32]


# --- by shard ---------------------------------------------------------------------------------------------------------


def split_by_indices(indices: ArrayLike, x: ArrayLike, n: int) -> list[_Array]:
    """Split the rows of ``x`` by their shard, each part in the order of arrival. Shapes: (N,), (N, ...).

    >>> [part.tolist() for part in split_by_indices([0, 1, 2, 2, 0], [0, 1, 2, 2, 3], 3)]
    [[0, 3], [1], [2, 2]]
    """
    shard, rows = _shards(indices, n), np.asarray(x)
    _check_length("x", rows, len(shard))
    return [rows[shard == number] for number in range(n)]


def split_by_indices_gradient(indices: ArrayLike, grads: Sequence[ArrayLike]) -> _Array:
    """Put the gradients of the parts back in the place of their rows."""
    shard = _shards(indices, len(grads))
    parts = [np.asarray(grad) for grad in grads]
    for number, part in enumerate(parts):
        _check_length(f"gradient {number}", part, int((shard == number).sum()))
    back = np.empty(len(shard), np.int64)
    back[np.argsort(shard, kind="stable")] = np.arange(len(shard))
    result: _Array = np.concatenate(parts)[back]
    return result


def reorder_by_indices(x: ArrayLike, indices: ArrayLike, n: int) -> tuple[_Ids, NDArray[np.int32]]:
    """Drop repeated ids and group the others by shard, the latest to arrive first; return them and the group sizes.

    >>> ids, sizes = reorder_by_indices([0, 1, 2, 2, 3, 5], [0, 1, 2, 2, 0, 2], 3)
    >>> ids.tolist(), sizes.tolist()
    ([3, 0, 1, 5, 2], [2, 1, 2])
    """
    values, shard = _ids(x), _shards(indices, n)
    _check_length("x", values, len(shard))
    _, first = np.unique(values, return_index=True)
    kept = np.sort(first)
    groups = [values[kept][shard[kept] == number][::-1] for number in range(n)]
    return _join(groups), np.array([len(group) for group in groups], np.int32)


def ragged_split_by_indices(indices: ArrayLike, values: Ragged, n: int) -> list[tuple[Ragged, Ragged]]:
    """Split the ids of each row by their shard; return per shard the ids and their positions among all ids."""
    shard = _shards(indices, n)
    ids = _ids(values.values)
    _check_length("values", ids, len(shard))
    rows = ragged.row_ids(values.offsets)
    parts: list[tuple[Ragged, Ragged]] = []
    for number in range(n):
        positions = np.flatnonzero(shard == number).astype(np.int64)
        counts = np.bincount(rows[positions], minlength=len(values))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        parts.append((Ragged(ids[positions], offsets), Ragged(positions, offsets)))
    return parts


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FusedOrder:
    """The ids of K lists in the order in which they are exchanged with N shards."""

    ids: _Ids
    """Shard by shard, in it list by list, in it in order of first occurrence; once per list."""
    shard_sizes: NDArray[np.int32]
    """(N) ids of each shard."""
    sharded_slot_sizes: NDArray[np.int32]
    """(N * K) ids of each list on each shard."""
    emb_offset_sizes: NDArray[np.int32]
    """(K) lengths of the lists as given."""
    fused_emb_offset: NDArray[np.int32]
    """For every id as given, where its row begins among the floats that come back."""


def fused_reorder_by_indices(
    lists: Sequence[ArrayLike], n: int, dims: Sequence[int], *, first_shard: int = 0
) -> FusedOrder:
    """Deduplicate every list, divide it among shards, and return the offset of each id's row.

    Args:
        lists: The ids of each table.
        n: Shards.
        dims: Floats of a row of each table.
        first_shard: Shards before this one hold nothing: an id goes to ``id % (n - first_shard) + first_shard``.
    """
    if not 0 <= first_shard < n:
        raise ConfigError(f"first_shard is {first_shard} of {n} shards; it is at least 0 and leaves one")
    if len(lists) != len(dims):
        raise DimensionMismatch(f"there are {len(lists)} lists and {len(dims)} dims; give one dim per list")
    found = [ragged.unique(_ids(values)) for values in lists]
    shards = [ids % (n - first_shard) + first_shard for ids, _ in found]
    groups = [ids[shard == number] for number in range(n) for (ids, _), shard in zip(found, shards, strict=True)]
    slot_sizes = np.array([len(group) for group in groups], np.int32)
    floats = list(accumulate((len(group) * dims[i % len(dims)] for i, group in enumerate(groups)), initial=0))
    offsets: list[_Ids] = []
    for k, ((_, places), shard) in enumerate(zip(found, shards, strict=True)):
        begins = np.zeros(len(shard), np.int64)
        for number in range(n):
            mine = shard == number
            begins[mine] = floats[number * len(lists) + k] + np.arange(int(mine.sum())) * dims[k]
        offsets.append(begins[places])
    return FusedOrder(
        ids=_join(groups),
        shard_sizes=slot_sizes.reshape(n, -1).sum(axis=1, dtype=np.int32),
        sharded_slot_sizes=slot_sizes,
        emb_offset_sizes=np.array([len(part) for part in offsets], np.int32),
        fused_emb_offset=_join(offsets).astype(np.int32),
    )


def fused_gather_embeddings(embeddings: ArrayLike, order: FusedOrder, dims: Sequence[int]) -> list[_Floats]:
    """Return the rows of every list as given, from the floats that came back. Shapes: (F,) -> K times (n, D)."""
    flat = np.asarray(embeddings, np.float32)
    return [flat[places] for places in _row_places(order, dims)]


def fused_gather_embeddings_gradient(
    grads: Sequence[ArrayLike], order: FusedOrder, dims: Sequence[int], scale: float = 1.0
) -> _Floats:
    """Return the gradient of the floats: the sum over the occurrences of an id. Shapes: K x (n, D) to (F,)."""
    tables = len(dims)
    length = sum(int(size) * dims[i % tables] for i, size in enumerate(order.sharded_slot_sizes))
    total = np.zeros(length, np.float32)
    for k, (places, grad) in enumerate(zip(_row_places(order, dims), grads, strict=True)):
        given = np.asarray(grad, np.float32)
        if given.shape != places.shape:
            raise DimensionMismatch(f"gradient {k} has shape {given.shape}; list {k} needs {places.shape}")
        np.add.at(total, places, given * np.float32(scale))
    return total


# --- unique keys in one buffer ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class UniqueKeys:
    """The distinct keys of each table, and where their rows go in one buffer of floats."""

    keys: Ragged
    """A bag per table, in order of first occurrence."""
    value_offsets: Ragged
    """A bag per distinct key: where in the buffer the row of each of its occurrences begins."""
    dims: tuple[int, ...]
    """Floats of a row of each table."""
    buffer_length: int
    """Floats of the buffer: the rows of all occurrences, table by table."""


def unique_key_with_value_and_offset(key: Ragged, dims: Sequence[int]) -> UniqueKeys:
    """Find the distinct keys of each table and the place of every occurrence in one buffer.

    >>> found = unique_key_with_value_and_offset(Ragged.from_lists([[0, 1, 2, 1, 0], [0, 1, 0]]), [2, 3])
    >>> found.keys.tolist(), found.value_offsets.tolist(), found.buffer_length
    ([[0, 1, 2], [0, 1]], [[0, 8], [2, 6], [4], [10, 16], [13]], 19)
    """
    if len(key) != len(dims):
        raise DimensionMismatch(f"there are keys of {len(key)} tables and {len(dims)} dims; give one dim per table")
    keys: list[list[int]] = []
    offsets: list[list[int]] = []
    begin = 0
    for table, dim in enumerate(dims):
        places: dict[int, list[int]] = {}
        for value in key[table].tolist():
            places.setdefault(value, []).append(begin)
            begin += dim
        keys.append(list(places))
        offsets += places.values()
    return UniqueKeys(
        keys=Ragged.from_lists(keys),
        value_offsets=Ragged.from_lists(offsets),
        dims=tuple(dims),
        buffer_length=begin,
    )


def fill_with_offset_map(keys: UniqueKeys, value: ArrayLike) -> _Floats:
    """Copy the row of each distinct key to all its occurrences. Shapes: flat rows of distinct keys -> (buffer_length,).

    Raises:
        ConfigError: ``value`` is shorter than the rows of all keys.
    """
    source, target = _copies(keys)
    rows = np.asarray(value, np.float32).reshape(-1)
    needed = _distinct_floats(keys)
    if len(rows) < needed:
        raise ConfigError(f"value has {len(rows)} floats; the rows of the distinct keys need {needed}")
    buffer = np.zeros(keys.buffer_length, np.float32)
    buffer[target] = rows[source]
    return buffer


def fill_with_offset_map_gradient(keys: UniqueKeys, grad: ArrayLike) -> _Floats:
    """Sum the gradients of all occurrences of each distinct key: the gradient of ``value``."""
    source, target = _copies(keys)
    given = np.asarray(grad, np.float32).reshape(-1)
    _check_length("grad", given, keys.buffer_length)
    total = np.zeros(_distinct_floats(keys), np.float32)
    np.add.at(total, source, given[target])
    return total


# --- gathering rows ---------------------------------------------------------------------------------------------------


def map_id_to_embedding(ids: Sequence[ArrayLike], embeddings: Sequence[ArrayLike], keys: ArrayLike) -> _Floats:
    """Return the row of every key, from lists of ids and their rows. Shapes: (...) -> (..., D).

    Raises:
        ConfigError: No list has a key.
    """
    rows = np.concatenate([np.asarray(part, np.float32) for part in embeddings])
    result: _Floats = rows[_places_of(ids, keys)]
    return result


def map_id_to_embedding_gradient(ids: Sequence[ArrayLike], keys: ArrayLike, grad: ArrayLike) -> list[_Floats]:
    """Return the gradient of each list's rows; a key that occurs several times has the sum."""
    places = _places_of(ids, keys)
    given = np.asarray(grad, np.float32)
    lengths = [len(_ids(part)) for part in ids]
    total = np.zeros((sum(lengths), given.shape[-1]), np.float32)
    np.add.at(total, places, given)
    return np.split(total, np.cumsum(lengths)[:-1])


def gather_embeddings_by_input(ids: ArrayLike, embeddings: ArrayLike, keys: ArrayLike) -> tuple[_Floats, _Ids]:
    """Return the row of every key and its place among ``ids``."""
    places = _places_of([ids], keys)
    return np.asarray(embeddings, np.float32)[places], places


def gather_embeddings_gradient(index_map: ArrayLike, grad: ArrayLike, rows: int) -> _Floats:
    """Return the gradient of ``rows`` gathered rows."""
    given = np.asarray(grad, np.float32)
    total = np.zeros((rows, given.shape[-1]), np.float32)
    np.add.at(total, _ids(index_map), given)
    return total


# --- rows of a batch --------------------------------------------------------------------------------------------------


def fused_reduce_sum_and_split(
    rows: ArrayLike, values: ArrayLike, batch_size: int, dims: Sequence[int]
) -> list[_Floats]:
    """Add up the values of each row of the batch and cut the sums into slices. Shapes: (N,), (N, D) -> n times (B, d).

    >>> sums = fused_reduce_sum_and_split([0, 0, 2], [[1, 1, 1], [2, 2, 1], [4, 4, 2]], 4, [1, 2])
    >>> [part.tolist() for part in sums]
    [[[3.0], [0.0], [4.0], [0.0]], [[3.0, 2.0], [0.0, 0.0], [4.0, 2.0], [0.0, 0.0]]]
    """
    given = np.asarray(values, np.float32)
    if given.ndim != 2 or given.shape[1] != sum(dims):
        raise DimensionMismatch(f"values has shape {given.shape}; slices of dims {list(dims)} need (N, {sum(dims)})")
    owner = _ids(rows)
    _check_length("rows", owner, len(given))
    if len(owner) and not 0 <= int(owner.min()) <= int(owner.max()) < batch_size:
        raise ConfigError(f"rows go from {owner.min()} to {owner.max()}; the batch has {batch_size}")
    total = np.zeros((batch_size, given.shape[1]), np.float32)
    np.add.at(total, owner, given)
    return np.split(total, np.cumsum(dims)[:-1], axis=1)


def normalize_merged_split(splits: ArrayLike, sizes: Sequence[int]) -> _Ids:
    """Turn the row splits of several requests, one behind the other, into those of all their rows.

    >>> normalize_merged_split([0, 2, 5, 5, 9, 0, 0, 3, 4], [5, 4]).tolist()
    [0, 2, 5, 5, 9, 9, 12, 13]
    """
    merged = _ids(splits)
    if sum(sizes) != len(merged) or any(size < 1 for size in sizes):
        raise DimensionMismatch(f"sizes are {list(sizes)}; they are positive and add up to the {len(merged)} splits")
    ends = list(accumulate(sizes, initial=0))
    lengths = [np.diff(merged[begin:end]) for begin, end in pairwise(ends)]
    return np.concatenate([[0], np.cumsum(np.concatenate(lengths))] if lengths else [[0]]).astype(np.int64)


def gen_seq_mask(splits: ArrayLike, max_length: int) -> _Array:
    """Return 1 where a row has a value and 0 behind its end. Shapes: (B + 1,) -> (B, max_length), of the same type.

    >>> gen_seq_mask([0, 2, 2, 7], 3).tolist()
    [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    """
    ends = np.asarray(splits)
    if ends.dtype.kind != "i" or ends.ndim != 1:
        raise ConfigError(f"splits has dtype {ends.dtype} and {ends.ndim} dimensions; give one of int32 or int64")
    result: _Array = (np.arange(max_length) < np.diff(ends)[:, None]).astype(ends.dtype)
    return result


def reduce_sqrtn(rows: ArrayLike, offsets: ArrayLike) -> _Floats:
    """Return the root of the sum of squares of each bag's rows, per column. Shapes: (N, D), (B + 1,) -> (B, D)."""
    given = np.asarray(rows, np.float32)
    squares = np.zeros((len(_ids(offsets)) - 1, given.shape[1]), np.float32)
    np.add.at(squares, ragged.row_ids(offsets), given * given)
    return np.sqrt(squares)


def reduce_sqrtn_gradient(rows: ArrayLike, offsets: ArrayLike, grad: ArrayLike) -> _Floats:
    """Return the gradient of ``rows``: ``grad * row / norm``, and 0 where the norm is 0."""
    given = np.asarray(rows, np.float32)
    norms = reduce_sqrtn(given, offsets)
    safe = np.where(norms == 0, np.float32(1), norms)
    owner = ragged.row_ids(offsets)
    return np.asarray(np.asarray(grad, np.float32)[owner] * (given / safe[owner]), np.float32)


# --- many tensors in one ----------------------------------------------------------------------------------------------


def pack_tensors(tensors: Mapping[str, ArrayLike]) -> tuple[_Array, _Ids]:
    """Join arrays of one type end to end, in order of their names; return the floats and how many each has.

    >>> packed, sizes = pack_tensors({"y": [[4, 5], [6, 7]], "x": [1, 2]})
    >>> packed.tolist(), sizes.tolist()
    ([1, 2, 4, 5, 6, 7], [2, 4])
    """
    arrays = [np.asarray(tensors[name]) for name in sorted(tensors)]
    types = {array.dtype for array in arrays}
    if len(types) != 1:
        raise ConfigError(f"the arrays have types {sorted(map(str, types))}; pack those of one type, at least one")
    return np.concatenate([array.reshape(-1) for array in arrays]), np.array([a.size for a in arrays], np.int64)


def unpack_tensors(shapes: Mapping[str, Sequence[int]], packed: ArrayLike, sizes: ArrayLike) -> dict[str, _Array]:
    """Undo ``pack_tensors``. In each shape one number may be -1: the rest."""
    flat, lengths = np.asarray(packed), _ids(sizes)
    _check_length("sizes", lengths, len(shapes))
    _check_length("packed", flat, int(lengths.sum()))
    parts = np.split(flat, np.cumsum(lengths)[:-1])
    unpacked: dict[str, _Array] = {}
    for name, part in zip(sorted(shapes), parts, strict=True):
        try:
            unpacked[name] = part.reshape(tuple(shapes[name]))
        except ValueError:
            raise DimensionMismatch(
                f"{name!r} has {part.size} values; shape {tuple(shapes[name])} is not of that size"
            ) from None
    return unpacked


def pack_typed_tensors(groups: Sequence[Mapping[str, ArrayLike]]) -> tuple[list[_Array], _Ids]:
    """Pack several groups, each of one type; return an array per group and one vector: counts per group, then sizes."""
    packed = [pack_tensors(group) for group in groups]
    counts = np.array([len(sizes) for _, sizes in packed], np.int64)
    return [flat for flat, _ in packed], np.concatenate([counts, *(sizes for _, sizes in packed)])


def unpack_typed_tensors(
    shapes: Sequence[Mapping[str, Sequence[int]]], packed: Sequence[ArrayLike], sizes: ArrayLike
) -> list[dict[str, _Array]]:
    """Undo ``pack_typed_tensors``."""
    given = _ids(sizes)
    counts, lengths = given[: len(shapes)], given[len(shapes) :]
    if [len(group) for group in shapes] != counts.tolist() or len(lengths) != counts.sum():
        raise DimensionMismatch(
            f"sizes begins with counts {counts.tolist()}; the shapes are of {list(map(len, shapes))}"
        )
    own = np.split(lengths, np.cumsum(counts)[:-1])
    return [unpack_tensors(group, flat, part) for group, flat, part in zip(shapes, packed, own, strict=True)]


def aligned_flat_concat(tensors: Sequence[ArrayLike], align_bytes: int = 64) -> _Array:
    """Join arrays of one type end to end, each at a multiple of ``align_bytes``, with zeros between.

    >>> aligned_flat_concat([np.ones(3, np.float32), np.full((1, 2), 2, np.float32)], 16).tolist()
    [1.0, 1.0, 1.0, 0.0, 2.0, 2.0, 0.0, 0.0]
    """
    arrays = [np.asarray(tensor) for tensor in tensors]
    types = {array.dtype for array in arrays}
    if len(types) != 1:
        raise ConfigError(f"the arrays have types {sorted(map(str, types))}; join those of one type, at least one")
    dtype = types.pop()
    begins = _aligned_begins([array.size for array in arrays], dtype, align_bytes)
    flat = np.zeros(begins[-1], dtype)
    for begin, array in zip(begins, arrays, strict=False):
        flat[begin : begin + array.size] = array.reshape(-1)
    return flat


def aligned_flat_split(flat: ArrayLike, shapes: Sequence[Sequence[int]], align_bytes: int = 64) -> list[_Array]:
    """Undo ``aligned_flat_concat``: views of the joined array."""
    joined = np.asarray(flat)
    counts = [int(np.prod(shape)) for shape in shapes]
    begins = _aligned_begins(counts, joined.dtype, align_bytes)
    _check_length("flat", joined, begins[-1])
    return [
        joined[begin : begin + count].reshape(tuple(shape))
        for begin, count, shape in zip(begins, counts, shapes, strict=False)
    ]


# --- arguments --------------------------------------------------------------------------------------------------------


def _ids(values: ArrayLike) -> _Ids:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise ConfigError(f"ids have dtype {array.dtype}; give integers")
    return array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64)


def _shards(indices: ArrayLike, n: int) -> _Ids:
    shard = _ids(indices)
    if len(shard) and not 0 <= int(shard.min()) <= int(shard.max()) < n:
        raise ConfigError(f"indices go from {shard.min()} to {shard.max()}; there are {n} shards, from 0")
    return shard


def _check_length(name: str, array: _Array, length: int) -> None:
    if len(array) != length:
        raise DimensionMismatch(f"{name} has length {len(array)}; it must have {length}")


def _join(parts: Sequence[_Ids]) -> _Ids:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _row_places(order: FusedOrder, dims: Sequence[int]) -> list[_Ids]:
    lists = np.split(order.fused_emb_offset.astype(np.int64), np.cumsum(order.emb_offset_sizes)[:-1])
    return [begins[:, None] + np.arange(dim) for begins, dim in zip(lists, dims, strict=True)]


def _distinct_floats(keys: UniqueKeys) -> int:
    return int(np.dot(np.diff(keys.keys.offsets), keys.dims)) if keys.dims else 0


def _copies(keys: UniqueKeys) -> tuple[_Ids, _Ids]:
    """For every float of the buffer: where it comes from among the rows of distinct keys, and where it goes."""
    dim_of_key = np.repeat(np.array(keys.dims, np.int64), np.diff(keys.keys.offsets))
    begin_of_key = np.cumsum(dim_of_key) - dim_of_key
    key_of = ragged.row_ids(keys.value_offsets.offsets)
    dims = dim_of_key[key_of]
    column = np.arange(int(dims.sum())) - np.repeat(np.cumsum(dims) - dims, dims)
    return np.repeat(begin_of_key[key_of], dims) + column, np.repeat(keys.value_offsets.values, dims) + column


def _places_of(ids: Sequence[ArrayLike], keys: ArrayLike) -> _Ids:
    known = _join([_ids(part) for part in ids])
    wanted = _ids(keys)
    places = ragged.map_id(wanted, {int(fid): place for place, fid in enumerate(known)})
    missing = wanted[places < 0]
    if missing.size:
        raise ConfigError(
            f"id {missing.reshape(-1)[0]} has no embedding; {missing.size} of {wanted.size} keys are unknown"
        )
    return places


def _aligned_begins(counts: Sequence[int], dtype: np.dtype[Any], align_bytes: int) -> list[int]:
    step = align_bytes // dtype.itemsize
    if step < 1 or align_bytes % dtype.itemsize:
        raise ConfigError(f"align_bytes is {align_bytes}; give a multiple of the {dtype.itemsize} bytes of {dtype}")
    return list(accumulate((-(-count // step) * step for count in counts), initial=0))

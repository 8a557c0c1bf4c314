"""Ids over parameter servers, and back from their replies to layouts, in the original's offset encodings 1 to 5.

Training uses ``_native.Layouts`` instead; these functions exchange data with systems that use the original's encodings.
A *block* holds the rows of one table on one shard; its number is ``table * ps_num + shard``. The code favours clarity
over speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from monolith.compat.layout_encodings.layout_configs import FeatureConfigs, OutConfig, OutType, PoolingType, SliceConfig
from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.data.batch import Ragged
from monolith.data.transforms import ragged
from monolith.embedding.shard_map import shard_of

__all__ = [
    "SHARED_BIT",
    "ConcatSizes",
    "RequestSizes",
    "ShardedFids",
    "concat_requests",
    "embedding_to_layout",
    "embedding_to_layout_grad",
    "sharding_sparse_fids",
]

SHARED_BIT = 0x80000000
"""Set in ``nfl_offset`` for a feature with one row for the whole batch."""

Version: TypeAlias = Literal[1, 2, 3, 4, 5]
_Ids: TypeAlias = NDArray[np.int64]
_Ints: TypeAlias = NDArray[np.int32]
_Floats: TypeAlias = NDArray[np.float32]
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConcatSizes:
    """Version 4: how the one list of ids, and the one array of floats, is cut. Index ``shard * tables + table``."""

    fid_list_table_row_length: _Ints
    """(P * T) ids of each block."""
    fid_list_shard_row_length: _Ints
    """(P) ids of each shard."""
    fid_list_emb_row_length: _Ints
    """(P * T) floats of each block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSizes:
    """Version 5: lengths of the arrays of each of R requests, so that requests can be joined end to end."""

    batch_size: _Ints
    """(R)."""
    nfl_size: _Ints
    """(R) entries of ``nfl_offset``."""
    feature_size: _Ints
    """(R) entries of ``feature_offset``."""
    fid_size: _Ints
    """(R) entries of ``fid_offset``."""
    emb_size: _Ints
    """(R, T * P) floats of each block."""
    row_splits_size: _Ints
    """(R, T * P) entries of each block's row splits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardedFids:
    """The ids of a batch by table and shard, and where every occurrence finds its row.

    Rows of the batch are counted feature by feature (in name order), then example by example; a shared feature has
    one row.
    """

    version: Version
    ps_num: int
    fid_list: tuple[_Ids, ...]
    """The ids of each block; version 4: a single list, shard by shard, then table by table."""
    fid_list_row_splits: tuple[NDArray[np.int64], ...]
    """(features of the table + 1) per block: where each feature's ids begin; version 4: joined like the ids."""
    fid_offset: NDArray[np.uint64]
    """(occurrences): the block in the upper 32 bits, the place in it in the lower."""
    feature_offset: _Ints
    """(rows + 1): where the occurrences of each row begin."""
    nfl_offset: NDArray[np.uint32]
    """(features + 1): where the rows of each feature begin, with ``SHARED_BIT``; last the entries of the above."""
    batch_size: int
    concat_sizes: ConcatSizes | None = None
    request_sizes: RequestSizes | None = None


def sharding_sparse_fids(
    batch_ids: Mapping[str, Ragged],
    feature_configs: FeatureConfigs,
    ps_num: int,
    *,
    version: Version = 5,
    unique: bool = True,
    batch_size: int | None = None,
) -> ShardedFids:
    """Spread the ids of a batch over shards by ``uint64(id) % ps_num``.

    Args:
        batch_ids: The ids of each feature. A feature that is absent counts as shared and empty.
        feature_configs: The features, their tables and dims.
        ps_num: Shards; 0 means one, in this process.
        version: The encoding of ``fid_offset``.
        unique: Ask for an id once per feature and shard, at its first occurrence, instead of every time.
        batch_size: Examples; needed only when no feature has a row per example.
    """
    if version not in (1, 2, 3, 4, 5):
        raise ConfigError(f"version is {version!r}; the encodings are 1 to 5")
    if ps_num < 0:
        raise ConfigError(f"ps_num is {ps_num}; give the number of shards, or 0 for one in this process")
    shards = max(ps_num, 1)
    bags = _bags_of(batch_ids, feature_configs)
    size = _batch_size(bags, batch_size)
    parts = {name: _FeatureParts(bag, shards, unique) for name, bag in bags.items()}
    addresses = _Addresses(feature_configs, shards, {name: part.counts for name, part in parts.items()})
    if version == 1:
        addresses.check_equal_dims()

    offsets = [_encode(addresses.of(name, part.shard, part.place, version)) for name, part in parts.items()]
    lengths = np.concatenate([np.diff(bag.offsets) for bag in bags.values()]) if bags else np.zeros(0, np.int64)
    rows = np.cumsum([0, *(len(bag) for bag in bags.values())])
    flags = np.array([SHARED_BIT if bag.shared else 0 for bag in bags.values()] + [0], np.uint32)
    starts = rows.astype(np.uint32)
    starts[-1] += 1
    blocks = [
        [parts[name].ids[shard] for name in feature_configs.features_of(table)]
        for table in feature_configs.tables
        for shard in range(shards)
    ]
    fid_list = tuple(np.concatenate(block) for block in blocks)
    row_splits = tuple(np.cumsum([0, *map(len, block)]) for block in blocks)
    result = ShardedFids(
        version=version,
        ps_num=shards,
        fid_list=fid_list,
        fid_list_row_splits=row_splits,
        fid_offset=np.concatenate(offsets) if offsets else np.zeros(0, np.uint64),
        feature_offset=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        nfl_offset=starts | flags,
        batch_size=size,
    )
    if version == 4:
        return _join(result, addresses.block_floats)
    return _with_sizes(result, addresses.block_floats) if version == 5 else result


def concat_requests(requests: Sequence[ShardedFids]) -> ShardedFids:
    """Join requests of version 5 end to end, as a server that batches them does. Join their embeddings block-wise."""
    if not requests:
        raise ConfigError("there are no requests to join; give at least one")
    sizes = [request.request_sizes for request in requests if request.request_sizes is not None]
    shapes = {(request.version, request.ps_num, len(request.fid_list)) for request in requests}
    if len(sizes) != len(requests) or len(shapes) > 1:
        raise ConfigError(f"requests of (version, shards, blocks) {sorted(shapes)} cannot be joined; use version 5")
    return replace(
        requests[0],
        fid_list=tuple(np.concatenate(lists) for lists in zip(*(r.fid_list for r in requests), strict=True)),
        fid_list_row_splits=tuple(
            np.concatenate(splits) for splits in zip(*(r.fid_list_row_splits for r in requests), strict=True)
        ),
        fid_offset=np.concatenate([request.fid_offset for request in requests]),
        feature_offset=np.concatenate([request.feature_offset for request in requests]),
        nfl_offset=np.concatenate([request.nfl_offset for request in requests]),
        batch_size=sum(request.batch_size for request in requests),
        request_sizes=RequestSizes(
            **{
                name: np.concatenate([getattr(size, name) for size in sizes])
                for name in RequestSizes.__dataclass_fields__
            }
        ),
    )


def embedding_to_layout(
    embeddings: Sequence[NDArray[np.float32]], fids: ShardedFids, feature_configs: FeatureConfigs
) -> list[_Floats]:
    """Return the tensors of all layouts, layouts in name order.

    Args:
        embeddings: One array per block, the rows of its ids one after the other, (n, D) or flat; version 4: a single
            flat array, in the order of its ids.
        fids: The result of ``sharding_sparse_fids``, or several results joined.
        feature_configs: As given there, with layouts, resolved.
    """
    requests = _split_requests(fids, embeddings)
    outputs = [_Request(fids, blocks, feature_configs).outputs() for fids, blocks in requests]
    return [np.concatenate(tensors) for tensors in zip(*outputs, strict=True)]


def embedding_to_layout_grad(
    grads: Sequence[NDArray[np.float32] | None],
    embeddings: Sequence[NDArray[np.float32]],
    fids: ShardedFids,
    feature_configs: FeatureConfigs,
    *,
    scale: float = 1.0,
) -> list[_Floats]:
    """Return the gradient of every array of ``embeddings``, in its shape.

    Args:
        grads: The gradient of each tensor that ``embedding_to_layout`` returned; None = not used, zeros.
        embeddings: As given there; their values do not matter.
        fids: As given there.
        feature_configs: As given there.
        scale: Multiplies all incoming gradients.
    """
    found: list[list[_Floats]] = []
    begin = 0
    for request, blocks in _split_requests(fids, embeddings):
        end = begin + request.batch_size
        own = [None if grad is None else np.asarray(grad[begin:end], np.float32) * np.float32(scale) for grad in grads]
        found.append(_Request(request, blocks, feature_configs).gradients(own))
        begin = end
    blocks = [np.concatenate(pieces) for pieces in zip(*found, strict=True)]
    if fids.version == 4:
        blocks = [np.concatenate([blocks[number] for number in _shard_major(fids.ps_num, len(blocks))])]
    return [block.reshape(given.shape) for block, given in zip(blocks, embeddings, strict=True)]


class _FeatureParts:
    """The ids of one feature by shard, and the shard and place of every occurrence."""

    def __init__(self, bag: Ragged, shards: int, unique: bool) -> None:
        values = np.asarray(bag.values, np.int64)
        self.shard = shard_of(values, shards)
        self.place = np.zeros(len(values), np.int64)
        self.ids: list[_Ids] = []
        for shard in range(shards):
            mine = self.shard == shard
            ids, places = ragged.unique(values[mine]) if unique else (values[mine], np.arange(int(mine.sum())))
            self.ids.append(ids)
            self.place[mine] = places
        self.counts = [len(ids) for ids in self.ids]


class _Addresses:
    """Where each feature's rows lie: per block, in rows and in floats."""

    def __init__(self, configs: FeatureConfigs, shards: int, counts: Mapping[str, Sequence[int]]) -> None:
        self._configs = configs
        self._shards = shards
        self._first_row: dict[tuple[str, int], int] = {}
        self._first_float: dict[tuple[str, int], int] = {}
        self._parts_before: dict[str, int] = {}
        self.block_floats: list[int] = []
        parts = 0
        for table in configs.tables:
            names = configs.features_of(table)
            self._parts_before[table] = parts
            parts += len(names) * shards
            for shard in range(shards):
                rows = floats = 0
                for name in names:
                    self._first_row[name, shard] = rows
                    self._first_float[name, shard] = floats
                    rows += counts[name][shard]
                    floats += counts[name][shard] * configs.feature_configs[name].dim
                self.block_floats.append(floats)

    def check_equal_dims(self) -> None:
        for table in self._configs.tables:
            dims = {self._configs.feature_configs[name].dim for name in self._configs.features_of(table)}
            if len(dims) > 1:
                raise ConfigError(f"table {table!r} holds dims {sorted(dims)}; version 1 needs one, use 2 to 5")

    def of(self, name: str, shard: _Ids, place: _Ids, version: Version) -> tuple[_Ids, _Ids]:
        """Return the upper and the lower half of the occurrences' offsets."""
        feature = self._configs.feature_configs[name]
        block = self._configs.tables.index(feature.table) * self._shards + shard
        if version == 1:
            return block, self._at(self._first_row, name, shard) + place
        if version == 2:
            names = self._configs.features_of(feature.table)
            return self._parts_before[feature.table] + shard * len(names) + names.index(name), place
        return block, self._at(self._first_float, name, shard) + place * feature.dim

    def _at(self, firsts: Mapping[tuple[str, int], int], name: str, shard: _Ids) -> _Ids:
        result: _Ids = np.array([firsts[name, s] for s in range(self._shards)], np.int64)[shard]
        return result


def _bags_of(batch_ids: Mapping[str, Ragged], configs: FeatureConfigs) -> dict[str, Ragged]:
    unknown = batch_ids.keys() - configs.feature_configs.keys()
    if unknown:
        raise ConfigError(f"there are ids of {sorted(unknown)}; the features are {configs.features}")
    nothing = Ragged(np.zeros(0, np.int64), np.zeros(2, np.int64), shared=True)
    return {name: batch_ids.get(name, nothing) for name in configs.features}


def _batch_size(bags: Mapping[str, Ragged], given: int | None) -> int:
    sizes = {name: len(bag) for name, bag in bags.items() if not bag.shared}
    found = set(sizes.values()) | ({given} if given is not None else set())
    if len(found) != 1:
        why = "no feature has a row per example" if not found else f"rows by feature are {sizes}"
        raise DimensionMismatch(f"batch_size is {given} and {why}; give one batch size for all")
    return found.pop()


def _encode(halves: tuple[_Ids, _Ids]) -> NDArray[np.uint64]:
    upper, lower = halves
    result: NDArray[np.uint64] = (upper.astype(np.uint64) << np.uint64(32)) | lower.astype(np.uint64)
    return result


def _shard_major(shards: int, blocks: int) -> list[int]:
    tables = blocks // shards
    return [table * shards + shard for shard in range(shards) for table in range(tables)]


def _join(fids: ShardedFids, block_floats: Sequence[int]) -> ShardedFids:
    order = _shard_major(fids.ps_num, len(fids.fid_list))
    ids = np.array([len(fids.fid_list[block]) for block in order], np.int32)
    return replace(
        fids,
        fid_list=(np.concatenate([fids.fid_list[block] for block in order]),),
        fid_list_row_splits=(np.concatenate([fids.fid_list_row_splits[block] for block in order]),),
        concat_sizes=ConcatSizes(
            fid_list_table_row_length=ids,
            fid_list_shard_row_length=ids.reshape(fids.ps_num, -1).sum(axis=1, dtype=np.int32),
            fid_list_emb_row_length=np.array([block_floats[block] for block in order], np.int32),
        ),
    )


def _with_sizes(fids: ShardedFids, block_floats: Sequence[int]) -> ShardedFids:
    def one(number: int) -> _Ints:
        return np.array([number], np.int32)

    sizes = RequestSizes(
        batch_size=one(fids.batch_size),
        nfl_size=one(len(fids.nfl_offset)),
        feature_size=one(len(fids.feature_offset)),
        fid_size=one(len(fids.fid_offset)),
        emb_size=np.array([block_floats], np.int32),
        row_splits_size=np.array([[len(splits) for splits in fids.fid_list_row_splits]], np.int32),
    )
    return replace(fids, request_sizes=sizes)


def _cut(array: NDArray[_Scalar], sizes: Sequence[int] | _Ints) -> list[NDArray[_Scalar]]:
    return np.split(array, np.cumsum(sizes)[:-1])


def _split_requests(
    fids: ShardedFids, embeddings: Sequence[NDArray[np.float32]]
) -> list[tuple[ShardedFids, list[_Floats]]]:
    """Return each request with the floats of its blocks, by block number."""
    flat = [np.asarray(block, np.float32).reshape(-1) for block in embeddings]
    sizes = fids.request_sizes
    if fids.concat_sizes is not None:
        lengths = fids.concat_sizes.fid_list_emb_row_length
        _check_floats(flat, [int(lengths.sum())])
        blocks: list[_Floats] = [np.zeros(0, np.float32)] * len(lengths)
        for number, floats in zip(_shard_major(fids.ps_num, len(lengths)), _cut(flat[0], lengths), strict=True):
            blocks[number] = floats
        return [(fids, blocks)]
    if sizes is None:
        return [(fids, flat)]
    _check_floats(flat, sizes.emb_size.sum(axis=0).tolist())
    block_pieces = [_cut(block, sizes.emb_size[:, number]) for number, block in enumerate(flat)]
    id_sizes = _ids_per_request(fids, sizes)
    id_pieces = [_cut(ids, id_sizes[number]) for number, ids in enumerate(fids.fid_list)]
    split_pieces = [
        _cut(splits, sizes.row_splits_size[:, number]) for number, splits in enumerate(fids.fid_list_row_splits)
    ]
    nfl = _cut(fids.nfl_offset, sizes.nfl_size)
    features = _cut(fids.feature_offset, sizes.feature_size)
    offsets = _cut(fids.fid_offset, sizes.fid_size)
    return [
        (
            replace(
                fids,
                fid_list=tuple(pieces[r] for pieces in id_pieces),
                fid_list_row_splits=tuple(pieces[r] for pieces in split_pieces),
                fid_offset=offsets[r],
                feature_offset=features[r],
                nfl_offset=nfl[r],
                batch_size=int(sizes.batch_size[r]),
                request_sizes=None,
            ),
            [pieces[r] for pieces in block_pieces],
        )
        for r in range(len(sizes.batch_size))
    ]


def _ids_per_request(fids: ShardedFids, sizes: RequestSizes) -> list[list[int]]:
    """The last row split of a block is how many ids it has."""
    return [
        [int(splits[-1]) for splits in _cut(fids.fid_list_row_splits[number], sizes.row_splits_size[:, number])]
        for number in range(len(fids.fid_list))
    ]


def _check_floats(blocks: Sequence[_Floats], wanted: Sequence[int]) -> None:
    given = [len(block) for block in blocks]
    if given != list(wanted):
        raise DimensionMismatch(f"the embeddings have {given} floats; the ids need {list(wanted)}")


class _Request:
    """The layouts of one request, and their gradients."""

    def __init__(self, fids: ShardedFids, blocks: Sequence[_Floats], configs: FeatureConfigs) -> None:
        self._configs = configs
        self._batch_size = fids.batch_size
        self._blocks = blocks
        rows = (fids.nfl_offset & np.uint32(SHARED_BIT - 1)).astype(np.int64)
        rows[-1] -= 1  # it counts entries of feature_offset, one more than rows
        upper = (fids.fid_offset >> np.uint64(32)).astype(np.int64)
        lower = (fids.fid_offset & np.uint64(0xFFFFFFFF)).astype(np.int64)
        self._features: list[_Occurrences] = []
        for rank, name in enumerate(configs.features):
            splits = fids.feature_offset[rows[rank] : rows[rank + 1] + 1].astype(np.int64)
            own = slice(int(splits[0]), int(splits[-1]))
            numbers, floats = _float_places(fids, configs, name, upper[own], lower[own])
            self._features.append(
                _Occurrences(
                    offsets=splits - splits[0],
                    is_shared=bool(fids.nfl_offset[rank] & np.uint32(SHARED_BIT)),
                    blocks=numbers,
                    floats=floats,
                    dim=configs.feature_configs[name].dim,
                )
            )

    def outputs(self) -> list[_Floats]:
        tensors: list[_Floats] = []
        rows = [feature.rows(self._blocks) for feature in self._features]
        for name in self._configs.layouts:
            out = self._configs.out_configs[name]
            pooled = [self._pool(piece, rows[_rank(name, piece)]) for piece in out.slice_configs]
            match out.out_type:
                case OutType.NONE:
                    tensors += pooled
                case OutType.CONCAT:
                    tensors.append(np.concatenate(pooled, axis=-1))
                case OutType.STACK:
                    tensors.append(np.stack(pooled, axis=1))
                case OutType.ADDN:
                    tensors.append(np.sum(pooled, axis=0, dtype=np.float32))
        return tensors

    def gradients(self, grads: Sequence[_Floats | None]) -> list[_Floats]:
        row_grads = [np.zeros((len(feature.floats), feature.dim), np.float32) for feature in self._features]
        left = list(grads)
        for name in self._configs.layouts:
            out = self._configs.out_configs[name]
            count = len(out.slice_configs) if out.out_type == OutType.NONE else 1
            if len(left) < count:
                raise DimensionMismatch(f"there are {len(grads)} gradients; layout {name!r} has none left")
            own, left = left[:count], left[count:]
            for piece, grad in zip(out.slice_configs, _slice_grads(out, own), strict=True):
                if grad is not None:
                    rank = _rank(name, piece)
                    row_grads[rank][:, piece.start : piece.end] += self._unpool(piece, self._features[rank], grad)
        if left:
            raise DimensionMismatch(f"there are {len(grads)} gradients, {len(left)} more than the layouts have")
        totals = [np.zeros_like(block) for block in self._blocks]
        for feature, row_grad in zip(self._features, row_grads, strict=True):
            feature.add(row_grad, totals)
        return totals

    def _pool(self, piece: SliceConfig, rows: _Floats) -> _Floats:
        feature = self._features[piece.feature_idx]
        columns = rows[:, piece.start : piece.end]
        owner, count = ragged.row_ids(feature.offsets), np.diff(feature.offsets)
        bags = len(count)
        if piece.pooling_type == PoolingType.FIRSTN:
            pooled = np.zeros((bags, piece.max_sequence_length, piece.width), np.float32)
            place = np.arange(len(owner)) - feature.offsets[owner]
            kept = place < piece.max_sequence_length
            pooled[owner[kept], place[kept]] = columns[kept]
        else:
            pooled = np.zeros((bags, piece.width), np.float32)
            np.add.at(pooled, owner, columns * _shares(piece, count)[owner, None])
        return np.repeat(pooled, self._batch_size, axis=0) if feature.is_shared else pooled

    def _unpool(self, piece: SliceConfig, feature: _Occurrences, grad: _Floats) -> _Floats:
        if feature.is_shared:
            grad = grad.sum(axis=0, keepdims=True, dtype=np.float64).astype(np.float32)
        owner, count = ragged.row_ids(feature.offsets), np.diff(feature.offsets)
        if piece.pooling_type != PoolingType.FIRSTN:
            pooled: _Floats = grad[owner] * _shares(piece, count)[owner, None]
            return pooled
        place = np.arange(len(owner)) - feature.offsets[owner]
        kept = place < piece.max_sequence_length
        spread = np.zeros((len(owner), piece.width), np.float32)
        spread[kept] = grad[owner[kept], place[kept]]
        return spread


@dataclass(frozen=True, kw_only=True, slots=True)
class _Occurrences:
    """The ids of one feature: their bags, and where in which block each one's row begins."""

    offsets: _Ids
    is_shared: bool
    blocks: _Ids
    floats: _Ids
    dim: int

    def rows(self, blocks: Sequence[_Floats]) -> _Floats:
        rows = np.zeros((len(self.floats), self.dim), np.float32)
        for number, places in self._places():
            rows[self.blocks == number] = blocks[number][places]
        return rows

    def add(self, row_grads: _Floats, totals: Sequence[_Floats]) -> None:
        for number, places in self._places():
            np.add.at(totals[number], places, row_grads[self.blocks == number])

    def _places(self) -> list[tuple[int, _Ids]]:
        columns = np.arange(self.dim)
        return [(int(n), self.floats[self.blocks == n][:, None] + columns) for n in np.unique(self.blocks)]


def _float_places(fids: ShardedFids, configs: FeatureConfigs, name: str, upper: _Ids, lower: _Ids) -> tuple[_Ids, _Ids]:
    """Return the block of each occurrence and the start of its row's floats there, for every version."""
    feature = configs.feature_configs[name]
    if fids.version == 1:
        return upper, lower * feature.dim
    if fids.version != 2:
        return upper, lower
    names = configs.features_of(feature.table)
    table = configs.tables.index(feature.table)
    before = sum(len(configs.features_of(other)) for other in configs.tables[:table]) * fids.ps_num
    shard = (upper - before) // len(names)
    block = table * fids.ps_num + shard
    dims = [configs.feature_configs[other].dim for other in names[: names.index(name)]]
    firsts = np.array(
        [
            int(np.dot(np.diff(fids.fid_list_row_splits[table * fids.ps_num + s])[: len(dims)], dims))
            for s in range(fids.ps_num)
        ],
        np.int64,
    )
    return block, firsts[shard] + lower * feature.dim


def _rank(layout: str, piece: SliceConfig) -> int:
    if piece.feature_idx < 0:
        raise ConfigError(f"layout {layout!r} is not resolved; call layout_configs.resolve first")
    return piece.feature_idx


def _shares(piece: SliceConfig, count: _Ids) -> _Floats:
    if piece.pooling_type != PoolingType.MEAN:
        return np.ones(len(count), np.float32)
    return np.asarray(1.0 / np.maximum(count, 1), np.float32)


def _slice_grads(out: OutConfig, grads: Sequence[_Floats | None]) -> list[_Floats | None]:
    """Cut the gradient of a layout's tensors into that of its slices."""
    if out.out_type == OutType.NONE:
        return list(grads)
    (grad,) = grads
    if grad is None:
        return [None] * len(out.slice_configs)
    match out.out_type:
        case OutType.CONCAT:
            ends = np.cumsum([piece.width for piece in out.slice_configs])[:-1]
            return list(np.split(grad, ends, axis=-1))
        case OutType.STACK:
            return [grad[:, rank] for rank in range(len(out.slice_configs))]
    return [grad] * len(out.slice_configs)

"""``RankStore``: tables whose rows are sharded over ranks that step together.

Every call is collective: all ranks make it, in the same order. A rank without ids takes part with empty arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.core.errors import ArtifactError, ConfigError, MonolithError
from monolith.embedding import Manifest, MultiTable, RestoreReport, TableSpec
from monolith.embedding.arguments import as_counts, as_ids, as_rows, check_known, check_step, check_time
from monolith.embedding.ranks.channel import Channel
from monolith.embedding.ranks.rank_cut import RankCut, leading
from monolith.embedding.ranks.row_request import RowRequest, SummedRows, blocks_of, sum_blocks
from monolith.embedding.store import Ids, Rows

__all__ = ["OwnGradients", "RankChannels", "RankStore"]

_HALF_MAX = 65504.0


class RankChannels(Protocol):
    """The channels of one rank to all ranks, one per thread."""

    @property
    def rank(self) -> int:
        """The rank of this process."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0."""
        ...

    @property
    def steps(self) -> Channel:
        """The channel of the thread that trains."""
        ...

    @property
    def rows(self) -> Channel:
        """The channel of the thread that pulls rows."""
        ...

    @property
    def saves(self) -> Channel:
        """The channel of the thread that writes checkpoints."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class OwnGradients:
    """The gradients of all ranks for the rows of this rank, in one step."""

    tables: Mapping[str, SummedRows]
    time_s: int
    """Newest event time of all ranks' batches."""


class RankStore:
    """An ``EmbeddingStore`` over the ranks: rank r has the rows whose ``uint64(id) mod ranks`` is r.

    Args:
        connection: The channels to all ranks.
        specs: The tables, the same at all ranks.
        force_expiry: As ``MultiTable``.
        half: Whether rows and gradients travel as float16: half the bytes, three digits. Sums are in float32.
    """

    def __init__(
        self,
        connection: RankChannels,
        specs: Iterable[TableSpec],
        *,
        force_expiry: bool = False,
        half: bool = False,
    ) -> None:
        self.connection = connection
        self._half = half
        self.tables = MultiTable(specs, force_expiry=force_expiry)
        """The rows of this rank."""
        self._specs = dict(self.tables.specs)
        self._dims = [spec.dim for spec in self._specs.values()]

    # --- EmbeddingStore ---

    @property
    def specs(self) -> Mapping[str, TableSpec]:
        """The tables, sorted by name."""
        return self._specs

    @property
    def shards(self) -> int:
        """The number of ranks."""
        return self.connection.size

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        """Return one row per id, from the ranks that own them; see ``EmbeddingStore.pull``."""
        channel = self.connection.rows
        every = self._all_ids(ids)
        if not every:
            return {}
        request = RowRequest.of(every, channel.size)
        asked, wanted = self._send_ids(channel, request)
        found = self.tables.fused_lookup(wanted, asked.ravel(), channel.size).embeddings
        floats = self._exchange(channel, found, asked, request.sizes)
        rows = dict(zip(self._specs, request.rows(floats, self._dims), strict=True))
        return {name: rows[name] for name in sorted(ids)}

    def push(
        self,
        ids: Mapping[str, Ids],
        grads: Mapping[str, Rows],
        *,
        counts: Mapping[str, ArrayLike] | None = None,
        learning_rates: Mapping[str, ArrayLike] | None = None,
        time_s: int = 0,
        step: int = 0,
    ) -> None:
        """Take one optimizer step per id, with the summed gradients of all ranks; see ``EmbeddingStore.push``.

        All ranks give the same ``learning_rates`` and ``step``.
        """
        check_step(step)
        self.apply(self.collect(ids, grads, counts=counts, time_s=time_s), learning_rates=learning_rates, step=step)

    def snapshot(self, path: str | PathLike[str]) -> Manifest:
        """Write everything to ``path``, which all ranks must see; see ``EmbeddingStore.snapshot``."""
        cut = self.cut()
        try:
            if self.connection.is_chief:
                with leading(self.connection.saves, lambda: Path(path)):
                    return cut.write(path)
            cut.follow()
            return cut.written(path)
        finally:
            cut.drop()  # an error before the rows are written keeps the frame of this call, and must not keep the cut

    def restore(self, path: str | PathLike[str]) -> RestoreReport:
        """Replace everything by a snapshot, of any number of ranks or servers or of local tables.

        Raises:
            ArtifactError: Another rank failed to restore; its log has the error.
        """
        try:
            report = self.tables.restore(path, shard=(self.connection.rank, self.connection.size))
        except (MonolithError, OSError):
            self.connection.steps.all_gather_ints([1])
            raise
        has_failed = self.connection.steps.all_gather_ints([0])[:, 0]
        if has_failed.any():
            ranks = ", ".join(str(rank) for rank in np.flatnonzero(has_failed))
            raise ArtifactError(f"'{path}' was not restored: rank {ranks} could not read it; see the log of that rank")
        return report

    # --- a push in two halves, so that clipping sees the gradients of all ranks ---

    def collect(
        self,
        ids: Mapping[str, Ids],
        grads: Mapping[str, Rows],
        *,
        counts: Mapping[str, ArrayLike] | None = None,
        time_s: int = 0,
    ) -> OwnGradients:
        """Send every rank the gradients of its rows; return those of this rank, summed in rank order."""
        if ids.keys() != grads.keys():
            differing = ", ".join(sorted(ids.keys() ^ grads.keys()))
            raise ConfigError(f"ids and grads must name the same tables; these are in one only: {differing}")
        check_known("counts", counts, self._specs)
        channel = self.connection.steps
        every = self._all_ids(ids)
        if not every:
            return OwnGradients({}, check_time(time_s))
        request = RowRequest.of(every, channel.size)
        sightings = [
            np.ones(len(each), np.int64)
            if counts is None or name not in counts
            else as_counts(name, counts[name], len(each)).astype(np.int64)
            for name, each in zip(self._specs, every, strict=True)
        ]
        rows = [
            as_rows(name, "gradients", grads[name], len(each), spec.dim)
            if name in grads
            else np.empty((0, spec.dim), np.float32)
            for (name, spec), each in zip(self._specs.items(), every, strict=True)
        ]
        ranks, tables = request.sizes.shape
        header = np.column_stack([request.sizes, np.full(ranks, check_time(time_s), np.int64)])
        headers = channel.all_to_all(header.ravel(), [tables + 1] * ranks, [tables + 1] * ranks).reshape(ranks, -1)
        sizes = np.ascontiguousarray(headers[:, :tables])
        keys = channel.all_to_all(
            request.arranged([np.column_stack(pair) for pair in zip(every, sightings, strict=True)]),
            (2 * request.sizes.sum(1)).tolist(),
            (2 * sizes.sum(1)).tolist(),
        )
        floats = self._exchange(channel, request.arranged(rows), request.sizes, sizes)
        summed = self._sum(sizes, keys, floats)
        return OwnGradients(
            {name: table for name, table in summed.items() if name in ids or len(table.ids)},
            int(headers[:, tables].max()),
        )

    def apply(
        self, gradients: OwnGradients, *, learning_rates: Mapping[str, ArrayLike] | None = None, step: int = 0
    ) -> None:
        """Take one optimizer step per row of this rank; not collective."""
        tables = gradients.tables
        check_known("learning_rates", learning_rates, self._specs)
        self.tables.push(
            {name: table.ids for name, table in tables.items()},
            {name: table.grads for name, table in tables.items()},
            counts={name: table.counts for name, table in tables.items()},
            learning_rates={name: rates for name, rates in (learning_rates or {}).items() if name in tables},
            time_s=gradients.time_s,
            step=step,
        )

    # --- more than EmbeddingStore ---

    def cut(self) -> RankCut:
        """Cut the tables of this rank; all ranks do so at the same step boundary."""
        return RankCut(self.tables.cut(), self.connection.saves, self._specs)

    def evict(self, now_s: int | None = None) -> int:
        """Remove the expired rows of this rank; return how many."""
        return self.tables.evict(now_s)

    # --- exchanges ---

    def _all_ids(self, ids: Mapping[str, Ids]) -> list[Ids]:
        if unknown := sorted(ids.keys() - self._specs.keys()):
            raise ConfigError(f"table is {unknown[0]!r}, expected one of {', '.join(self._specs)}")
        return [as_ids(name, ids[name]) if name in ids else np.empty(0, np.int64) for name in self._specs]

    def _exchange(self, channel: Channel, values: Rows, sent: NDArray[np.int64], received: NDArray[np.int64]) -> Rows:
        """Send each rank its part of the values; return the parts that came, in rank order.

        Args:
            channel: The channel.
            values: The parts, one after the other.
            sent: Rows by receiver and table.
            received: Rows by sender and table.
        """
        lengths = (sent @ self._dims).tolist(), (received @ self._dims).tolist()
        if not self._half:
            return channel.all_to_all(values, *lengths)
        short = np.clip(values, -_HALF_MAX, _HALF_MAX).astype(np.float16)
        return channel.all_to_all(short, *lengths).astype(np.float32)

    def _send_ids(self, channel: Channel, request: RowRequest) -> tuple[NDArray[np.int64], Ids]:
        """Send each rank the ids that it owns; return the counts by sender and table, and the ids received."""
        ranks, tables = request.sizes.shape
        sizes = channel.all_to_all(request.sizes.ravel(), [tables] * ranks, [tables] * ranks).reshape(ranks, tables)
        ids = channel.all_to_all(request.ids(), request.sizes.sum(1).tolist(), sizes.sum(1).tolist())
        return sizes, ids

    def _sum(self, sizes: NDArray[np.int64], keys: NDArray[np.int64], floats: Rows) -> dict[str, SummedRows]:
        ids_and_counts = blocks_of(keys, sizes, [2] * len(self._dims))
        grads = blocks_of(floats, sizes, self._dims)
        return {
            name: sum_blocks(
                [blocks[table][:, 0] for blocks in ids_and_counts],
                [blocks[table] for blocks in grads],
                [blocks[table][:, 1] for blocks in ids_and_counts],
            )
            for table, name in enumerate(self._specs)
        }

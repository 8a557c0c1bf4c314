"""``RemoteRows``: the rows of an entry, asked of the ``ps_<i>`` sub-models that other servers have.

One request per shard and batch, all shards at the same time. Rows come from one version only. Zeros are not made up,
unless the settings allow it; then the answer says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from monolith.artifacts.export_manifest import ExportManifest, ServedTable
from monolith.core.errors import ShardUnavailable
from monolith.embedding.shard_map import Division, divide
from monolith.embedding.store import Ids, Rows
from monolith.serving.cut_history import CutKey, OtherCut
from monolith.serving.remote_calls import Ask, RemoteCalls
from monolith.serving.remote_messages import predict_request, read_outputs
from monolith.serving.servable_parts import PartialRows

__all__ = ["RemoteRows"]

_SIGNATURE, _ANSWER = "raw_lookup", "flat_emb"
_PAUSE_S = 0.005  # until parts are asked again that had no cut in common


class RemoteRows:
    """A ``RowSource`` of one version of an entry.

    Args:
        manifest: The entry's.
        calls: Asks the servers.
    """

    def __init__(self, manifest: ExportManifest, calls: RemoteCalls) -> None:
        self._calls = calls
        self._model = manifest.name
        self._version = manifest.version if manifest.tables_version is None else manifest.tables_version
        self._tables: Sequence[ServedTable] = manifest.tables
        self._shards = 1 if manifest.shard is None else manifest.shard[1]

    def check(self) -> None:
        """See that every shard answers for the version.

        Raises:
            ShardUnavailable: One does not.
            RpcTimeout: One takes too long.
        """
        asks = [self._ask(shard, [np.empty(0, np.int64)] * len(self._tables)) for shard in range(self._shards)]
        self._calls.ask_all(asks)
        for ask in asks:
            if ask.error is not None:
                raise ask.error

    def tries(self) -> Iterator[None]:
        """Yield again and again, with pauses, for as long as a batch may wait for its rows."""
        return self._calls.tries(_PAUSE_S)

    @property
    def allows_degraded(self) -> bool:
        """Whether a marked answer is better than none."""
        return self._calls.settings.allow_degraded

    def pull(self, ids: Mapping[str, Ids], cut: CutKey | None = None) -> Mapping[str, Rows]:
        """Return one row per id of every table named, as of a cut; None: the newest of each shard.

        Raises:
            OtherCut: Shards have rows of other cuts only.
            ShardUnavailable: No replica of a shard gave its rows; the text names shard, tables and addresses.
            RpcTimeout: The time was not enough.
        """
        divisions = {name: divide(np.ascontiguousarray(keys, np.int64), self._shards) for name, keys in ids.items()}
        asks = {shard: ask for shard in range(self._shards) if (ask := self._ask_of(shard, divisions, cut)) is not None}
        self._calls.ask_all(list(asks.values()))
        dims = {table.name: table.dim for table in self._tables}
        found: dict[str, Rows] = {name: np.zeros((len(keys), dims[name]), np.float32) for name, keys in ids.items()}
        missing: list[str] = []
        refusals: list[OtherCut] = []
        for shard, ask in asks.items():
            if ask.answer is None:
                assert ask.error is not None
                if not self.allows_degraded:
                    raise ask.error
                missing.append(ask.part)
                continue
            try:
                self._scatter(ask.answer, ask.part, shard, divisions, found, cut)
            except OtherCut as other:
                refusals.append(other)
        if refusals:
            raise _joined(refusals)
        return PartialRows(found, missing) if missing else found

    # --- inside ---

    def _ask_of(self, shard: int, divisions: Mapping[str, Division], cut: CutKey | None) -> Ask | None:
        none = np.empty(0, np.int64)
        parts = [divisions[table.name].parts[shard] if table.name in divisions else none for table in self._tables]
        return self._ask(shard, parts, cut) if any(map(len, parts)) else None

    def _ask(self, shard: int, parts: Sequence[Ids], cut: CutKey | None = None) -> Ask:
        part = f"ps_{shard}"
        place = self._calls.place_of(self._model, part)
        tables = ", ".join(repr(table.name) for table, ids in zip(self._tables, parts, strict=True) if len(ids))
        inputs = {
            "id": np.concatenate(parts) if parts else np.empty(0, np.int64),
            "id_split": np.cumsum([0, *map(len, parts)], dtype=np.int64),
        }
        what = f"rows of {tables or 'its tables'} of model {self._model!r} version {self._version}"
        payload = predict_request(place.name, self._version, _SIGNATURE, inputs, [_ANSWER], cut)
        return Ask(part, what, place, "Predict", payload)

    def _scatter(
        self,
        payload: bytes,
        part: str,
        shard: int,
        divisions: Mapping[str, Division],
        found: Mapping[str, Rows],
        cut: CutKey | None,
    ) -> None:
        flat = read_outputs(payload, [_ANSWER], part, cut)[_ANSWER].reshape(-1)
        wanted = [table for table in self._tables if table.name in divisions]
        needed = sum(len(divisions[table.name].parts[shard]) * table.dim for table in wanted)
        if len(flat) != needed:
            raise ShardUnavailable(
                f"{part} gave {len(flat)} numbers for rows that have {needed}; its tables are not those of model "
                f"{self._model!r} version {self._version}"
            )
        at = 0
        for table in wanted:
            places = divisions[table.name].places[shard]
            end = at + len(places) * table.dim
            found[table.name][places] = flat[at:end].reshape(-1, table.dim)
            at = end


def _joined(refusals: Sequence[OtherCut]) -> OtherCut:
    held = [key for key in refusals[0].held if all(key in other.held for other in refusals[1:])]
    parts = [part for other in refusals for part in other.parts]
    return OtherCut("; ".join(map(str, refusals)), parts, held)

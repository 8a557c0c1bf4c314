"""``PsRowClient``: fetches the rows of an entry from the servers of its ``ps_<i>`` sub-models.

A batch sends one request per shard, in parallel. All rows come from one version. Missing rows fail the request, unless
the settings allow a degraded result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from typing_extensions import override

from monolith.artifacts.export_manifest import ExportManifest, ServedTable
from monolith.core.errors import ShardUnavailable
from monolith.embedding.shard_map import Division, divide
from monolith.embedding.store import Ids, Rows
from monolith.serving.remote.calls import RemoteCall, RemoteCalls
from monolith.serving.remote.messages import predict_request, read_outputs
from monolith.serving.servable.cut_history import CutKey, OtherCut
from monolith.serving.servable.parts import EntryRows, PartialRows

__all__ = ["PsRowClient"]

_SIGNATURE, _ANSWER = "raw_lookup", "flat_emb"
_PAUSE_S = 0.005  # pause before the next attempt to find a common cut


class PsRowClient(EntryRows):
    """``RowSource`` of one version of an entry.

    Args:
        manifest: Manifest of the entry.
        calls: Remote calls.
    """

    def __init__(self, manifest: ExportManifest, calls: RemoteCalls) -> None:
        self._calls = calls
        self._model = manifest.name
        self._version = manifest.version if manifest.tables_version is None else manifest.tables_version
        self._tables: Sequence[ServedTable] = manifest.tables
        self._shards = 1 if manifest.shard is None else manifest.shard[1]

    def check(self) -> None:
        """Check that every shard has the version.

        Raises:
            ShardUnavailable: A shard is missing.
            RpcTimeout: A shard does not answer in time.
        """
        calls = [self._call(shard, [np.empty(0, np.int64)] * len(self._tables)) for shard in range(self._shards)]
        self._calls.run_all(calls)
        for call in calls:
            if call.error is not None:
                raise call.error

    @override
    def tries(self) -> Iterator[None]:
        return self._calls.tries(_PAUSE_S)

    @property
    @override
    def allows_degraded(self) -> bool:
        return self._calls.settings.allow_degraded

    @override
    def pull(self, ids: Mapping[str, Ids], cut: CutKey | None = None) -> Mapping[str, Rows]:
        """Return one row per id and table, as of a cut; None takes the newest rows of each shard.

        Raises:
            OtherCut: Shards hold other cuts only.
            ShardUnavailable: No replica of a shard answered; the text has shard, tables and addresses.
            RpcTimeout: The calls timed out.
        """
        divisions = {name: divide(np.ascontiguousarray(keys, np.int64), self._shards) for name, keys in ids.items()}
        calls = {
            shard: call for shard in range(self._shards) if (call := self._call_of(shard, divisions, cut)) is not None
        }
        self._calls.run_all(list(calls.values()))
        dims = {table.name: table.dim for table in self._tables}
        found: dict[str, Rows] = {name: np.zeros((len(keys), dims[name]), np.float32) for name, keys in ids.items()}
        missing: list[str] = []
        refusals: list[OtherCut] = []
        for shard, call in calls.items():
            if call.answer is None:
                assert call.error is not None
                if not self.allows_degraded:
                    raise call.error
                missing.append(call.part)
                continue
            try:
                self._scatter(call.answer, call.part, shard, divisions, found, cut)
            except OtherCut as other:
                refusals.append(other)
        if refusals:
            raise _merge(refusals)
        return PartialRows(found, missing) if missing else found

    # --- inside ---

    def _call_of(self, shard: int, divisions: Mapping[str, Division], cut: CutKey | None) -> RemoteCall | None:
        none = np.empty(0, np.int64)
        parts = [divisions[table.name].parts[shard] if table.name in divisions else none for table in self._tables]
        return self._call(shard, parts, cut) if any(map(len, parts)) else None

    def _call(self, shard: int, parts: Sequence[Ids], cut: CutKey | None = None) -> RemoteCall:
        part = f"ps_{shard}"
        place = self._calls.place_of(self._model, part)
        tables = ", ".join(repr(table.name) for table, ids in zip(self._tables, parts, strict=True) if len(ids))
        inputs = {
            "id": np.concatenate(parts) if parts else np.empty(0, np.int64),
            "id_split": np.cumsum([0, *map(len, parts)], dtype=np.int64),
        }
        what = f"rows of {tables or 'its tables'} of model {self._model!r} version {self._version}"
        payload = predict_request(place.name, self._version, _SIGNATURE, inputs, [_ANSWER], cut)
        return RemoteCall(part, what, place, "Predict", payload)

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
                f"{part} returned {len(flat)} numbers, expected {needed}; check that it serves model {self._model!r} "
                f"version {self._version}"
            )
        at = 0
        for table in wanted:
            places = divisions[table.name].places[shard]
            end = at + len(places) * table.dim
            found[table.name][places] = flat[at:end].reshape(-1, table.dim)
            at = end


def _merge(refusals: Sequence[OtherCut]) -> OtherCut:
    held = [key for key in refusals[0].held if all(key in other.held for other in refusals[1:])]
    parts = [part for other in refusals for part in other.parts]
    return OtherCut("; ".join(map(str, refusals)), parts, held)

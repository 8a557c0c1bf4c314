"""Snapshots that all servers write together, each its shard, into one shared folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from monolith.core.errors import ConfigError, MonolithError
from monolith.embedding.snapshot import SharedSnapshot
from monolith.embedding.specs import TableSpec
from monolith.embedding.store import Manifest
from monolith.ps import messages
from monolith.ps.fan_out import call_all
from monolith.ps.job_records import JOB_STATE, encode_state
from monolith.ps.link import ServerLink

__all__ = ["RemoteCut"]


class RemoteCut:
    """A joint cut of all servers, to be written once or dropped.

    Args:
        links: All servers.
        cuts: The number of each server's pending cut.
        specs: The tables of the model, with the learning rates that servers lack.
        timeout_s: Timeout of the write.
    """

    def __init__(
        self, links: Sequence[ServerLink], cuts: Mapping[int, int], specs: Mapping[str, TableSpec], timeout_s: float
    ) -> None:
        self._links = links
        self._cuts = cuts
        self._specs = specs
        self._timeout_s = timeout_s
        self._is_spent = False

    def write(self, path: str | PathLike[str]) -> Manifest:
        """Write the rows of every server to the folder ``path``, and publish all parts or none."""
        if self._is_spent:
            raise ConfigError("this cut was already written or dropped; take another")
        try:
            with SharedSnapshot(path) as shared:
                requests = {
                    index: messages.SaveRequest(cut=cut, path=str(shared.folder), generation=shared.generation)
                    for index, cut in self._cuts.items()
                }
                responses = call_all(self._links, "Save", requests, self._timeout_s)
                parts = [[json.loads(text) for text in responses[index].tables] for index in sorted(responses)]
                specs = {name: encoded for name, spec in self._specs.items() if (encoded := _encode(spec))}
                job_state = responses[0].job_state
                extra = {JOB_STATE: encode_state(job_state)} if responses[0].HasField("job_state") else {}
                saved = shared.publish(parts, specs, extra)
        finally:
            self.drop()
        return Manifest(
            path=Path(path),
            rows={table.name: table.rows for table in saved},
            max_time_s={table.name: table.max_time_s for table in saved},
        )

    def drop(self) -> None:
        """Drop the cut; an unreachable server drops its part when the lease ends."""
        if self._is_spent:
            return
        self._is_spent = True
        for index, cut in self._cuts.items():
            call = self._links[index].begin("DropCut", messages.DropCutRequest(cut=cut), 10.0)
            with suppress(MonolithError):  # unreachable or busy: its lease ends
                self._links[index].finish("DropCut", call)


def _encode(spec: TableSpec) -> dict[str, Any] | None:
    try:
        encoded: dict[str, Any] = json.loads(spec.to_json())
    except ConfigError:
        return None  # a learning rate that is a function has no JSON form; the servers' spec lacks it
    return encoded

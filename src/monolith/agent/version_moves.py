"""Choose the versions of a sub-graph that a container holds while a fleet moves to a new one.

Main type: ``VersionMoves``. The rule needs no coordinator and no memory of its past: a container holds the newest
version and each version that a living entry of the model still serves. So each replica loads the new version beside
the old one, the entry switches after every shard has it, and each replica then releases the old one.

Invariants: an entry that does not answer keeps the versions as they are. A new version that does not fit into the free
memory is not loaded; the versions stay as they are.

Threading: one thread calls ``choose``; counters may be read from others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from monolith.agent.messages import ModelVersionStatus
from monolith.agent.model_configs import versions_in
from monolith.agent.records import ModelState, SavedModel
from monolith.artifacts.export_manifest import read_export_manifest
from monolith.core.errors import ClusterError, MonolithError

__all__ = ["KEPT_FREE", "VersionMoves", "version_bytes"]

logger = logging.getLogger(__name__)

KEPT_FREE = 0.1
"""Share of the free memory that a new version leaves free."""


def version_bytes(folder: str) -> int:
    """Return the size of a version by its manifest; 0 for a foreign export."""
    try:
        return read_export_manifest(Path(folder)).bytes
    except (MonolithError, OSError):
        return 0


class VersionMoves:
    """The versions that one container holds.

    Args:
        entry_addresses: Returns the gRPC addresses of the entries of a model.
        ask: Returns the statuses of a model at an address; raises ``ClusterError`` if it does not answer.
        free_bytes: Returns the free memory of the container.
        list_versions: Returns the versions in a folder, oldest first.
        size_of: Returns the size of a version's folder.
    """

    def __init__(
        self,
        *,
        entry_addresses: Callable[[str], Iterable[str]],
        ask: Callable[[str, str], Iterable[ModelVersionStatus]],
        free_bytes: Callable[[], int],
        list_versions: Callable[[str], list[int]] = versions_in,
        size_of: Callable[[str], int] = version_bytes,
    ) -> None:
        self._entry_addresses = entry_addresses
        self._ask = ask
        self._free_bytes = free_bytes
        self._list_versions = list_versions
        self._size_of = size_of
        self._held: dict[SavedModel, list[int]] = {}
        self._refused: dict[SavedModel, int] = {}
        self._settled: dict[SavedModel, int] = {}

    @property
    def refused(self) -> dict[SavedModel, int]:
        """Sub-graphs whose newest version does not fit into the memory, with that version."""
        return dict(self._refused)

    def choose(self, saved_model: SavedModel, base_path: str) -> list[int]:
        """Return the versions to hold, oldest first; empty if the folder has none."""
        versions = self._list_versions(base_path)
        held = [version for version in self._held.get(saved_model, []) if version in versions]
        if not versions:
            # A folder that cannot be listed for a moment unloads nothing.
            return self._held.get(saved_model, [])
        newest = versions[-1]
        if held == [newest] == [self._settled.get(saved_model)]:
            return held
        in_use = self._versions_in_use(saved_model.model_name)
        if in_use is None:
            wanted = {newest, *held}
        else:
            wanted = {newest, *(version for version in in_use if version in versions)}
        added = sorted(wanted - set(held))
        if held and added and not self._fits(saved_model, base_path, added):
            return held
        self._refused.pop(saved_model, None)
        chosen = sorted(wanted)
        if chosen != held:
            logger.info("versions chosen saved_model=%s versions=%s before=%s", saved_model, chosen, held)
        self._held[saved_model] = chosen
        if in_use == {newest}:
            self._settled[saved_model] = newest
        return chosen

    def forget(self, kept: Iterable[SavedModel]) -> None:
        """Drop all sub-graphs except ``kept``."""
        wanted = set(kept)
        for table in (self._held, self._refused, self._settled):
            for gone in [each for each in table if each not in wanted]:
                del table[gone]

    def _versions_in_use(self, model_name: str) -> set[int] | None:
        """Return the versions that entries of the model serve; None if an entry does not answer."""
        versions: set[int] = set()
        for address in self._entry_addresses(model_name):
            try:
                statuses = self._ask(address, f"{model_name}:entry")
            except ClusterError as error:
                logger.debug("entry does not answer, keeping versions address=%s error=%s", address, error)
                return None
            versions.update(each.version for each in statuses if _is_served(each))
        return versions

    def _fits(self, saved_model: SavedModel, base_path: str, added: list[int]) -> bool:
        needed = sum(self._size_of(f"{base_path}/{version}") for version in added)
        free = int(self._free_bytes() * (1 - KEPT_FREE))
        if needed <= free:
            return True
        if self._refused.get(saved_model) != added[-1]:
            self._refused[saved_model] = added[-1]
            logger.warning(
                "new version does not fit beside the old one saved_model=%s version=%d bytes=%d budget=%d",
                saved_model,
                added[-1],
                needed,
                free,
            )
        return False


def _is_served(status: ModelVersionStatus) -> bool:
    return int(status.state) in (ModelState.AVAILABLE, ModelState.UNLOADING)

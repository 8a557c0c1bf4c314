"""A container holds the newest version and each version that a living entry serves."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from monolith.agent.messages import ModelVersionStatus, make_version_status
from monolith.agent.records import ModelState, SavedModel
from monolith.agent.version_moves import VersionMoves, version_bytes
from monolith.core.errors import ClusterError

PS = SavedModel("m", "ps_0")


class World:
    """Versions on disk, entries with the versions that they serve, and free memory."""

    def __init__(self) -> None:
        self.versions = [1]
        self.entries: dict[str, list[tuple[int, ModelState]] | None] = {}
        self.free = 1000
        self.asked = 0
        self.moves = VersionMoves(
            entry_addresses=lambda model: sorted(self.entries),
            ask=self.ask,
            free_bytes=lambda: self.free,
            list_versions=lambda folder: list(self.versions),
            size_of=lambda folder: 100,
        )

    def ask(self, address: str, name: str) -> Iterable[ModelVersionStatus]:
        assert name == "m:entry"
        self.asked += 1
        served = self.entries[address]
        if served is None:
            raise ClusterError("away")
        return [make_version_status(version, state) for version, state in served]

    def choose(self) -> list[int]:
        return self.moves.choose(PS, "/models/ps_0")


def test_a_new_version_is_held_beside_the_old_one_until_every_entry_has_moved() -> None:
    world = World()
    assert world.choose() == [1]
    world.entries = {"a": [(1, ModelState.AVAILABLE)], "b": [(1, ModelState.AVAILABLE)]}
    assert world.choose() == [1]
    world.versions = [1, 2]
    assert world.choose() == [1, 2]
    world.entries["a"] = [(2, ModelState.AVAILABLE), (1, ModelState.UNLOADING)]
    assert world.choose() == [1, 2]
    world.entries["a"] = [(2, ModelState.AVAILABLE), (1, ModelState.END)]
    assert world.choose() == [1, 2]
    world.entries["b"] = [(2, ModelState.AVAILABLE)]
    assert world.choose() == [2]
    world.asked = 0
    assert world.choose() == [2]
    assert world.asked == 0, "a finished move asks no entry"


def test_a_replica_that_starts_in_a_move_holds_both_versions() -> None:
    world = World()
    world.versions = [1, 2]
    world.entries = {"a": [(1, ModelState.AVAILABLE), (2, ModelState.LOADING)]}
    assert world.choose() == [1, 2]


def test_an_entry_that_does_not_answer_keeps_the_versions() -> None:
    world = World()
    world.entries = {"a": [(1, ModelState.AVAILABLE)]}
    world.choose()
    world.versions = [1, 2]
    assert world.choose() == [1, 2]
    world.entries = {"a": None}
    assert world.choose() == [1, 2]


def test_a_version_that_does_not_fit_is_refused_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.entries = {"a": [(1, ModelState.AVAILABLE)]}
    world.choose()
    world.versions, world.free = [1, 2], 111
    assert world.choose() == [1]
    assert world.choose() == [1]
    assert world.moves.refused == {PS: 2}
    assert sum("does not fit" in record.message for record in caplog.records) == 1
    world.free = 112
    assert world.choose() == [1, 2]
    assert world.moves.refused == {}


def test_an_empty_folder_unloads_nothing_and_a_deleted_version_is_left() -> None:
    world = World()
    world.versions = [1, 2]
    assert world.choose() == [2]
    world.versions = []
    assert world.choose() == [2]
    world.versions = [1]
    assert world.choose() == [1]
    world.moves.forget([])
    world.versions = []
    assert world.choose() == []
    assert version_bytes("/nonexistent") == 0

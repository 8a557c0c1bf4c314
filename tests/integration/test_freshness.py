"""A trainer and a model server as processes: what the one publishes, the other shows, cut by cut, through kills."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolith as mt
import publishing_child as child
from commands import Shell
from fork_server import fork_context
from monolith.core.free_ports import free_port
from monolith.data.records.reader import read_records
from monolith.export import export_model
from monolith.testing.eventually import eventually
from served_model import ServedModel

LIMIT = 1e-6


class World:
    """The processes of a test, and what they have said so far."""

    def __init__(self, folder: Path, port: int | None) -> None:
        self.folder = folder
        self.port = port
        self.shell = Shell(folder)
        self.server: ServedModel | None = None
        self.trainer: BaseProcess | None = None
        self._noted: dict[str, Any] = {}
        child.write_probe(folder / "probe.pb")
        self.probe = list(read_records(folder / "probe.pb"))

    def start_server(self) -> None:
        source = self.folder / "published" if self.port is None else f"127.0.0.1:{self.port}"
        following = ("--sync-from", source, "--sync-cache", self.folder / "cache")
        self.server = ServedModel(self.shell, self.folder / "exports", *following)

    def start_trainer(self) -> None:
        self.trainer = fork_context().Process(target=child.train, args=(self.folder, self.port))
        self.trainer.start()

    def kill_server(self) -> None:
        assert self.server is not None
        self.server.close()

    def kill_trainer(self) -> None:
        """Kill it, and wait until the server shows all that it has published, and that had come."""
        assert self.trainer is not None
        failures = self.metric("monolith_sync_failures_total")
        _kill(self.trainer)
        source = self.folder / "published"
        if self.port is not None:
            # Cuts that are on their way still arrive.
            eventually(lambda: self.metric("monolith_sync_failures_total") != failures)
            source = self.folder / "cache" / f"127.0.0.1_{self.port}"
        eventually(lambda: self.metric("monolith_sync_cut") >= _newest_cut(source))

    def scores(self) -> np.ndarray[Any, Any]:
        assert self.server is not None
        return self.server.scores(self.probe)

    def noted(self) -> dict[str, Any]:
        """What the trainer says at its cuts."""
        for path in (self.folder / "scores").glob("[0-9]*.npy"):
            if path.stem not in self._noted:
                self._noted[path.stem] = np.load(path)
        return self._noted

    def cut_of(self, scores: np.ndarray[Any, Any]) -> str:
        """The cut that scores are of; fails when they are of none, or of more than one."""
        noted = self.noted()
        assert noted, "the trainer has said nothing yet"
        distances = {number: float(np.abs(scores - one).max()) for number, one in noted.items()}
        found = [number for number, distance in distances.items() if distance <= LIMIT]
        assert found, f"no cut has these scores; the nearest is {min(distances.values()):.3g} off"
        assert np.ptp([noted[number] for number in found], axis=0).max() <= 2 * LIMIT, f"cuts {found} look the same"
        return found[0]

    def watch(self, cuts: int) -> str:
        """Score again and again until so many cuts were seen; return the last one."""
        seen: set[str] = set()
        while len(seen) < cuts:
            assert self.trainer is not None
            assert self.trainer.is_alive()
            now = self.cut_of(self.scores())
            seen.add(now)
        return now

    def metric(self, name: str) -> float:
        assert self.server is not None
        return self.server.metric(f'{name}{{model="clicks"')


def _newest_cut(folder: Path) -> int:
    number: int = json.loads((folder / "cut.json").read_text())["body"]["number"]
    return number


def _kill(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.fixture(params=["folder", "stream"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made = mt.Estimator(child.Clicker)
    export_model(made.model, made.store, tmp_path / "exports", name="clicks", step=0, version=1)
    world = World(tmp_path, free_port() if request.param == "stream" else None)
    yield world
    if world.server is not None:
        world.server.close()
    if world.trainer is not None and world.trainer.is_alive():
        _kill(world.trainer)


def test_every_prediction_is_of_one_cut_whoever_is_killed(world: World) -> None:
    world.start_server()
    exported = world.scores()
    world.start_trainer()
    while np.array_equal(exported, world.scores()):
        assert world.trainer is not None
        assert world.trainer.is_alive()
    world.watch(8)

    world.kill_trainer()
    last = world.scores()
    world.cut_of(last)
    world.kill_server()
    world.start_server()
    np.testing.assert_array_equal(world.scores(), last)

    world.start_trainer()
    world.watch(5)
    world.kill_server()
    world.start_server()
    world.watch(3)
    assert world.trainer is not None
    assert world.trainer.pid is not None
    os.kill(world.trainer.pid, signal.SIGTERM)
    world.trainer.join(120)
    assert world.trainer.exitcode == 0
    eventually(lambda: world.metric("monolith_sync_cut") >= _newest_cut(world.folder / "published"))
    newest = max(world.noted(), key=int)
    np.testing.assert_allclose(world.scores(), world.noted()[newest], atol=LIMIT, rtol=0)
    assert world.metric("monolith_sync_lag_seconds") == 0
    assert world.metric("monolith_sync_cuts_behind") == 0

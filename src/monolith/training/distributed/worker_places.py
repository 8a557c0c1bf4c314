"""Where each worker but the chief stands in its data: one small file each, in the folder that the chief saves to.

A worker that was killed goes on from its file, and a checkpoint takes the files along, so that a job which goes back to
it reads again what the tables have forgotten. A file is as old as ``PlaceHook``'s interval: that much is read twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monolith.core.durable_files import replace_file
from monolith.core.errors import DataError
from monolith.training.hooks.base import Hook, Run, StepResult
from monolith.training.hooks.interval import Interval

__all__ = ["PlaceHook", "WorkerPlaces"]

EVERY_S = 1.0
"""How old a place may be."""


class WorkerPlaces:
    """The places of all workers of one job.

    Args:
        model_dir: The job's folder, which all of them see.
    """

    def __init__(self, model_dir: str | Path) -> None:
        self._folder = Path(model_dir) / "workers"

    def read(self, index: int) -> Any:
        """Return where a worker stands, for ``Dataset.restore``; None when it has not said.

        Raises:
            DataError: Its file is damaged.
        """
        path = self._path(index)
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DataError(f"{path} is damaged ({error}); remove it to read the worker's data anew") from error

    def write(self, index: int, place: Any) -> None:
        """Keep where a worker stands."""
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._path(index), json.dumps(place).encode())

    def all(self) -> dict[str, Any]:
        """Return all places, by the worker's index as text."""
        names = sorted(path.stem for path in self._folder.glob("*.json"))
        return {name: self.read(int(name)) for name in names}

    def replace_all(self, places: Mapping[str, Any]) -> None:
        """Keep these places and no others."""
        for path in self._folder.glob("*.json"):
            if path.stem not in places:
                path.unlink()
        for name, place in places.items():
            self.write(int(name), place)

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.json"


class PlaceHook(Hook):
    """Keeps the place of one worker.

    Args:
        places: Where.
        index: Whose.
        every_s: Seconds of the run's clock from one to the next.
    """

    def __init__(self, places: WorkerPlaces, index: int, every_s: float = EVERY_S) -> None:
        self._places = places
        self._index = index
        self._interval = Interval(every_s)

    def on_start(self, run: Run) -> None:
        """Begin anew."""
        self._interval.reset()

    def after_step(self, run: Run, result: StepResult) -> None:
        """Keep the place when it is time."""
        if self._interval.is_due(run.clock.monotonic_s()):
            self._keep(run)

    def before_end(self, run: Run) -> None:
        """Keep the last place."""
        self._keep(run)

    def _keep(self, run: Run) -> None:
        place = run.place()
        if place is not None:  # lists of batches have none
            self._places.write(self._index, place)

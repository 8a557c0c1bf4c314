"""Where each worker stands in its data: one small file each, in the folder that the chief saves to.

A worker that was killed goes on from its file, and a checkpoint takes the places along, so that a job which goes back
to it reads again what the tables have forgotten. A file is as old as ``PlaceHook``'s interval: that much is read twice.
Every place says of which start of the job it is: one of an earlier start counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from monolith.core.durable_files import replace_file
from monolith.core.errors import DataError
from monolith.training.hooks.base import Hook
from monolith.training.hooks.interval import Interval
from monolith.training.run import Run, StepResult

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

    def read(self, index: int, session: int) -> Any:
        """Return where a worker stands, for ``Dataset.restore``; None when it has not begun.

        Args:
            index: Which worker.
            session: Which start of the job.

        Raises:
            DataError: A file is damaged.
        """
        own = self._load(self._path(index))
        if own is not None and own["session"] == session:
            return own["place"]
        begun = self._load(self._begun)
        return begun["places"].get(str(index)) if begun is not None and begun["session"] == session else None

    def is_through(self, index: int, session: int) -> bool:
        """Return whether a worker has trained on all that it read."""
        own = self._load(self._path(index))
        return own is not None and own["session"] == session and own.get("is_through") is True

    def write(self, index: int, session: int, place: Any, *, is_through: bool = False) -> None:
        """Keep where a worker stands."""
        self._folder.mkdir(parents=True, exist_ok=True)
        body = {"session": session, "place": place, "is_through": is_through}
        replace_file(self._path(index), json.dumps(body).encode())

    def begin(self, session: int, places: Mapping[str, Any]) -> None:
        """Begin a start of the job: every worker stands where ``places`` says, by its index as text."""
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._begun, json.dumps({"session": session, "places": dict(places)}).encode())

    def all(self, session: int) -> dict[str, Any]:
        """Return the places of all workers, by their indexes as text."""
        begun = self._load(self._begun)
        names = {path.stem for path in self._folder.glob("*.json") if path.stem.isdecimal()}
        if begun is not None and begun["session"] == session:
            names |= set(begun["places"])
        found = {name: self.read(int(name), session) for name in sorted(names, key=int)}
        return {name: place for name, place in found.items() if place is not None}

    @property
    def _begun(self) -> Path:
        return self._folder / "begin.json"

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.json"

    def _load(self, path: Path) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
            if not {"session", "places" if path == self._begun else "place"} <= found.keys():
                raise ValueError("it lacks fields")
            return found
        except FileNotFoundError:
            return None
        except (ValueError, AttributeError) as error:
            raise DataError(f"{path} is damaged ({error}); remove it to read the worker's data anew") from error


class PlaceHook(Hook):
    """Keeps the place of one worker.

    Args:
        places: Where.
        index: Whose.
        session: Which start of the job this is.
        every_s: Seconds of the run's clock from one to the next.
    """

    def __init__(self, places: WorkerPlaces, index: int, session: Callable[[], int], every_s: float = EVERY_S) -> None:
        self._places = places
        self._index = index
        self._session = session
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
            self._places.write(self._index, self._session(), place, is_through=run.data_ended)

"""The positions of all workers in their data: one small file each, in the model folder of the chief.

A killed worker resumes from its file. A checkpoint contains all positions, so that a job that rolls back reads again
the data that the tables have lost. A file is at most as old as ``PositionHook``'s interval: that much data is read
twice. Every position names its session; positions of an earlier session are ignored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from monolith.artifacts.remote_folder import STAGING_VARIABLE, artifact_url
from monolith.core.clock import Clock, Deadline
from monolith.core.durable_files import make_folder, replace_file
from monolith.core.errors import ConfigError, DataError
from monolith.core.fid import ValueType
from monolith.training.hooks.base import Hook
from monolith.training.hooks.interval import Interval
from monolith.training.run import Run, StepResult

__all__ = ["PositionHook", "WorkerPositions"]

logger = logging.getLogger(__name__)

EVERY_S = 1.0
"""Seconds between two writes of a position."""
SHARED_S = 60.0
"""Seconds in which a worker must see the session of the chief in the folder."""
_POLL_S = 0.2
PATIENCE_S = 300.0
"""Seconds of failed writes after which a worker ends."""


class WorkerPositions:
    """The positions of all workers of one job.

    Args:
        model_dir: The job's folder, which all workers see.
    """

    def __init__(self, model_dir: str | Path) -> None:
        self._folder = Path(model_dir) / "workers"

    def read(self, index: int, session: int) -> Any:
        """Return the position of a worker, for ``Dataset.restore``; None when the worker has not begun.

        Args:
            index: The index of the worker.
            session: The session of the job.

        Raises:
            DataError: A file is corrupt.
        """
        saved = self._load(self._path(index))
        if saved is not None and saved["session"] == session:
            return saved["place"]
        begun = self._load(self._begun)
        return begun["places"].get(str(index)) if begun is not None and begun["session"] == session else None

    def is_through(self, index: int, session: int) -> bool:
        """Return whether a worker has trained on all of its data."""
        saved = self._load(self._path(index))
        return saved is not None and saved["session"] == session and saved.get("is_through") is True

    def unread(self, session: int) -> list[int]:
        """Return the workers that have a position and have not trained on all of their data."""
        return [index for name in self.all(session) if not self.is_through(index := int(name), session)]

    def write(self, index: int, session: int, position: Any, *, is_through: bool = False) -> None:
        """Replace the position of a worker."""
        make_folder(self._folder)
        body = {"session": session, "place": position, "is_through": is_through}
        replace_file(self._path(index), json.dumps(body).encode())

    def begin(self, session: int, positions: Mapping[str, Any], value_types: Mapping[str, ValueType]) -> None:
        """Begin a session with the positions of a checkpoint, by worker index as text, and its types of values."""
        make_folder(self._folder)
        body = {"session": session, "places": dict(positions), "value_types": dict(value_types)}
        replace_file(self._begun, json.dumps(body).encode())

    def check_shared(
        self, session: Callable[[], int], index: int, clock: Clock, *, timeout_s: float = SHARED_S
    ) -> None:
        """Check that a worker sees the folder of the chief, which begins each session there before the workers.

        Args:
            session: Returns the session of the chief.
            index: The index of the worker.
            clock: Measures the timeout.
            timeout_s: Timeout: a network file system may show a file late.

        Raises:
            ConfigError: The folder lacks the session of the chief.
        """
        deadline = Deadline(clock, timeout_s)
        while (begun := self._load(self._begun)) is None or begun["session"] != session():
            if deadline.is_past:
                raise ConfigError(
                    f"model_dir is {artifact_url(self._folder.parent)!r}, where worker {index} sees no session of the "
                    "chief, expected one folder for all machines; mount the folder on all machines, or for a URL set "
                    f"{STAGING_VARIABLE} to a folder that they share"
                )
            clock.sleep_s(_POLL_S)

    def value_types(self, session: int) -> dict[str, ValueType]:
        """Return the types of values that the session began with."""
        begun = self._load(self._begun)
        return begun.get("value_types", {}) if begun is not None and begun["session"] == session else {}

    def all(self, session: int) -> dict[str, Any]:
        """Return the positions of all workers, by worker index as text."""
        begun = self._load(self._begun)
        names = {path.stem for path in self._folder.glob("*.json") if path.stem.isdecimal()}
        if begun is not None and begun["session"] == session:
            names |= set(begun["places"])
        positions = {name: self.read(int(name), session) for name in sorted(names, key=int)}
        return {name: position for name, position in positions.items() if position is not None}

    @property
    def _begun(self) -> Path:
        return self._folder / "begin.json"

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.json"

    def _load(self, path: Path) -> dict[str, Any] | None:
        try:
            body: dict[str, Any] = json.loads(path.read_bytes())
            if not {"session", "places" if path == self._begun else "place"} <= body.keys():
                raise ValueError("fields are missing")
            return body
        except FileNotFoundError:
            return None
        except (ValueError, AttributeError) as error:
            raise DataError(
                f"{path} is corrupt ({error}); remove it to read the worker's data from the beginning"
            ) from error


class PositionHook(Hook):
    """Writes the position of one worker periodically.

    A disk that is full or fails does not end the worker immediately: the hook logs the failure and tries again with
    each interval, for at most ``patience_s``. The last write, at the end of training, must succeed.

    Args:
        positions: The positions of all workers.
        index: The index of this worker.
        session: Returns the session of the job.
        every_s: Seconds of the run's clock between two writes.
        patience_s: Seconds of failed writes after which the worker ends.
    """

    def __init__(
        self,
        positions: WorkerPositions,
        index: int,
        session: Callable[[], int],
        every_s: float = EVERY_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._positions = positions
        self._index = index
        self._session = session
        self._interval = Interval(every_s)
        self._patience_s = patience_s
        self._failing_since_s: float | None = None

    @override
    def on_start(self, run: Run) -> None:
        self._interval.reset()

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        now_s = run.clock.monotonic_s()
        if not self._interval.is_due(now_s):
            return
        try:
            self._write(run)
        except OSError as error:
            if self._failing_since_s is None:
                self._failing_since_s = now_s
                logger.warning("position not written, retrying worker=%d error=%s", self._index, error)
            if now_s - self._failing_since_s >= self._patience_s:
                raise
        else:
            if self._failing_since_s is not None:
                logger.info("position written again worker=%d", self._index)
            self._failing_since_s = None

    @override
    def before_end(self, run: Run) -> None:
        self._write(run)

    def _write(self, run: Run) -> None:
        position = run.place()
        if position is not None:  # data without positions
            self._positions.write(self._index, self._session(), position, is_through=run.data_ended)

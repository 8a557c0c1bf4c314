"""``LiveDemo``: the second half of the demonstration, a trainer and a server as processes, and events that move scores.

Measures the time from sending events to the trainer until the first changed answer of the server.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeAlias
from urllib.request import ProxyHandler, build_opener

import numpy as np
from numpy.typing import NDArray

from monolith.core import lifeline
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError, ServingError
from monolith.data import Framing
from monolith.demo.moves import Turn, as_features, turns
from monolith.demo.process import DemoProcess
from monolith.demo.world.clicks import Clicks
from monolith.demo.world.files import example_batch
from monolith.serving import Client

__all__ = ["MODEL", "LiveDemo", "ScoreMove", "Watch", "curl"]

Watch: TypeAlias = Callable[[Turn, float], None]
"""Receives the turned item and its current score."""

MODEL = "clicks"
"""Name of the served model."""

_MOST_ROWS = 512  # events of a move, which are one step: the first changed answer reflects all of them
_BYSTANDERS = 64
_PUBLISH_S = 1.0
_ASK_S = 0.02
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreMove:
    """Score of an item before and after its taste turned."""

    item_id: int
    is_up: bool
    """Whether it is liked now."""
    before: float
    """Its score."""
    after: float
    """Its score in the first changed answer."""
    others: float
    """Mean change of the scores of other items."""
    seconds: float
    """Seconds from the events to that answer."""


def curl(address: str, shown: Clicks) -> str:
    """Return a command that requests the score of the first impression from a server."""
    body = json.dumps({"instances": [as_features(shown.rows(0, 1))]})
    return f"curl -s http://{address}/v1/models/{MODEL}:predict -d '{body}'"


class LiveDemo:
    """A server of an exported model, and a trainer that resumes and publishes; both end with the block.

    The trainer gets events only while an item turns, so these events cause every change of a score.

    Args:
        folder: Folder of the logs.
        published: Folder in which the trainer publishes; replaced.
        model_dir: The run, with a checkpoint.
        exported: Folder of the exported versions of that checkpoint.
        shown: Impressions to draw events and requests from.
        clock: Clock of measurements and waits.
        check_end: Called between two requests; raises to end the demonstration.
    """

    def __init__(
        self,
        folder: Path,
        *,
        published: Path,
        model_dir: Path,
        exported: Path,
        shown: Clicks,
        clock: Clock | None = None,
        check_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._published = published
        self._model_dir = model_dir
        self._exported = exported
        self._shown = shown
        self._rows = min(_MOST_ROWS, len(shown))
        self._clock = clock or SystemClock()
        self._check_end = check_end
        self._rng = np.random.default_rng(0)
        self._running = ExitStack()
        self.requests = 0
        """Number of answers so far."""

    @property
    def processes(self) -> tuple[DemoProcess, DemoProcess]:
        """The trainer and the server."""
        return self._trainer, self._server

    @property
    def curl(self) -> str:
        """Command that requests one score while the server runs."""
        return curl(self._addresses["rest_address"], self._shown)

    def wait(self) -> NoReturn:
        """Keep both running until an exception, such as Ctrl-C.

        Raises:
            ClusterError: A process has ended.
        """
        while True:
            self._check_end()
            for process in self.processes:
                process.check()
            self._clock.sleep_s(0.2)

    def moves(self, count: int, watch: Watch = lambda turn, score: None) -> Iterator[ScoreMove]:
        """Turn items, one after another; ``watch`` receives every answer.

        Raises:
            ClusterError: A process has ended, or no score moves; the text names the logs.
        """
        found = turns(self._shown, self._rows)
        for _ in range(count):
            yield self._move(next(found), watch)
            # The trainer publishes once a second; the next events come at a random time between two publishes.
            self._clock.sleep_s(float(self._rng.uniform(0, _PUBLISH_S)))
            self._check_end()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            self._start(started)
            self._running = started.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    # --- processes ----------------------------------------------------------------------------------------------------

    def _start(self, started: ExitStack) -> None:
        shutil.rmtree(self._published, ignore_errors=True)
        train = ["train", "--model-dir", self._model_dir, "--data", "-", "--record", "example_batch"]
        train += ["--batch-size", self._rows, "--no-resume-data"]
        train += ["--publish-dir", self._published, "--publish-interval-s", _PUBLISH_S]
        serve = ["serve", self._exported, "--name", MODEL, "--sync-from", self._published]
        serve += ["--port", 0, "--rest-port", 0, "--json"]
        self._trainer = started.enter_context(DemoProcess("trainer", train, self._folder))
        # The server ends with its standard input, and the trainer with its events on standard input.
        self._server = started.enter_context(DemoProcess("server", serve, self._folder, {lifeline.VARIABLE: "0"}))
        self._addresses = self._until("the server to print its addresses", self._addresses_printed)
        self._client = started.enter_context(Client(self._addresses["address"], model=MODEL))
        self._until("the server to load the model", self._is_served)
        self._until("the trainer to publish its first cut", self._is_in_step)
        # First requests are slow: make them now.
        self._teach(self._shown.rows(0, self._rows), example_batch(self._shown.rows(0, 1)))

    def _addresses_printed(self) -> dict[str, Any] | None:
        line, newline, _ = self._server.output.partition("\n")
        found: dict[str, Any] | None = json.loads(line) if newline else None
        return found

    def _is_served(self) -> bool:
        try:
            return any(version.state == "AVAILABLE" for version in self._client.status())
        except (ClusterError, ServingError):
            return False

    def _until(self, what: str, found: Callable[[], Any]) -> Any:
        """Wait for a true value and return it."""
        end_s = self._clock.monotonic_s() + _PATIENCE_S
        while not (value := found()):
            self._check_end()
            for process in self.processes:
                process.check()
            if self._clock.monotonic_s() > end_s:
                logs = " and ".join(str(process.log) for process in self.processes)
                raise ClusterError(f"waited {_PATIENCE_S:.0f} s for {what}; see {logs}")
            self._clock.sleep_s(_ASK_S)
        return value

    # --- moves --------------------------------------------------------------------------------------------------------

    def _move(self, turn: Turn, watch: Watch) -> ScoreMove:
        asked = example_batch(turn.shown)
        others = example_batch(self._shown.rows(0, _BYSTANDERS))
        before, others_before = self._scores(asked), self._scores(others)
        seconds = self._teach(turn.events, asked, lambda score: watch(turn, score))
        return ScoreMove(
            item_id=turn.item_id,
            is_up=turn.is_up,
            before=float(before[0]),
            after=float(self._scores(asked)[0]),
            others=float(np.mean(self._scores(others) - others_before)),
            seconds=seconds,
        )

    def _teach(self, events: Clicks, asked: bytes, watch: Callable[[float], None] = lambda score: None) -> float:
        """Send events to the trainer; return the seconds until the score of the request changes."""
        before = self._scores(asked)
        stamped = replace(events, event_time_s=np.full(len(events), int(self._clock.now_s()), np.int64))
        message = Framing().frame(example_batch(stamped))
        begin_s = self._clock.monotonic_s()
        self._trainer.tell(message)

        def has_moved() -> bool:
            score = self._scores(asked)
            watch(float(score[0]))
            return not np.array_equal(score, before)

        self._until("a score to move", has_moved)
        return self._clock.monotonic_s() - begin_s

    def _scores(self, asked: bytes) -> NDArray[np.float32]:
        try:
            (found,) = self._client.score(asked, "example_batch").values()
        except (ClusterError, ServingError):
            self._server.check()  # raises the better error if a process has ended
            raise
        self.requests += 1
        return found.reshape(-1)

    def _is_in_step(self) -> bool:
        url = f"http://{self._addresses['rest_address']}/metrics"
        with build_opener(ProxyHandler({})).open(url, timeout=_PATIENCE_S) as answer:
            return re.search(rb"^monolith_sync_cut\{[^}]*\} [1-9]", answer.read(), re.MULTILINE) is not None

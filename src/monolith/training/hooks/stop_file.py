"""Plans for a run, as files in its model folder that may be put there at any time.

=================  ===========================================================================================
``dump_<step>``    write a checkpoint when this step is reached
``stop_<step>``    end the run, with a checkpoint, when this step is reached
``limit_req_time`` holds unix seconds: end the run, with a checkpoint, when an event of this time or later came
=================  ===========================================================================================

Nothing is removed. Plans for steps that were done before this run began are over, so a restart does not repeat them; a
limit of time holds until its file is removed.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from monolith.training.hooks.base import Hook
from monolith.training.hooks.interval import Interval
from monolith.training.hooks.save_request import SaveRequest
from monolith.training.metrics.batch_fields import on_host
from monolith.training.run import Run, StepResult

__all__ = ["LIMIT_FILE", "StopFileHook"]

logger = logging.getLogger(__name__)

LIMIT_FILE = "limit_req_time"
_MOST_DIGITS = 18
_PLAN = re.compile(r"(dump|stop)_(\d+)")


class StopFileHook(Hook):
    """Obeys ``dump_<step>``, ``stop_<step>`` and ``limit_req_time``.

    A file is obeyed at its step when it was there ``every_s`` before, else when it is seen. A dump is of the next step
    boundary.

    Args:
        every_s: Seconds of the run's clock from one look at the folder to the next.
    """

    def __init__(self, *, every_s: float = 10.0) -> None:
        self._interval = Interval(every_s)
        self._save = SaveRequest()
        self._first_step = 0  # plans up to here are over
        self._dumped: set[int] = set()
        self._dumps: list[int] = []
        self._stops: list[int] = []
        self._limit_s: int | None = None
        self._refused = ""

    def on_start(self, run: Run) -> None:
        """Look at the folder."""
        self._first_step = run.step
        self._dumped.clear()
        self._interval.reset()
        self._look(run)

    def after_step(self, run: Run, result: StepResult) -> None:
        """Check the file when the interval is over."""
        self._look(run)
        if self._dumps and self._dumps[0] <= result.step and not self._save.is_under_way:
            self._save.start(run, f"asked for by dump_{self._dumps[0]}")
            self._dumped.update(step for step in self._dumps if step <= result.step)
            self._dumps = [step for step in self._dumps if step > result.step]
        if self._stops and self._stops[0] <= result.step:
            run.stop(f"asked for by stop_{self._stops[0]}")
        if self._limit_s is not None and len(times := on_host(result.batch.event_time_s)):  # a rank may have no rows
            newest_s = int(times.max())
            if newest_s >= self._limit_s:
                run.stop(f"an event of {newest_s} came, {LIMIT_FILE} is {self._limit_s}")

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Wait for a dump that is under way."""
        self._save.finish()

    def _look(self, run: Run) -> None:
        if not self._interval.is_due(run.clock.monotonic_s()):
            return
        plans: dict[str, list[int]] = {"dump": [], "stop": []}
        for path in run.model_dir.iterdir() if run.model_dir.is_dir() else ():
            match = _PLAN.fullmatch(path.name)
            if match is not None and int(match[2]) > self._first_step:
                plans[match[1]].append(int(match[2]))
        self._dumps, self._stops = sorted(set(plans["dump"]) - self._dumped), sorted(plans["stop"])
        self._limit_s = self._read_limit(run.model_dir / LIMIT_FILE)

    def _read_limit(self, path: Path) -> int | None:
        try:
            text = path.read_text(errors="replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:  # a folder, or a file of another user
            text = str(error)
        if text.isdecimal() and len(text) <= _MOST_DIGITS:
            return int(text)
        if text and text != self._refused:  # an empty one is only just being written
            self._refused = text
            logger.error("%s holds %r; write unix seconds, such as 1700000000. It is ignored", path, text)
        return None

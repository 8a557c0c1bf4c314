"""``ActionFileHook``: controls a run by a file in its model folder, for machines without a reachable port.

``monolith_action`` holds one line, ``action: TRIGGER_SAVE`` or ``action: STOP``. The run removes it, acts, and answers
in ``monolith_action_response`` with one JSON object: ``{"action": ..., "ok": ..., "step": ..., "message": ...}``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from typing_extensions import override

from monolith.core.durable_files import replace_file
from monolith.training.hooks.base import Hook
from monolith.training.hooks.interval import Interval
from monolith.training.hooks.save_request import SaveRequest
from monolith.training.run import Run, StepResult

__all__ = ["ACTION_FILE", "RESPONSE_FILE", "ActionFileHook"]

ACTION_FILE = "monolith_action"
RESPONSE_FILE = "monolith_action_response"

# Text of the message ControllerHooksProto {Action action = 1}, whose enum has these names and numbers.
_LINE = re.compile(r"action\s*:\s*(\w+)")
_ACTIONS = {"TRIGGER_SAVE": "TRIGGER_SAVE", "1": "TRIGGER_SAVE", "STOP": "STOP", "2": "STOP"}


class ActionFileHook(Hook):
    """Executes the actions of ``monolith_action``.

    Args:
        every_s: Seconds of the run's clock from one look to the next.
    """

    def __init__(self, *, every_s: float = 60.0) -> None:
        self._interval = Interval(every_s)
        self._save = SaveRequest()

    @override
    def on_start(self, run: Run) -> None:
        self._interval.reset()

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        """Read the file at each interval, except during a save, so that answers come one at a time."""
        if self._interval.is_due(run.clock.monotonic_s()) and not self._save.is_under_way:
            path = run.model_dir / ACTION_FILE
            try:
                text = path.read_text(errors="replace").strip()
            except FileNotFoundError:
                return
            except OSError as error:  # a folder, or a file of another user
                _answer(run, "", False, f"{ACTION_FILE} cannot be read ({error}); remove it")
                return
            if text:  # an empty file is created and not yet written
                path.unlink(missing_ok=True)
                self._act(run, text)

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._save.finish()

    def _act(self, run: Run, text: str) -> None:
        match = _LINE.fullmatch(text)
        action = _ACTIONS.get(match[1]) if match else None
        if action == "STOP":
            run.stop(f"asked for by {ACTION_FILE}")
            _answer(run, action, True, "the run ends with a checkpoint")
        elif action == "TRIGGER_SAVE":

            def tell(outcome: Path | Exception) -> None:
                _answer(run, "TRIGGER_SAVE", isinstance(outcome, Path), str(outcome))

            self._save.start(run, f"asked for by {ACTION_FILE}", tell)
        else:
            _answer(run, text, False, f"action is {text!r}, expected 'action: TRIGGER_SAVE' or 'action: STOP'")


def _answer(run: Run, action: str, ok: bool, message: str) -> None:
    content = {"action": action, "ok": ok, "step": run.step, "message": message}
    replace_file(run.model_dir / RESPONSE_FILE, json.dumps(content).encode() + b"\n")

"""A run without a model: it counts steps, and pauses, saves and stops as ``monolith.training.hooks.base.Run`` says."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monolith.core.clock import Clock
from monolith.data import Batch
from monolith.embedding import MultiTable
from monolith.testing import FakeClock
from monolith.training.hooks.base import Hook
from monolith.training.run import StepResult


class FakeRun:
    def __init__(
        self, model_dir: Path, hooks: Sequence[Hook] = (), *, clock: Clock | None = None, step: int = 0
    ) -> None:
        self.model_dir = model_dir
        self.hooks = list(hooks)
        self.clock: Clock = clock or FakeClock()
        self.config: Any = None
        self.model: Any = None
        self.store: Any = MultiTable(())
        self.step = step
        self.save_error: Exception | None = None
        self.saved: list[tuple[int, str]] = []
        self.stop_reasons: list[str] = []
        self.event_time_s = 0
        self.clamped_event_times = 0
        self._state = threading.Condition()
        self._wants_pause = False
        self._is_paused = False
        self._is_over = False
        self._requests: list[str] = []
        self._served = 0

    # --- Run ---

    def stop(self, reason: str) -> None:
        with self._state:
            self.stop_reasons.append(reason)
            self._state.notify_all()

    def save(self, reason: str) -> Path:
        with self._state:
            self._requests.append(reason)
            number = len(self._requests)
            self._state.notify_all()
            self._state.wait_for(lambda: self._served >= number or self._is_over)
            if self.save_error is not None:
                raise self.save_error
            if self._served < number:
                raise RuntimeError("the run is over")
            return self.model_dir / f"step-{self.saved[number - 1][0]}"

    def pause(self) -> bool:
        with self._state:
            is_new = not self._wants_pause
            self._wants_pause = True
            return is_new

    def resume(self) -> None:
        with self._state:
            self._wants_pause = False
            self._state.notify_all()

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    # --- the loop ---

    def train(self, steps: int) -> None:
        """Run, as the loop would: hooks are told, and boundaries are places to hold and to save."""
        error: BaseException | None = None
        try:
            for hook in self.hooks:
                hook.on_start(self)
            for _ in range(steps):
                if self.stop_reasons:
                    break
                self.take_step()
        except BaseException as raised:
            error = raised
            raise
        finally:
            with self._state:
                self._is_over = True
                self._state.notify_all()
            for hook in reversed(self.hooks):
                hook.on_end(self, error)

    def take_step(self) -> None:
        for hook in self.hooks:
            hook.before_step(self)
        self.step += 1
        batch = Batch.from_arrays(ids={"user": [[1], [2]]}, event_time_s=[self.event_time_s] * 2)
        result = StepResult(step=self.step, loss=0.5, heads={}, batch=batch, samples=2, ids=2, seconds=0.1)
        for hook in self.hooks:
            hook.after_step(self, result)
        self._boundary()

    def _boundary(self) -> None:
        with self._state:
            while True:
                self._serve()
                self._is_paused = self._wants_pause and not self.stop_reasons
                self._state.notify_all()
                if not self._is_paused:
                    return
                self._state.wait()

    def _serve(self) -> None:
        while self._served < len(self._requests):
            self.saved.append((self.step, self._requests[self._served]))
            self._served += 1

    def wait(self, condition: Any, timeout_s: float = 20.0) -> None:
        """Let a test wait for something that the loop does; fails when it does not happen."""
        with self._state:
            assert self._state.wait_for(condition, timeout_s), "it did not happen"

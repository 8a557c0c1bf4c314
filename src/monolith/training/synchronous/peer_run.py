"""The training loop of one rank: it begins, saves, pauses and ends at the same step as those of all others.

What any rank is asked for (by a signal, a file, a controller, a hook) all ranks do, at the next step boundary. Rank 0
measures all of them, and says when a checkpoint is due.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from monolith.core.errors import MonolithError
from monolith.training.checkpoints import PendingSave, random_states
from monolith.training.loop import TrainingRun
from monolith.training.run import StepResult
from monolith.training.synchronous.peer_batches import PeerBatches, StepSizes
from monolith.training.synchronous.peer_stepper import PeerStepper
from monolith.training.synchronous.peers import Peers
from monolith.training.synchronous.step_results import join_heads, read_heads, write_heads

__all__ = ["PeerRun"]

_HELD_S = 0.2
_FULL, _DENSE = 1, 2


class PeerRun(TrainingRun):
    """One call of ``PeerEstimator.train``; see ``TrainingRun``.

    Args:
        peers: The ranks.
        sizes: Is told the examples of each step.
        keep: At rank 0: is given what every rank goes on from, before each save.
        parts: See ``TrainingRun``.
    """

    def __init__(
        self,
        *,
        peers: Peers,
        sizes: StepSizes,
        keep: Callable[[list[dict[str, Any]]], None],
        stepper: PeerStepper,
        dataset: Any,
        **parts: Any,
    ) -> None:
        sizes.clear()
        batches = PeerBatches(dataset, stepper.embedder.declaration, peers.steps, sizes)
        super().__init__(stepper=stepper, dataset=batches, **parts)
        self._peers = peers
        self._keep = keep
        self._peer_stepper = stepper
        self._own_reason: str | None = None
        self._asked_at_step = self._step

    # --- together ---

    def stop(self, reason: str) -> None:
        """End the run of all ranks after the step under way."""
        with self._asked:
            self._own_reason = self._own_reason or reason
            self._asked.notify_all()

    def _obey(self) -> None:
        while True:
            due, wants_save, wants_stop, is_held = self._ask_all()
            if due == _DENSE and self._peers.is_chief:
                self._save_dense()
            elif due == _FULL:
                self._save("by schedule")
            if wants_save:
                self._save_for_someone()
                continue
            if wants_stop:
                ranks = ", ".join(map(str, wants_stop))
                self.stop_reason = self._own_reason or f"rank {ranks} ends the run"
                self._stands_still = False
                return
            with self._asked:
                self._stands_still = is_held
                if not is_held:
                    return
                self._asked.wait(_HELD_S)  # and ask again: a rank that waits longer would be taken for lost

    def _ask_all(self) -> tuple[int, bool, list[int], bool]:
        """Return what all ranks together want: a save that is due, one for someone, an end, and to stand still."""
        due = self._due() if self._peers.is_chief else 0
        with self._asked:
            own = [due, bool(self._wanted_saves), self._own_reason is not None, self._is_held]
        every = self._peers.steps.numbers(own)
        return int(every[0, 0]), bool(every[:, 1].any()), np.flatnonzero(every[:, 2]).tolist(), bool(every[:, 3].any())

    def _due(self) -> int:
        if self._checkpointer is None or self._asked_at_step == self._step:
            return 0
        self._asked_at_step = self._step
        if self._checkpointer.is_due(self._step):
            return _FULL
        return _DENSE if self._checkpointer.is_dense_due(self._step) else 0

    def _save_if_due(self) -> None:
        """Not here: all ranks ask rank 0 before the next step; behind the last one there is a save in any case."""

    def _save_dense(self) -> None:
        assert self._checkpointer is not None  # it was due
        self._pipeline.drain()
        self._dense_saves.append(self._checkpointer.save_dense(self._state(None), reason="by schedule"))

    def _save_for_someone(self) -> None:
        wanted = self._next_wanted(may_wait=True)
        if wanted is not None:
            self._answer(*wanted)
            return
        try:
            self._save_and_wait("another rank was asked to save")
        except MonolithError:  # told where it was asked for; the run goes on here as there
            return
        self._collect_saves()

    def _next_wanted(self, *, may_wait: bool) -> Any:
        """One save that was asked for here. At the end of a run nobody is left to save with: those are refused."""
        with self._asked:
            return self._wanted_saves.pop(0) if may_wait and self._wanted_saves else None

    def _save(self, reason: str) -> PendingSave | None:
        if self._checkpointer is not None:
            self._gather_places()
        return super()._save(reason)

    def _gather_places(self) -> None:
        own = {"place": self._place(), "data_ended": self.data_ended, "random": random_states.encode()}
        said = self._peers.steps.to_chief(json.dumps(own).encode())
        self._keep([json.loads(each) for each in said])

    # --- what is measured ---

    def _report(self, result: StepResult) -> None:
        """Give hooks this rank's batch with the loss and counts of all; rank 0 measures the heads of all ranks."""
        totals = self._peer_stepper.totals
        loss = totals.loss / max(1, totals.samples)
        result = replace(result, loss=loss, samples=totals.samples, ids=totals.ids)
        self._measure(result)
        for hook in self._hooks:
            hook.after_step(self, result)

    def _measure(self, result: StepResult) -> None:
        if self._metrics is None:
            return
        said = self._peers.steps.to_chief(write_heads(result.heads))
        if self._peers.is_chief:
            whole = replace(result, heads=join_heads([read_heads(each) for each in said]))
            self._check_labels(whole)
            self._metrics.update(whole)

    def _last_good(self) -> str:
        return super()._last_good() if self._peers.is_chief else "Rank 0 names the last good checkpoint."

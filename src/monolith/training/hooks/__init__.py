"""What runs beside the training loop, one hook per file. :mod:`base` says what a hook sees and when it is called."""

from __future__ import annotations

from monolith.training.hooks.barrier import Barrier, BarrierHook
from monolith.training.hooks.base import HeadResult, Hook, Run, StepResult
from monolith.training.hooks.controller import ControllerHook

__all__ = ["Barrier", "BarrierHook", "ControllerHook", "HeadResult", "Hook", "Run", "StepResult"]

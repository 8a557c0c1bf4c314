"""Where and how the process runs: devices, threads, seeds, its place among the workers, profiling, control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from monolith.core.config_sections import time_s
from monolith.training.config._checks import check_bool, check_choice, check_number, check_whole

__all__ = ["Accelerator", "RuntimeConfig"]

Accelerator: TypeAlias = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
    """The process and its place in the job."""

    seed: int = 0
    """Seed of first weights, shuffling and dropout."""
    deterministic: bool = False
    """The same bytes on every run, at some cost in speed."""
    accelerator: Accelerator = "cpu"
    """Device of the dense part: cpu or cuda."""
    threads: int | None = None
    """Threads of the engine and of dense math; None = one per core."""
    profile_some_steps_from: int | None = None
    """Step at which the first trace of 10 steps begins; None = no traces."""
    profile_save_steps_interval: int = 5000
    """Steps from one trace to the next."""
    controller_port: int | None = None
    """Port on which the run can be stopped, resumed and saved; None = off, 0 = any free port."""
    slow_start_steps: int = 0
    """Worker i waits until int(slow_start_steps * ln(1 + i)) steps are done; 0 = no waiting."""
    max_slow_start_wait_s: float = time_s(600.0, flat="max_slow_start_wait_minute", unit_s=60)
    """Minutes after which a worker starts regardless."""
    only_feature_engineering: bool = False
    """Write the features that the model would see to files instead of training."""
    index: int = 0
    """Number of this process among those of its kind; worker 0 is the chief."""
    num_workers: int = 1
    """Workers of the job, the chief included."""

    def __post_init__(self) -> None:
        check_bool(self, "deterministic", "only_feature_engineering")
        check_whole(self, "seed", at_most=(1 << 64) - 1)
        check_whole(self, "slow_start_steps", "index", "profile_some_steps_from")
        check_choice(self, "accelerator", get_args(Accelerator))
        check_whole(self, "threads", "profile_save_steps_interval", "num_workers", at_least=1)
        check_whole(self, "controller_port", at_most=65535)
        check_number(self, "max_slow_start_wait_s", at_least=0)

"""How long the engine works within a step: every native call of the embedding path, timed in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from monolith import _native
from monolith.features import Embedder

__all__ = ["PARTS", "Stopwatch", "engine_timed"]

PARTS = ("plan", "pull", "pool", "scatter", "push")


class Stopwatch:
    """Seconds of each part, added up."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call`` with its seconds added to ``part``."""

        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments)
            self.seconds[part] += time.perf_counter() - start
            return result

        return run


class _TimedPlan:
    """A plan whose two kernels are timed."""

    def __init__(self, plan: _native.StepPlan, watch: Stopwatch) -> None:
        self._plan = plan
        self.pool = watch.timed("pool", plan.pool)
        self.scatter = watch.timed("scatter", plan.scatter)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)


class _TimedKernel:
    def __init__(self, kernel: _native.Layouts, watch: Stopwatch) -> None:
        self._plan = watch.timed("plan", kernel.plan)
        self._watch = watch

    def plan(self, *arguments: Any) -> _TimedPlan:
        return _TimedPlan(self._plan(*arguments), self._watch)


@contextmanager
def engine_timed(embedder: Embedder) -> Iterator[Stopwatch]:
    """Time the native calls that ``embedder`` and its tables make."""
    watch = Stopwatch()
    kernel, lookup, apply = embedder._kernel, _native.lookup_all, _native.apply_all
    embedder._kernel = _TimedKernel(kernel, watch)  # type: ignore[assignment]
    _native.lookup_all = watch.timed("pull", lookup)
    _native.apply_all = watch.timed("push", apply)
    try:
        yield watch
    finally:
        embedder._kernel, _native.lookup_all, _native.apply_all = kernel, lookup, apply

"""How long the engine works within a step: every native call of the embedding path, timed in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

from monolith import _native
from monolith.features import Embedder

__all__ = ["PARTS", "Stopwatch", "engine_timed"]

Span: TypeAlias = Callable[[str], AbstractContextManager[Any]]

PARTS = ("plan", "pull", "pool", "scatter", "push")


class Stopwatch:
    """Seconds of each part, added up.

    Args:
        span: Makes a context for each call of a part, by its name.
    """

    def __init__(self, span: Span = lambda _: nullcontext()) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._span = span

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call`` with its seconds added to ``part``."""

        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            with self._span(part):
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


class _TimedRows:
    """Rows of a plan whose pull and push are timed."""

    def __init__(self, rows: _native.StepRows, watch: Stopwatch) -> None:
        self._pull = watch.timed("pull", rows.pull)
        self.push = watch.timed("push", rows.push)

    def pull(self, plan: _TimedPlan) -> Any:
        return self._pull(plan._plan)


class _TimedKernel:
    def __init__(self, kernel: _native.Layouts, watch: Stopwatch) -> None:
        self._plan = watch.timed("plan", kernel.plan)
        self._watch = watch

    def plan(self, *arguments: Any) -> _TimedPlan:
        return _TimedPlan(self._plan(*arguments), self._watch)


@contextmanager
def engine_timed(embedder: Embedder, span: Span = lambda _: nullcontext()) -> Iterator[Stopwatch]:
    """Time the native calls that ``embedder`` and its tables make; see ``Stopwatch`` for ``span``."""
    watch = Stopwatch(span)
    planned = embedder.store._planned
    kernel, step_rows = embedder._kernel, _native.StepRows
    kept = dict(planned)
    planned.clear()
    embedder._kernel = _TimedKernel(kernel, watch)  # type: ignore[assignment]
    _native.StepRows = lambda tables: _TimedRows(step_rows(tables), watch)  # type: ignore[assignment,misc]
    try:
        yield watch
    finally:
        embedder._kernel, _native.StepRows = kernel, step_rows  # type: ignore[misc]
        planned.clear()
        planned.update(kept)

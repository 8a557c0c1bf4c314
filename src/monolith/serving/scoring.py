"""A request from its name to its answer: finds the version, queues the work, counts, and logs a sample.

gRPC and REST hand their requests in here. How those look on the wire is not known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monolith.artifacts.export_manifest import SERVING_DEFAULT
from monolith.core.clock import Clock
from monolith.core.errors import RpcTimeout
from monolith.rpc.status import Code, code_of
from monolith.serving.batching import BatchQueue, Job
from monolith.serving.hosted_models import HostedModels
from monolith.serving.hosted_version import HostedVersion
from monolith.serving.loaded_model import DegradedOutputs, Outputs
from monolith.serving.metrics import ServingMetrics
from monolith.serving.predict import make_work

__all__ = ["Answer", "Question", "Scoring"]


@dataclass(frozen=True, slots=True)
class Question:
    """What a client asks."""

    model: str
    inputs: Mapping[str, Any]
    version: int | None = None
    label: str = ""
    signature: str = ""
    wanted: Sequence[str] = ()


class Answer:
    """What it is told: outputs, or an error."""

    __slots__ = ("error", "hosted", "missing", "outputs", "signature")

    def __init__(
        self, hosted: HostedVersion | None, signature: str, outputs: Outputs, error: BaseException | None
    ) -> None:
        self.hosted = hosted
        """The version that answered; it may be gone by now."""
        self.signature = signature or SERVING_DEFAULT
        self.outputs = outputs
        self.missing = ",".join(outputs.missing) if isinstance(outputs, DegradedOutputs) else ""
        """Who did not give rows, of an answer without them."""
        self.error = error


class Scoring:
    """Answers questions about models.

    Args:
        models: Who answers.
        queue: Where questions wait.
        metrics: Where they are counted.
        clock: Measures them.
    """

    def __init__(self, models: HostedModels, queue: BatchQueue, metrics: ServingMetrics, clock: Clock) -> None:
        self.models = models
        self._queue = queue
        self._metrics = metrics
        self._clock = clock

    def ask(
        self,
        question: Question,
        api: str,
        then: Callable[[Answer], None],
        *,
        timeout_s: float,
        is_wanted: Callable[[], bool] | None = None,
    ) -> None:
        """Call ``then`` with the answer, once, in this thread or another."""
        started_s = self._clock.monotonic_s()
        hosted: HostedVersion | None = None
        try:
            hosted = self.models.acquire(question.model, question.version, question.label)
            work = make_work(hosted, question.signature, question.inputs, question.wanted)
        except BaseException as error:
            self._end(question, api, then, hosted, {}, error, started_s)
            if not isinstance(error, Exception):
                raise
            return

        def done(job: Job) -> None:
            self._end(question, api, then, hosted, job.answer or {}, job.error, started_s)

        try:
            self._queue.submit(Job(work, done, started_s + timeout_s, is_wanted))
        except Exception as error:
            self._end(question, api, then, hosted, {}, error, started_s)

    def answer(
        self, question: Question, api: str, *, timeout_s: float, is_wanted: Callable[[], bool] | None = None
    ) -> Answer:
        """Return the answer."""
        found: list[Answer] = []
        waiting = threading.Lock()
        waiting.acquire()

        def then(answer: Answer) -> None:
            found.append(answer)
            waiting.release()

        self.ask(question, api, then, timeout_s=timeout_s, is_wanted=is_wanted)
        if not waiting.acquire(timeout=timeout_s + 0.05):
            error = RpcTimeout(f"no answer within {timeout_s:.3f} s; ask with more time, or for fewer rows")
            return Answer(None, question.signature, {}, error)
        return found[0]

    def _end(
        self,
        question: Question,
        api: str,
        then: Callable[[Answer], None],
        hosted: HostedVersion | None,
        outputs: Outputs,
        error: BaseException | None,
        started_s: float,
    ) -> None:
        code = Code.OK if error is None else code_of(error)
        _forget_where(error)
        # A name that nobody configured is not made a label: there would be no end of them.
        name = question.model if hosted is not None else ""
        self._metrics.request(name, api, code, self._clock.monotonic_s() - started_s)
        if isinstance(outputs, DegradedOutputs):
            self._metrics.degraded(name)
        try:
            then(Answer(hosted, question.signature, outputs, error))
        finally:
            if hosted is not None:
                hosted.leave()


def _forget_where(error: BaseException | None) -> None:
    """Let go of the frames that an error went through.

    They hold the request, and through the answer the error itself: a circle, which would keep megabytes until the
    collector's next full round.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__

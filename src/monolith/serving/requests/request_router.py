"""Route predict requests of gRPC and REST: find the version, queue the work, count the result.

``RequestRouter.submit`` returns immediately and calls back; ``call`` waits for the result. Thread safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monolith.artifacts.export_manifest import ASSIGNMENTS, SERVING_DEFAULT
from monolith.core.clock import Clock
from monolith.core.errors import NotPermitted, RpcTimeout
from monolith.rpc.status import Code, code_of
from monolith.serving.api.impression_log import ImpressionLog
from monolith.serving.metrics import ServingMetrics
from monolith.serving.requests.batching import BatchQueue, QueuedRequest
from monolith.serving.requests.predict import make_work
from monolith.serving.versions.hosted_models import HostedModels
from monolith.serving.versions.hosted_version import HostedVersion
from monolith.serving.versions.loaded_model import DegradedOutputs, Outputs

__all__ = ["PredictRequest", "PredictResult", "RequestRouter"]


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """A predict request, independent of the transport."""

    model: str
    inputs: Mapping[str, Any]
    version: int | None = None
    label: str = ""
    signature: str = ""
    wanted: Sequence[str] = ()
    may_assign: bool = False
    """Whether the caller may call signatures that assign rows."""
    request_key: bytes = b""
    """Key of the impressions; empty = none are logged."""


class PredictResult:
    """Result of a predict request: outputs or an error."""

    __slots__ = ("error", "hosted", "missing", "outputs", "signature")

    def __init__(
        self, hosted: HostedVersion | None, signature: str, outputs: Outputs, error: BaseException | None
    ) -> None:
        self.hosted = hosted
        """Version that answered; it may be unloaded since."""
        self.signature = signature or SERVING_DEFAULT
        self.outputs = outputs
        self.missing = ",".join(outputs.missing) if isinstance(outputs, DegradedOutputs) else ""
        """Names of the parts whose rows are missing, separated by commas."""
        self.error = error


class RequestRouter:
    """Answers predict requests.

    Args:
        models: Served models.
        queue: Queue of the model threads.
        metrics: Metrics of the requests.
        clock: Clock of latencies and deadlines.
        assigns_following: Whether versions that follow a publisher take assignments.
        impressions: Log of the scored records; None = none.
    """

    def __init__(
        self,
        models: HostedModels,
        queue: BatchQueue,
        metrics: ServingMetrics,
        clock: Clock,
        *,
        assigns_following: bool = False,
        impressions: ImpressionLog | None = None,
    ) -> None:
        self.models = models
        self.impressions = impressions
        self._assigns_following = assigns_following
        self._queue = queue
        self._metrics = metrics
        self._clock = clock

    def submit(
        self,
        request: PredictRequest,
        api: str,
        on_result: Callable[[PredictResult], None],
        *,
        timeout_s: float,
        is_wanted: Callable[[], bool] | None = None,
    ) -> None:
        """Queue a request.

        Args:
            request: The request.
            api: ``grpc`` or ``rest``, for metrics.
            on_result: Called once with the result, in this thread or a model thread.
            timeout_s: Timeout of the request.
            is_wanted: Returns whether the client is still connected.
        """
        started_s = self._clock.monotonic_s()
        hosted: HostedVersion | None = None
        try:
            hosted = self.models.acquire(request.model, request.version, request.label)
            self._check_right(request, hosted)
            work = make_work(hosted, request.signature, request.inputs, request.wanted)
        except BaseException as error:
            self._end(request, api, on_result, hosted, {}, error, started_s)
            if not isinstance(error, Exception):
                raise
            return

        def done(job: QueuedRequest) -> None:
            if job.error is None and self.impressions is not None and request.request_key and work.is_score:
                cut = getattr(work.hosted.model, "shown_cut", 0)
                self.impressions.add(request.request_key, work.kind, work.records, work.hosted.version, cut)
            self._end(request, api, on_result, hosted, job.answer or {}, job.error, started_s)

        try:
            self._queue.submit(QueuedRequest(work, done, started_s + timeout_s, is_wanted))
        except Exception as error:
            self._end(request, api, on_result, hosted, {}, error, started_s)

    def _check_right(self, request: PredictRequest, hosted: HostedVersion) -> None:
        declared = hosted.model.signatures.get(request.signature or SERVING_DEFAULT)
        if declared is None or declared.kind not in ASSIGNMENTS:
            return
        if not request.may_assign:
            raise NotPermitted(
                f"signature {request.signature!r} assigns rows, which needs the admin token; send it, or start the "
                "server with --admin-token-file or --allow-assign"
            )
        if getattr(hosted.model, "is_following", False) and not self._assigns_following:
            raise NotPermitted(
                f"version {hosted.version} of model {hosted.name!r} follows a publisher, so signature "
                f"{request.signature!r} is off; start the server with --allow-assign"
            )

    def call(
        self, request: PredictRequest, api: str, *, timeout_s: float, is_wanted: Callable[[], bool] | None = None
    ) -> PredictResult:
        """Wait for the result of a request and return it; see ``submit``."""
        results: list[PredictResult] = []
        waiting = threading.Lock()
        waiting.acquire()

        def on_result(result: PredictResult) -> None:
            results.append(result)
            waiting.release()

        self.submit(request, api, on_result, timeout_s=timeout_s, is_wanted=is_wanted)
        if not waiting.acquire(timeout=timeout_s + 0.05):
            error = RpcTimeout(f"no result within {timeout_s:.3f} s; use a longer deadline or fewer rows")
            return PredictResult(None, request.signature, {}, error)
        return results[0]

    def _end(
        self,
        request: PredictRequest,
        api: str,
        on_result: Callable[[PredictResult], None],
        hosted: HostedVersion | None,
        outputs: Outputs,
        error: BaseException | None,
        started_s: float,
    ) -> None:
        code = Code.OK if error is None else code_of(error)
        _drop_tracebacks(error)
        # An unknown model name is not used as a label: clients could create labels without bound.
        name = request.model if hosted is not None else ""
        self._metrics.request(name, api, code, self._clock.monotonic_s() - started_s)
        if isinstance(outputs, DegradedOutputs):
            self._metrics.degraded(name)
        try:
            on_result(PredictResult(hosted, request.signature, outputs, error))
        finally:
            if hosted is not None:
                hosted.leave()


def _drop_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and its causes.

    The frames refer to the request, and through the result to the error: a cycle that would keep megabytes until the
    next full garbage collection.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__

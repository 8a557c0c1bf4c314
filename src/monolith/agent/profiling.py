"""Measure the latency and throughput of model servers with many requests.

Main types: ``Profile`` (the result), ``profile_servers``.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from monolith.agent.prediction import PredictionClient, PredictionInput
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import MonolithError

__all__ = ["Profile", "percentile", "profile_servers"]

logger = logging.getLogger(__name__)

_PROGRESS_S = 60.0


def percentile(latencies: Sequence[float], share: float) -> float:
    """Return the value at a share of sorted latencies; 0 without any.

    >>> percentile([3.0, 1.0, 2.0], 0.99)
    3.0
    """
    if not latencies:
        return 0.0
    ordered = sorted(latencies)
    return ordered[round((len(ordered) - 1) * share)]


@dataclass(frozen=True, slots=True)
class Profile:
    """Result of a measurement."""

    count: int
    failed: int
    qps: float
    mean_ms: float
    p50_ms: float
    p99_ms: float

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"count={self.count} failed={self.failed} qps={self.qps:.1f} mean={self.mean_ms:.3f} ms "
            f"p50={self.p50_ms:.3f} ms p99={self.p99_ms:.3f} ms"
        )


def profile_servers(
    targets: Sequence[str],
    model: str,
    inputs: Sequence[PredictionInput],
    *,
    threads: int = 1,
    duration_s: float = 600.0,
    signature: str = "serving_default",
    timeout_s: float = 30.0,
    clock: Clock | None = None,
    seed: int = 0,
) -> Profile:
    """Send random inputs to random targets for some time and return the latencies."""
    clock = clock or SystemClock()
    begin_s = clock.monotonic_s()
    end_s = begin_s + duration_s
    lock = threading.Lock()
    latencies: list[float] = []
    failures = 0

    def run(job: int) -> None:
        nonlocal failures
        chance = random.Random(seed + job)
        clients = [PredictionClient(target, timeout_s=timeout_s) for target in targets]
        shown_s = begin_s
        try:
            while (start_s := clock.monotonic_s()) < end_s:
                try:
                    chance.choice(clients).predict(model, chance.choice(inputs), signature)
                except MonolithError as error:
                    logger.warning("request failed error=%s", error)
                    with lock:
                        failures += 1
                    continue
                done_s = clock.monotonic_s()
                with lock:
                    latencies.append((done_s - start_s) * 1e3)
                if job == 0 and done_s - shown_s >= _PROGRESS_S:
                    shown_s = done_s
                    logger.info("profile running seconds=%.0f requests=%d", done_s - begin_s, len(latencies))
        finally:
            for client in clients:
                client.close()

    jobs = [threading.Thread(target=run, args=(job,), name=f"profile-{job}") for job in range(threads)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    elapsed_ms = max((clock.monotonic_s() - begin_s) * 1e3, 1e-9)
    count = len(latencies)
    return Profile(
        count=count,
        failed=failures,
        qps=count * 1e3 / elapsed_ms,
        mean_ms=sum(latencies) / count if count else 0.0,
        p50_ms=percentile(latencies, 0.5),
        p99_ms=percentile(latencies, 0.99),
    )

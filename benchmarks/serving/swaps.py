"""The case of a hot swap: versions come and go under load, and nobody is to notice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from measure.results import Result
from serving.exporting import Exported, scratch_folder
from serving.results import progress
from serving.servers import Generator, Ours
from serving.workload import Sizes, Workload

__all__ = ["swap_cases"]

_LEAST_TURN_S = 4.0
"""A swap has half of a turn, and must not outlast it; the other half gives the waits without one."""


def swap_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Put versions in the place of others while clients ask at half of what the server can do.

    A request that fails is an error of the benchmark. Waits before a swap are those of the same load without one; waits
    of a swap are those from when the new version's folder is there until the old version is unloaded.
    """
    with scratch_folder() as folder, Generator() as generator:
        progress(f"exporting {sizes.ids:,} rows, {sizes.swaps + 1} times")
        exported = Exported(Workload(sizes), folder)
        exported.export(1)
        staged = [_staged(exported, version) for version in range(2, sizes.swaps + 2)]
        progress("swap_p99")
        with Ours(exported.versions, exported.requests, sizes.threads, poll_s=0.05) as ours:
            ours.await_version(1)
            full = generator.offer(
                ours.grpc, clients=sizes.clients, seconds=sizes.turn_s, settle_s=sizes.settle_s
            ).per_s
            yield _swapped(exported, staged, sizes, ours, generator, full / 2)


def _staged(exported: Exported, version: int) -> str:
    """Export a version and take it out of the server's sight."""
    hidden = exported.versions.parent / f"staged-{version}"
    os.rename(exported.export(version), hidden)
    return str(hidden)


def _swapped(
    exported: Exported, staged: Sequence[str], sizes: Sizes, ours: Ours, generator: Generator, rate: float
) -> Result:
    order = {"clients": sizes.clients, "settle_s": sizes.settle_s, "rate": rate}
    before, during, seconds = [], [], []
    turn_s = max(sizes.p99_turn_s, _LEAST_TURN_S)
    for version, hidden in enumerate(staged, 2):
        generator.begin(ours.grpc, seconds=turn_s, **order)
        time.sleep(sizes.settle_s + turn_s / 2)
        begin_s = time.time()
        os.rename(hidden, exported.versions / str(version))
        ours.await_version(version)
        end_s = time.time()
        load = generator.end()
        at_s = load.begin_s + load.at_s
        before.append(load.waits_ms[at_s < begin_s])
        during.append(load.waits_ms[(at_s >= begin_s) & (at_s <= end_s + 0.1)])
        seconds.append(end_s - begin_s)
    quiet, busy = (float(np.percentile(np.concatenate(waits), 99)) for waits in (before, during))
    extra: dict[str, Any] = {
        "peer_name": "the same load without a swap",
        "requests_per_s": rate,
        "failed": 0,
        "swap_s": float(np.median(seconds)),
        "requests_before_swaps": sum(map(len, before)),
        "requests_during_swaps": sum(map(len, during)),
    }
    return Result(
        case="swap_p99", ours=busy, peer=quiet, ratio=busy / quiet, unit="ms", rounds=len(staged), extra=extra
    )

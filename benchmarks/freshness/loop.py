"""The cases of the whole loop: from an event in the log to the server that answers with its update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from freshness.results import progress
from freshness.workload import Sizes
from measure.results import Result
from monolith.demo.demo import Demo, DemoOptions
from monolith.demo.visitors import VisitorSettings

__all__ = ["loop_cases"]

_EVENTS_PER_S = 2_000.0
_PUBLISH_S = {"event_to_servable_p99_s": 1.0, "event_to_servable_p99_s_100ms": 0.1}


def loop_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Run visitors, event log, joiner, trainer, parameter servers and model servers; read the server's histogram."""
    for case in cases:
        progress(case)
        options = DemoOptions(
            seconds=2 * sizes.seconds,  # the second half is measured
            with_dashboard=False,
            publish_s=_PUBLISH_S[case],
            visitors=VisitorSettings(events_per_s=_EVENTS_PER_S),
        )
        with Demo(options, progress).run() as result:
            p99_s = result.event_to_servable_p99_s
        yield Result(
            case=case,
            ours=p99_s,
            peer=1.0,
            ratio=p99_s,
            unit="s",
            rounds=1,
            extra={
                "p50_s": result.event_to_servable_p50_s,
                "events_per_s": round(result.events_per_s),
                "publish_interval_s": options.publish_s,
                "stages_s": {stage: round(seconds, 3) for stage, seconds in result.stages_s.items()},
                "requests_per_s": round(result.requests_per_s, 1),
                "request_p99_s": round(result.request_p99_s, 4),
                "peer_name": "one second, so that the ratio is the result in seconds",
            },
        )

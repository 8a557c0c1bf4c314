"""Measures how soon what is learnt is served: ``monolith bench freshness [--case C] [--quick]``.

Prints one JSON object per case on standard output. See docs/guide/freshness.md.
"""

from __future__ import annotations

import sys

from measure.program import Benchmark, Group

GROUPS: dict[str, Group] = {
    "bytes": Group("delta_bytes.bytes_cases", ("delta_bytes_share",)),
    "latency": Group("latency.latency_cases", ("update_to_predict_p99_s", "update_to_predict_p99_s_100ms")),
    "loop": Group("loop.loop_cases", ("event_to_servable_p99_s", "event_to_servable_p99_s_100ms"), cores=2),
    "local": Group("latency.latency_cases", ("local_update_to_predict_p99_s", "local_update_to_predict_p99_s_100ms")),
}


def main() -> int:
    return Benchmark("freshness", __file__, __doc__, GROUPS, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}).main()


if __name__ == "__main__":
    sys.exit(main())

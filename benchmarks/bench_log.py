"""Measures the event log beside Redis Streams: ``monolith bench log [--case C] [--quick]``.

Prints one JSON object per case on standard output. See docs/guide/event_log.md.
"""

from __future__ import annotations

import sys

from measure.program import Benchmark, Group

GROUPS: dict[str, Group] = {
    "append_tail": Group("append_tail.append_tail_cases", ("log_redis", "log_redis_4096")),
}


def main() -> int:
    return Benchmark("log", __file__, __doc__, GROUPS, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}).main()


if __name__ == "__main__":
    sys.exit(main())

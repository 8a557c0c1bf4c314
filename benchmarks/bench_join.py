"""Measures the joiner beside plain Python dicts and PyFlink: ``monolith bench join [--case C] [--quick]``.

Prints one JSON object per case on standard output. See docs/guide/joiner.md.
"""

from __future__ import annotations

import sys

from measure.program import Benchmark, Group

GROUPS: dict[str, Group] = {
    "speed": Group("speed.speed_cases", ("join_python",), cores=1),
    "flink": Group("flink.flink_cases", ("join_flink",)),
    "memory": Group("memory.memory_cases", ("bytes_per_impression",), cores=1),
}


def main() -> int:
    return Benchmark("join", __file__, __doc__, GROUPS, {}).main()


if __name__ == "__main__":
    sys.exit(main())

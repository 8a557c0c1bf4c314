"""Measures parameter servers beside the in-process table and Redis: ``monolith bench ps [--case C] [--quick]``.

Prints one JSON object per case on standard output. Each group runs in a process of its own, so that its memory goes
back to the machine in between. See docs/guide/benchmarks.md.
"""

from __future__ import annotations

import sys

from measure.program import Benchmark, Group

THREADS = 2

GROUPS: dict[str, Group] = {
    "starts": Group("starts.start_cases", ("start_s",)),
    "rows": Group("rows.row_cases", ("lookup_share", "push_share", "lookup_redis", "recover_10m_s")),
    "training": Group("training.training_cases", ("wall_2ps_over_local",)),
}


def main() -> int:
    environment = {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
    return Benchmark("ps", __file__, __doc__, GROUPS, environment).main()


if __name__ == "__main__":
    sys.exit(main())

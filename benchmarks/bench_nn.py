"""Measures the torch modules of ``mt.nn``: ``monolith bench nn [--case C] [--quick]``.

Prints one JSON object per case on standard output. See docs/guide/benchmarks.md.
"""

from __future__ import annotations

import sys

from measure.program import Benchmark, Group

THREADS = 2

GROUPS: dict[str, Group] = {
    "torch": Group("modules.torch_cases", ("bag_torch",)),
    "own": Group("modules.overhead_cases", ("module_overhead",)),
}


def main() -> int:
    environment = {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
    return Benchmark("nn", __file__, __doc__, GROUPS, environment).main()


if __name__ == "__main__":
    sys.exit(main())

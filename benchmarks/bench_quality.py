"""Measures how good trained models are: ``monolith bench quality [--case C] [--quick]``.

Prints one JSON object per case on standard output. The data is downloaded once, into the build folder.
See docs/guide/benchmarks.md.
"""

from __future__ import annotations

import sys

from measure.program import Benchmark, Group

THREADS = 2

GROUPS: dict[str, Group] = {
    "ranking": Group("ranking.ranking_cases", ("distributed_gap_auc", "ml1m_deepfm_auc", "collision_gap_auc")),
    "commands": Group("commands.command_cases", ("ml1m_commands_auc",)),
}


def main() -> int:
    environment = {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
    return Benchmark("quality", __file__, __doc__, GROUPS, environment).main()


if __name__ == "__main__":
    sys.exit(main())

"""Measures a fleet of agents: ``monolith bench agent [--case C] [--quick]``.

Prints one JSON object per case on standard output. Needs a ZooKeeper that can be started (Debian package zookeeper).
"""

from __future__ import annotations

import sys

from measure.program import Benchmark, Group

GROUPS: dict[str, Group] = {
    "map": Group("replica_map.map_cases", ("agent_memory_mb", "map_change_s")),
    "fleet": Group("fleet.fleet_cases", ("killed_server_leaves_s", "publish_to_prediction_s")),
}


def main() -> int:
    return Benchmark("agent", __file__, __doc__, GROUPS, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}).main()


if __name__ == "__main__":
    sys.exit(main())

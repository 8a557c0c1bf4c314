"""Measures the model server beside LitServe and FastAPI: ``monolith bench serving [--case C] [--quick]``.

Prints one JSON object per case on standard output. Each group runs in a process of its own, so that its memory goes
back to the machine in between. See docs/guide/benchmarks.md.
"""

from __future__ import annotations

import sys

from measure.program import Benchmark, Group

GROUPS: dict[str, Group] = {
    "traffic": Group(
        "traffic.traffic_cases",
        (
            "rps_litserve",
            "p99_litserve",
            "rps_fastapi",
            "p99_fastapi",
            "rps_fastapi_own_parser",
            "p99_fastapi_own_parser",
        ),
    ),
    "native": Group(
        "native_path.native_cases",
        (
            "grpc_over_rest",
            "processor_over_parts",
            "interpreter_per_request",
            "rps_busy_interpreter",
            "idle_connection_bytes",
            "rps_16_cores",
            "threads_8_over_1",
        ),
    ),
    "swaps": Group("swaps.swap_cases", ("swap_p99",)),
    "loading": Group("loading.load_cases", ("load_10m_s",)),
    "exporting": Group("export_peak.export_cases", ("export_peak_share",)),
}


def main() -> int:
    return Benchmark("serving", __file__, __doc__, GROUPS, {}).main()


if __name__ == "__main__":
    sys.exit(main())

"""Measures the embedding engine beside its peers: ``monolith bench engine [--case C] [--quick]``.

Prints one JSON object per case on standard output. Cases that share tables run in one child process each, so that
their memory goes back to the machine in between. See docs/guide/benchmarks.md.
"""

from __future__ import annotations

import sys

from measure.program import Benchmark, Group

THREADS = 2

GROUPS: dict[str, Group] = {
    "fbgemm": Group(
        "steps.fbgemm_cases",
        ("step_zipf_fbgemm", "step_uniform_fbgemm", "lookup_zipf_fbgemm", "lookup_uniform_fbgemm"),
    ),
    "torch": Group("steps.torch_cases", ("step_zipf_torch", "step_uniform_torch")),
    "own": Group("own.own_cases", ("bytes_per_row_overhead", "line_share", "threads_2_over_1", "threads_16_over_2")),
    "insert": Group("inserts.insert_cases", ("insert_unordered_map",)),
    "disk": Group("disk.disk_cases", ("snapshot_disk_share", "restore_disk_share")),
    "determinism": Group("determinism.determinism_cases", ("deterministic_price",)),
    "matrix": Group("matrix.matrix_cases", ("matrix",), is_default=False),
}


def main() -> int:
    environment = {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
    return Benchmark("engine", __file__, __doc__, GROUPS, environment).main()


if __name__ == "__main__":
    sys.exit(main())

"""Measures training beside plain PyTorch: ``monolith bench train [--case C] [--quick] [--profile FILE] [--threads N]``.

Prints one JSON object per case on standard output. Each group runs in a process of its own, so that its memory goes
back to the machine in between. ``--profile`` also writes a trace of ten steps, with the calls of the engine and of
torch. See docs/guide/benchmarks.md.
"""

from __future__ import annotations

import sys

from measure.program import Benchmark, Group

THREADS = 2

GROUPS: dict[str, Group] = {
    "memory": Group("memory.memory_cases", ("bytes_per_id_overhead",)),
    "speed": Group("speed.speed_cases", ("deepfm_torch", "overhead_share")),
    "checkpoints": Group("pauses.pause_cases", ("checkpoint_pause_ms",)),
}


def main() -> int:
    environment = {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
    return Benchmark("train", __file__, __doc__, GROUPS, environment, options=("profile", "threads")).main()


if __name__ == "__main__":
    sys.exit(main())

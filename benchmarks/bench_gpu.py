"""Measures GPU tables beside torch, and beside the speed of HierarchicalKV: ``monolith bench gpu [--case C]``.

Prints one JSON object per case on standard output. Every case is skipped where there is no GPU, except those of the
engine, ``cpu_*``, which run the same steps on this machine's processor. See docs/design/gpu_tables.md.
"""

from __future__ import annotations

import sys

from measure.program import Benchmark, Group

GROUPS: dict[str, Group] = {
    "find": Group("tables.find_cases", ("find_hkv_50", "find_hkv_75", "insert_hkv_50", "insert_hkv_75")),
    "steps_16": Group("steps.step_cases", ("step_zipf_torch_16", "step_uniform_torch_16")),
    "steps_64": Group("steps.step_cases", ("step_zipf_torch_64", "step_uniform_torch_64")),
    "deepfm": Group("deepfm.deepfm_cases", ("deepfm_torch",)),
    "model": Group("model.model_cases", ("model_deepfm_torch",)),
    "growth": Group("tables.growth_cases", ("growth_longest_step", "bytes_per_row_overhead")),
    "cpu": Group(
        "engine_steps.engine_cases",
        ("cpu_step_zipf_torch", "cpu_step_uniform_torch", "cpu_lookup_zipf", "cpu_lookup_uniform"),
    ),
}


def main() -> int:
    return Benchmark("gpu", __file__, __doc__, GROUPS, {}).main()


if __name__ == "__main__":
    sys.exit(main())

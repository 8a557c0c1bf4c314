"""The benchmark of modules: both contestants compute the same, and cases of a GPU are skipped without one."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from typing import Any
from unittest import mock


def lines_of(results: Any, write: Any, sizes: Any) -> list[dict[str, Any]]:
    out = StringIO()
    for result in results:
        write(result, sizes, out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_module_agrees_with_its_peers_and_gets_a_ratio() -> None:
    from nn.modules import overhead_cases, torch_cases
    from nn.results import write
    from nn.workload import QUICK

    sizes = replace(QUICK, rows=2000, ids_per_step=512, rounds=2, batches=2)
    (bag,) = lines_of(torch_cases(["bag_torch"], sizes), write, sizes)
    (overhead,) = lines_of(overhead_cases(["module_overhead"], sizes), write, sizes)
    assert bag["ratio"] > 0
    assert (bag["must"], bag["better"]) == (4.0, "higher")
    assert overhead["ratio"] > 0
    assert (overhead["must"], overhead["better"]) == (1.1, "lower")


def test_cases_of_a_gpu_are_skipped_without_one() -> None:
    from gpu.deepfm import deepfm_cases
    from gpu.results import BARS, write
    from gpu.steps import step_cases
    from gpu.tables import find_cases, growth_cases
    from gpu.workload import QUICK

    with mock.patch("torch.cuda.is_available", return_value=False):
        lines = [
            *lines_of(find_cases(["find_hkv_50", "insert_hkv_50"], QUICK), write, QUICK),
            *lines_of(step_cases(["step_zipf_torch_16"], QUICK), write, QUICK),
            *lines_of(deepfm_cases(["deepfm_torch"], QUICK), write, QUICK),
            *lines_of(growth_cases(["growth_longest_step"], QUICK), write, QUICK),
        ]
    assert len(lines) == 5
    for line in lines:
        assert "no GPU" in line["skipped"]
        assert line["must"] == BARS[line["case"]][0]
        assert line["ok"] is None

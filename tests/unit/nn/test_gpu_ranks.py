"""Collections on GPUs whose rows are sharded over processes, against one process in host memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from module_rank_child import BATCHES, loss_of, make_bags, make_collection, read_rows
from monolith.nn.gpu.rank_set import owner_of

CHILD = str(Path(__file__).resolve().parents[2] / "support" / "module_rank_child.py")


def run(commands: list[list[str]]) -> list[dict[str, Any]]:
    """Run each rank in a separate process; return the results of each."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    children = [subprocess.Popen([sys.executable, *each], text=True, env=environment, **pipes) for each in commands]
    try:
        outputs = [child.communicate(timeout=100) for child in children]
    finally:
        for child in children:
            child.kill()
    for child, (_, errors) in zip(children, outputs, strict=True):
        assert child.returncode == 0, errors
    return [json.loads([line for line in out.splitlines() if line.startswith("{")][-1]) for out, _ in outputs]


def train_alone(batches: list[Any]) -> dict[str, list[list[float]]]:
    module = make_collection()
    joined = {name: [bag for batch in batches for bag in batch[name]] for name in batches[0]}
    for _ in range(3):
        loss_of(module(make_bags(joined))).backward()
    return read_rows(module)


@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_the_owner_of_an_id_is_its_unsigned_remainder(ranks: int) -> None:
    ids = [0, 1, 5, -1, -(2**63), 2**63 - 1, 1234567890123, -1234567890123]
    assert owner_of(torch.tensor(ids), ranks).tolist() == [each % 2**64 % ranks for each in ids]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_two_ranks_on_one_gpu_learn_the_rows_of_one_process(tmp_path: Path) -> None:
    results = run([[CHILD, str(rank), "2", str(tmp_path), "cuda"] for rank in range(2)])
    expected = train_alone(BATCHES)
    for rank, result in enumerate(results):
        assert all(each % 2 == rank for ids in result["held"].values() for each in ids)
        for state in ("trained", "loaded"):
            for name, rows in expected.items():
                np.testing.assert_allclose(result[state][name], rows, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_one_rank_of_torchrun_trains_over_nccl(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    (result,) = run([[*launcher, CHILD, "0", "1", str(tmp_path), "cuda"]])
    for name, rows in train_alone(BATCHES[:1]).items():
        np.testing.assert_allclose(result["trained"][name], rows, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(result["loaded"][name], rows, rtol=1e-5, atol=1e-6)

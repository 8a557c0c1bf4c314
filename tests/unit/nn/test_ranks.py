"""A collection whose rows are sharded over processes, against one process that sees all batches."""

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
import torch.distributed as dist

import monolith as mt
from module_rank_child import BATCHES, loss_of, make_bags, make_collection, read_rows
from monolith.core.errors import ConfigError

CHILD = Path(__file__).resolve().parents[2] / "support" / "module_rank_child.py"


def run_ranks(size: int, folder: Path) -> list[dict[str, Any]]:
    """Run each rank in a separate process; return the results of each."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    children = [
        subprocess.Popen(
            [sys.executable, str(CHILD), str(rank), str(size), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]
    try:
        outputs = [child.communicate(timeout=100) for child in children]
    finally:
        for child in children:
            child.kill()
    for child, (_, errors) in zip(children, outputs, strict=True):
        assert child.returncode == 0, errors
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def train_alone() -> mt.nn.EmbeddingBagCollection:
    module = make_collection()
    joined = {name: [bag for batch in BATCHES for bag in batch[name]] for name in BATCHES[0]}
    for _ in range(3):
        loss_of(module(make_bags(joined))).backward()
    return module


def test_two_ranks_learn_the_rows_of_one_process(tmp_path: Path) -> None:
    results = run_ranks(2, tmp_path)
    expected = read_rows(train_alone())
    for result in results:
        for state in ("trained", "loaded"):
            for name, rows in expected.items():
                np.testing.assert_allclose(result[state][name], rows, rtol=1e-5, atol=1e-6)
    for rank, result in enumerate(results):
        assert all(each % 2 == rank for ids in result["held"].values() for each in ids)
        assert "holds a snapshot" in result["refusals"][0]
        assert "absent" in result["refusals"][1]
    assert sorted(each for result in results for each in result["held"]["item"]) == [1, 2, 3, 5, 9]

    alone = make_collection()
    mt.nn.load(alone, tmp_path / "rows")
    assert alone.table_set.row_counts() == {"item": 5, "user": 2}
    np.testing.assert_allclose(read_rows(alone)["seen"], expected["seen"], rtol=1e-5, atol=1e-6)


def test_a_group_of_one_rank_learns_like_no_group(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        sharded, plain = make_collection(dist.group.WORLD), make_collection()
        for batch in BATCHES:
            for module in (sharded, plain):
                loss_of(module(make_bags(batch))).backward()
        for name, rows in read_rows(plain).items():
            np.testing.assert_allclose(read_rows(sharded)[name], rows, rtol=1e-6, atol=1e-7)
        with pytest.raises(ConfigError, match="sharded over 1 ranks"):
            sharded.table_set.host_tables()
    finally:
        dist.destroy_process_group()


def test_a_module_without_a_group_is_refused_among_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = mt.nn.EmbeddingBag(2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ConfigError, match="group="):
        module(torch.tensor([[1]]))

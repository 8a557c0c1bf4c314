"""The examples of Lightning and accelerate, and TorchRec's collection beside ours: ``make test-torch``."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import monolith as mt

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "torch_loops"


@pytest.mark.parametrize(("package", "rows"), [("lightning", 1000), ("accelerate", 1000)])
def test_the_example_of_a_loop_learns(package: str, rows: int) -> None:
    pytest.importorskip(package, reason="make test-torch installs it")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{package}_loop.py")], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    match = re.search(r"rows (\d+),.* loss (\d\.\d+)", done.stdout)
    assert match is not None, done.stdout
    assert int(match[1]) == rows
    assert float(match[2]) < 0.4


def import_torchrec() -> ModuleType:
    try:
        return importlib.import_module("torchrec")
    except ImportError as error:
        pytest.skip(f"torchrec does not load ({error}); make test-torch installs it")


@pytest.mark.filterwarnings("ignore")
def test_a_collection_of_torchrec_gives_equal_rows_and_updates() -> None:
    torchrec = import_torchrec()
    pooling = torchrec.PoolingType
    configs = [
        torchrec.EmbeddingBagConfig(
            name="item", embedding_dim=4, num_embeddings=50, feature_names=["seen", "liked"], pooling=pooling.MEAN
        ),
        torchrec.EmbeddingBagConfig(
            name="user", embedding_dim=3, num_embeddings=50, feature_names=["user"], pooling=pooling.SUM
        ),
    ]
    theirs = torchrec.EmbeddingBagCollection(tables=configs)
    ours = mt.nn.EmbeddingBagCollection(
        [
            mt.nn.Feature("seen", 4, table="item", mode="mean", optimizer=mt.Sgd(0.5)),
            mt.nn.Feature("liked", 4, table="item", mode="mean", optimizer=mt.Sgd(0.5)),
            mt.nn.Feature("user", 3, optimizer=mt.Sgd(0.5)),
        ]
    )
    weights = {name: bag.weight for name, bag in theirs.embedding_bags.items()}
    for name, weight in weights.items():
        ours.store[name].assign(np.arange(50), weight.detach().numpy())
    batch = torchrec.KeyedJaggedTensor.from_lengths_sync(
        keys=["seen", "liked", "user"],
        values=torch.tensor([1, 2, 2, 9, 7, 2, 3, 4, 4]),
        lengths=torch.tensor([3, 0, 1, 1, 1, 0, 1, 1, 1]),
    )
    descent = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(2):
        expected, actual = theirs(batch), ours(batch)
        assert type(actual) is type(expected)
        assert actual.keys() == expected.keys()
        torch.testing.assert_close(actual.values(), expected.values())
        descent.zero_grad()
        expected.values().square().sum().backward()
        descent.step()
        actual.values().square().sum().backward()
    for name, weight in weights.items():
        np.testing.assert_allclose(
            ours.store[name].lookup(np.arange(50)), weight.detach().numpy(), rtol=1e-5, atol=1e-6
        )

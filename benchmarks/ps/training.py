"""The case of training: DeepFM of ``bench train`` with its tables on two servers, beside the same in one process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measure.results import Result
from measure.timing import Seconds, interleave
from monolith.data import Batch
from monolith.embedding import MultiTable
from monolith.ps import RemoteStore
from monolith.training.config import RunConfig
from monolith.training.estimator import Estimator
from ps.results import progress
from ps.rows import SCRATCH
from ps.server import Server
from ps.workload import Sizes
from train.contestants import DENSE_RATE, Ranker
from train.workload import QUICK, SPARSE, Workload

__all__ = ["training_cases"]

SERVERS = 2
SEED = 7


def training_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Fill the tables once, copy them to the servers, and train both sides turn by turn on the same batches."""
    workload = Workload(
        replace(QUICK, ids=sizes.train_ids, batch=sizes.train_batch, batches=sizes.train_batches, threads=sizes.threads)
    )
    batches = [example.ours for example in workload.examples()]
    local = Estimator(Ranker, _settings(sizes))
    progress(f"filling {sizes.train_ids:,} rows")
    _fill(local, workload)
    with ExitStack() as stack:
        addresses = [stack.enter_context(Server(index, SERVERS)).address for index in range(SERVERS)]
        remote = Estimator(Ranker, _settings(sizes), store=lambda specs: RemoteStore(addresses, specs))
        assert isinstance(remote.store, RemoteStore)
        stack.callback(remote.store.close)
        _copy(local, remote)
        progress("wall_2ps_over_local")
        turns = [_turn(side, batches, sizes.train_steps) for side in (remote, local)]
        ours, peer = interleave(turns, rounds=sizes.train_rounds, steps=1) / sizes.train_steps
        _check_same(local, remote)
        yield _result(ours, peer, remote.store.transport)


def _settings(sizes: Sizes) -> RunConfig:
    return RunConfig(
        seed=SEED,
        threads=sizes.threads,
        dense_optimizer="adam",
        dense_learning_rate=DENSE_RATE,
        progressive_validation=False,
        progress=False,
    )


def _fill(side: Estimator, workload: Workload) -> None:
    assert isinstance(side.store, MultiTable)
    for place, name in enumerate(SPARSE):
        side.store[name].assign(workload.ids(place), workload.first_values(place))


def _copy(local: Estimator, remote: Estimator) -> None:
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        local.store.snapshot(Path(folder) / "tables")
        remote.store.restore(Path(folder) / "tables")


def _turn(side: Estimator, batches: Sequence[Batch], steps: int) -> Callable[[int], object]:
    def train(call: int) -> object:
        chosen = [batches[number % len(batches)] for number in range(call * steps, (call + 1) * steps)]
        return side.train(chosen, steps=steps, resume_data=False)

    return train


def _check_same(local: Estimator, remote: Estimator) -> None:
    """Both have seen the same batches in the same order, so they have learnt the same, to the last bit."""
    for name, weight in local.model.state_dict().items():
        if not torch.equal(weight, remote.model.state_dict()[name]):
            raise RuntimeError(f"local training and servers disagree in weight {name!r}")


def _result(ours: Seconds, peer: Seconds, transport: str) -> Result:
    ratios = ours / peer
    extra: dict[str, Any] = {
        "peer_name": "tables in the process of the training",
        "ratio_low": float(ratios.min()),
        "ratio_high": float(ratios.max()),
        "transport": transport,
        "servers": SERVERS,
    }
    return Result(
        case="wall_2ps_over_local",
        ours=1e3 * float(np.median(ours)),
        peer=1e3 * float(np.median(peer)),
        ratio=float(np.median(ratios)),
        unit="ms/step",
        rounds=len(ratios),
        extra=extra,
    )

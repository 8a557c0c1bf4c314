"""One rank that trains a sharded collection: ``python module_rank_child.py RANK SIZE FOLDER [DEVICE]``.

Prints one JSON line: the rows that this rank holds, and the rows that it reads after training, before and after a load.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import monolith as mt
from monolith.core.errors import ArtifactError, ConfigError
from monolith.nn.gpu import GpuTableSet

BATCHES = [
    {"seen": [[1, 2, 2], [3]], "liked": [[2], []], "user": [[7], [8]]},
    {"seen": [[2, 9], []], "liked": [[], [1, 5]], "user": [[7], [7]]},
]
"""One batch per rank; a rank beyond these trains on empty bags."""
EMPTY = {"seen": [[], []], "liked": [[], []], "user": [[], []]}
EVERY = {"seen": [[number] for number in range(12)], "liked": [[]] * 12, "user": [[number] for number in range(12)]}


def make_collection(group: Any = None, device: str = "cpu") -> mt.nn.EmbeddingBagCollection:
    """Return a collection of two tables; rows of ``item`` have two features."""
    shared: dict[str, Any] = {"table": "item", "optimizer": mt.Adagrad(0.5)}
    return mt.nn.EmbeddingBagCollection(
        [
            mt.nn.Feature("seen", 4, mode="mean", **shared),
            mt.nn.Feature("liked", 4, **shared),
            mt.nn.Feature("user", 3, optimizer=mt.Adam(0.1)),
        ],
        group=group,
        device=device,
    )


def make_bags(lists: dict[str, list[list[int]]]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the values and offsets of lists of ids."""
    return {
        name: (
            torch.tensor([each for bag in bags for each in bag], dtype=torch.int64),
            torch.tensor([0, *(len(bag) for bag in bags)]).cumsum(0),
        )
        for name, bags in lists.items()
    }


def loss_of(rows: dict[str, Tensor]) -> Tensor:
    """Return the mean over bags, so that the mean over ranks is that over all bags."""
    total: Tensor = sum((each.square().sum(dim=1).mean() for each in rows.values()), torch.zeros(()))
    return total


def read_rows(module: mt.nn.EmbeddingBagCollection) -> dict[str, list[list[float]]]:
    """Return the rows of ids 0 to 11."""
    module.eval()
    rows = module(make_bags(EVERY))
    module.train()
    return {name: rows[name].tolist() for name in ("seen", "user")}


def main(rank: int, size: int, folder: Path, device: str = "cpu") -> None:
    is_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    dist.init_process_group(
        # NCCL refuses two ranks on one GPU
        "cpu:gloo,cuda:nccl" if device == "cuda" and size == 1 else "gloo",
        init_method="env://" if is_torchrun else f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    module = make_collection(dist.group.WORLD, device)
    batch = make_bags(BATCHES[rank] if rank < len(BATCHES) else EMPTY)
    for _ in range(2):
        loss_of(module(batch)).backward()
    optimizer = mt.nn.TableOptimizer(module)
    loss_of(module(batch)).backward()
    optimizer.step()
    trained = read_rows(module)
    mt.nn.save(module, folder / "rows")
    again = make_collection(dist.group.WORLD, device)
    mt.nn.load(again, folder / "rows")
    refusals = []
    for action in (lambda: mt.nn.save(module, folder / "rows"), lambda: mt.nn.load(again, folder / "absent")):
        try:
            action()
        except (ArtifactError, ConfigError) as error:
            refusals.append(str(error))
    held = {name: sorted(int(each) for ids, _ in table.items() for each in ids) for name, table in own(module).items()}
    print(json.dumps({"held": held, "trained": trained, "loaded": read_rows(again), "refusals": refusals}))
    dist.destroy_process_group()


def own(module: mt.nn.EmbeddingBagCollection) -> dict[str, mt.Table]:
    """Return the tables of this rank."""
    tables = module.table_set
    if isinstance(tables, GpuTableSet):
        return {name: table.to_host() for name, table in tables.tables.items()}
    return {name: module.store[name] for name in module.store}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])

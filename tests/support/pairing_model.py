"""A model whose every step changes two rows on two servers and one weight: what is of one moment can be seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import monolith as mt
from monolith.demo.world import World
from monolith.demo.world.files import write_records
from monolith.embedding import Fp32, MultiTable, Sgd, Zeros

RECORDS = 40
BATCH = 5


class Pairs(mt.Model):
    """The two rows of a record count how often it was trained on; the weight counts examples. All of them downwards."""

    def __init__(self) -> None:
        super().__init__()
        rule: dict[str, Any] = {"optimizer": Sgd(1.0), "initializer": Zeros(), "compressor": Fp32()}
        self.embedding_feature("user_id", slot=1, value_type="fid")
        self.embedding_feature("item_id", slot=2, value_type="fid")
        self.user = self.embedding_slice("user_id", "count", 1, **rule)
        self.item = self.embedding_slice("item_id", "count", 1, **rule)
        self.steps = nn.Parameter(torch.zeros(1))

    def forward(self, batch: Any) -> mt.Output:
        user, item = self.user(batch)[:, 0], self.item(batch)[:, 0]
        return mt.Output(
            head="count",
            predictions=(user + 256 * item + 65536 * self.steps).detach(),
            label=batch.label[:, 0],
            loss=user + item + self.steps,
            is_classification=False,
        )


def write_files(folder: Path) -> str:
    """Write records whose user and item are on different servers; return the pattern of the files."""
    users = np.arange(RECORDS, dtype=np.int64)
    clicks = replace(World(users=5, items=5, seed=1).clicks(RECORDS), user_id=users, item_id=users ^ 1)
    for number in range(4):
        part = clicks.rows(number * RECORDS // 4, (number + 1) * RECORDS // 4)
        with mt.data.RecordWriter(folder / f"part-{number}.pb") as writer:
            write_records(part, writer, batch_rows=5)
    return str(folder / "part-*.pb")


def counted(tables: MultiTable) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return how often each record was trained on, by its user and by its item."""
    users = np.arange(RECORDS, dtype=np.int64)
    found = tables.pull({"user_id": mt.fid.switch_slot(users, 1), "item_id": mt.fid.switch_slot(users ^ 1, 2)})
    return -found["user_id"][:, 0], -found["item_id"][:, 0]


def steps_of(weights: Mapping[str, NDArray[Any]]) -> float:
    """Return the steps that the weight has counted, at a dense learning rate of 1."""
    return float(-weights["steps"][0]) / BATCH

"""A model that counts how often it was trained on each record, in the tables: nothing that was lost can be hidden."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import monolith as mt
from monolith.artifacts import CheckpointFolder
from monolith.core.errors import ConfigError
from monolith.demo.world import World
from monolith.demo.world.files import write_records
from monolith.embedding import MultiTable, Sgd, Zeros


class Counter(mt.Model):
    """The row of a record is minus the number of times that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user_id", slot=1)
        self.count = self.embedding_slice("user_id", "count", 1, optimizer=Sgd(1.0), initializer=Zeros())
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch: Any) -> mt.Output:
        count = self.count(batch)[:, 0]
        loss = count + self.bias * 0
        return mt.Output(
            head="count", predictions=count.detach(), label=batch.label[:, 0], loss=loss, is_classification=False
        )


class NeverThere(Counter):
    """Worker 1 fails before it is there, however often it is started; first when the file ``fail`` is there."""

    def __init__(self) -> None:
        super().__init__()
        if sys.argv[sys.argv.index("--index") + 1] == "1":
            while not Path("fail").exists():
                time.sleep(0.01)
            raise ConfigError("this machine lacks what the model needs; install it")


class LostOnTheWay(Counter):
    """Worker 1 stands still after a few steps, with a file in hand, to be killed; the others begin when it does.

    What tells them is ``on_the_way``, in the folder that all of them run in.
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def forward(self, batch: Any) -> mt.Output:
        self._steps += 1
        if sys.argv[sys.argv.index("--index") + 1] == "1":
            if self._steps == 4:
                Path("on_the_way").touch()
                while True:
                    time.sleep(1)
        else:
            while not Path("on_the_way").exists():
                time.sleep(0.01)
        return super().forward(batch)


def write_files(folder: Path, rows: list[int]) -> str:
    """Write one file per number, with so many records; return their pattern."""
    total = sum(rows)
    clicks = replace(World(users=5, items=5, seed=1).clicks(total), user_id=np.arange(total, dtype=np.int64))
    begin = 0
    for number, count in enumerate(rows):
        with mt.data.RecordWriter(folder / f"part-{number:02}.pb") as writer:
            write_records(clicks.rows(begin, begin + count), writer, batch_rows=5)
        begin += count
    return str(folder / "part-*.pb")


def counts(model_dir: Path, total: int) -> np.ndarray[Any, Any]:
    """Return how often each record was trained on, as the newest checkpoint has it."""
    newest = CheckpointFolder(model_dir / "checkpoints").newest()
    assert newest is not None
    tables = MultiTable(Counter().declaration.table_specs())
    tables.restore(newest.path / "tables")
    ids = mt.fid.switch_slot(np.arange(total, dtype=np.int64), 1)
    return -tables.pull({"user_id": ids})["user_id"][:, 0]

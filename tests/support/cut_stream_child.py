"""The model of the test of published cuts: it counts its steps in every row and in a dense weight, all at once."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import monolith as mt
from monolith.artifacts.delta_log import read_cut
from monolith.core import fid
from monolith.data import Batch, Ragged
from monolith.embedding import Fp32, Sgd, Zeros
from monolith.serving.servable.features import records_of_features
from monolith.training.hooks import publish

ROWS = 4
NUMBERS = 3 * ROWS
"""How many there are in a state: of every example both rows, and the weight."""
SLOTS = {"left": 1, "right": 2}
_STEP_S = 0.005
"""Pause before a step: the machine is to be left to the others, too."""
_copied_weights = publish.copied_weights
_starts = itertools.count()


class Together(mt.Model):
    """Every row, and the weight, is the number of steps that were taken. A state that is not of one step shows.

    Args:
        notes: Where to note, before a cut is published, what it is to show; empty = nowhere.
        published: Where it is published.
    """

    def __init__(self, notes: str = "", published: str = "") -> None:
        super().__init__()
        rule: dict[str, Any] = {"optimizer": Sgd(1.0), "initializer": Zeros(), "compressor": Fp32()}
        for name, slot in SLOTS.items():
            self.embedding_feature(name, slot=slot)
        self.left = self.embedding_slice("left", "count", 1, **rule)
        self.right = self.embedding_slice("right", "count", 1, **rule)
        self.steps = nn.Parameter(torch.zeros(1))
        if notes:
            self.run = f"{os.getpid()}.{next(_starts)}"
            publish.copied_weights = lambda model: _noted_weights(model, Path(notes), Path(published))

    def forward(self, batch: Any) -> mt.Output:
        left, right = self.left(batch)[:, 0], self.right(batch)[:, 0]
        count = self.steps.expand_as(left)
        state = torch.stack([left, right, count], dim=1)
        loss = -(left + right + count / ROWS)
        return mt.Output(head="counted", predictions=count.detach(), loss=loss, extra={"state": state.detach()},
                         label=batch.label[:, 0], is_classification=False)  # fmt: skip

    def input_fn(self, mode: str) -> Iterator[Batch]:
        return _batches()


def _batches() -> Iterator[Batch]:
    pause = threading.Event()
    while True:
        pause.wait(_STEP_S)
        yield Batch.from_arrays(
            ids={name: Ragged(values=np.array(_ids(name)), offsets=np.arange(ROWS + 1)) for name in SLOTS},
            label=np.zeros(ROWS, np.float32),
            event_time_s=np.full(ROWS, 1_700_000_000),
        )


def _ids(name: str) -> list[int]:
    """Of both servers, as even and odd ones."""
    return [fid.make_v2(SLOTS[name], value) for value in range(ROWS)]


def _noted_weights(model: Any, notes: Path, published: Path) -> Any:
    """Copy the weights, and note the cut that is about to be published; one that is not published is noted anew."""
    cut = read_cut(published)
    number = 1 if cut is None else cut.number + 1
    note = {"number": number, "run": model.run, "count": model.steps.item(), "taken_s": time.monotonic()}
    hidden = notes / f"{number}.tmp"
    hidden.write_text(json.dumps(note))
    hidden.rename(notes / f"{number}.json")
    return _copied_weights(model)


def requests() -> list[bytes]:
    """The examples of every step, as a server is asked for them."""
    rows = [{name: {"fids": [_ids(name)[row]]} for name in SLOTS} for row in range(ROWS)]
    return records_of_features(Together().declaration, rows)

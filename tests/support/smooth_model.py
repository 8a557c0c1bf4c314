"""A small model whose loss is smooth, and whose weights begin the same in every process and thread."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import monolith as mt
from monolith.embedding import Ones, Sgd


class Smooth(mt.Model):
    """Learns weights by a loss of every record for itself; each record has a row of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user_id", slot=1)
        self.row = self.embedding_slice("user_id", "row", 3, optimizer=Sgd(0.1), initializer=Ones())
        self.hidden = nn.Linear(3, 4)
        self.last = nn.Linear(4, 1)
        with torch.no_grad():  # the generators are the process's, and so are the threads that are workers here
            for weight in self.parameters():
                weight.copy_(torch.linspace(-0.5, 0.5, weight.numel()).view_as(weight))

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(
            head="click", logits=self.last(torch.tanh(self.hidden(self.row(batch))))[:, 0], label=batch.label[:, 0]
        )

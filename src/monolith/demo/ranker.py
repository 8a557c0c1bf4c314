"""``Ranker``: the model of the demonstration, a small DeepFM that learns from a stream of the fast joiner."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from monolith.data import Batch
from monolith.demo.world.clicks import Clicks
from monolith.embedding import Adagrad
from monolith.features import Output
from monolith.models import DeepFM

__all__ = ["Ranker"]


class Ranker(DeepFM):
    """Ranks the items of a page by the chance of a click.

    The fast joiner emits every impression as a negative first. The loss of the head corrects for it.

    Args:
        dim: Length of the vectors.
        learning_rate: Learning rate of the rows.
    """

    def __init__(self, *, dim: int = 8, learning_rate: float = 0.1) -> None:
        super().__init__(
            sparse=[each for each in Clicks.schema().sparse_features if each.name != "history"],
            dense=["price"],
            dim=dim,
            hidden=(32,),
            vec_optimizer=Adagrad(learning_rate),
            bias_optimizer=Adagrad(learning_rate),
        )

    @override
    def forward(self, batch: Batch) -> Output:
        return replace(super().forward(batch), delayed_feedback="fnw")

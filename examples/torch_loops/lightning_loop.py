"""Train a collisionless table inside a LightningModule: the loop, the dense optimizer and the logging are Lightning's.

The rows are not parameters, so Lightning's optimizer never sees them: ``backward`` updates them.
Run it with ``pip install lightning``.
"""

from __future__ import annotations

import lightning
import torch
from torch import Tensor

import monolith as mt


class Ranker(lightning.LightningModule):
    """Scores a user and the items that the user has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = mt.nn.EmbeddingBagCollection(
            [mt.nn.Feature("user", 8, optimizer=mt.Adagrad(0.5)), mt.nn.Feature("seen", 8, optimizer=mt.Adagrad(0.5))]
        )
        self.top = torch.nn.Linear(16, 1)

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        users, seen, labels = batch
        rows = self.rows({"user": (users, one_each(users)), "seen": (seen, one_each(seen))})
        logits = self.top(torch.cat([rows["user"], rows["seen"]], dim=1)).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        self.log("loss", loss, prog_bar=False)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.top.parameters(), lr=0.05)


def one_each(ids: Tensor) -> Tensor:
    """Return the offsets of bags with one id each."""
    return torch.arange(len(ids) + 1)


def make_batches(count: int) -> torch.utils.data.DataLoader[tuple[Tensor, ...]]:
    """Return clicks that depend on whether user and item are both even."""
    random = torch.Generator().manual_seed(3)
    users, items = (torch.randint(-(2**40), 2**40, (64 * count,), generator=random) % 500 for _ in range(2))
    labels = ((users % 2 == 0) & (items % 2 == 0)).float()
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(users << 40, items << 40, labels), batch_size=64)


if __name__ == "__main__":
    ranker = Ranker()
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ranker, make_batches(100))
    print(
        f"rows {sum(ranker.rows.table_set.row_counts().values())}, loss {float(trainer.callback_metrics['loss']):.3f}"
    )
    print("Next: save the rows beside a checkpoint with mt.nn.save(ranker, folder)")

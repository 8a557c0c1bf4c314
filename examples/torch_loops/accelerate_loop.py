"""Train a collisionless table under Hugging Face accelerate, with accumulated gradients for rows and weights.

``mt.nn.TableOptimizer`` is an optimizer of torch, so ``Accelerator.prepare`` takes it beside the dense one.
Run it with ``pip install accelerate``.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import Tensor

import monolith as mt


class Ranker(torch.nn.Module):
    """Scores the items of a basket."""

    def __init__(self) -> None:
        super().__init__()
        self.items = mt.nn.EmbeddingBag(8, optimizer=mt.Adagrad(0.5), mode="sum")
        self.top = torch.nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(self.items(ids)).squeeze(1)


def make_batches(count: int) -> torch.utils.data.DataLoader[tuple[Tensor, ...]]:
    """Return baskets of four items; a basket with an item below 100 was bought."""
    ids = torch.randint(0, 1000, (64 * count, 4), generator=torch.Generator().manual_seed(5))
    labels = (ids < 100).any(dim=1).float()
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids, labels), batch_size=64)


if __name__ == "__main__":
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    ranker = Ranker()
    rows = mt.nn.TableOptimizer(ranker)
    dense = torch.optim.Adam(ranker.top.parameters(), lr=0.05)
    ranker, rows, dense, batches = accelerator.prepare(ranker, rows, dense, make_batches(100))
    for _ in range(3):
        for ids, labels in batches:
            with accelerator.accumulate(ranker):
                loss = torch.nn.functional.binary_cross_entropy_with_logits(ranker(ids), labels)
                accelerator.backward(loss)
                for each in (rows, dense):
                    each.step()
                    each.zero_grad()
    print(f"rows {len(ranker.items.table)}, updates {ranker.items.steps}, loss {loss.item():.3f}")
    print("Next: clip the gradients of the rows with torch.nn.utils.clip_grad_norm_(rows.parameters, 1.0)")

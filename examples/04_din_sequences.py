"""Trains a DIN on sequences: earlier clicks predict later ones, even of a user without a row.

Run it with ``python examples/04_din_sequences.py``. The clicks come from a generated world whose true probabilities
are known, so the best AUC that any model can reach is known too.
"""

from __future__ import annotations

import monolith as mt
from monolith.demo.world import World

FIELDS = {"gender": 3, "category": 4}


def auc_of(model: mt.Model, train: mt.data.Dataset, test: mt.data.Dataset) -> float:
    est = mt.Estimator(model, mt.RunConfig(dense_learning_rate=0.003))
    est.train(train)
    return est.evaluate(test)["ctr/auc"]


def main() -> None:
    clicks = World(users=20_000, items=200, history_length=20, seed=2).clicks(50_000)
    known, later = clicks.rows(0, 42_000), clicks.rows(42_000)
    first = later.rows(0, 1)
    past = later.history[: later.history_offsets[1]].tolist()
    print(f"a row: item {first.item_id[0]}, clicked before: {past}, click: {first.click[0]:.0f}")

    def train() -> mt.data.Dataset:
        return known.dataset().batch(512)

    def test() -> mt.data.Dataset:
        return later.dataset().batch(4096)

    # Neither model has the user id; only the second has the earlier clicks.
    without = auc_of(mt.models.DeepFM(sparse={"item_id": 2, **FIELDS}, dense=["price"], dim=8), train(), test())
    din = mt.models.DIN(
        sparse=FIELDS,
        item=mt.data.SparseFeature("item_id", 2),
        history="history",
        max_history=20,
        dense=["price"],
        dim=8,
        hidden=[64, 32],
    )
    with_history = auc_of(din, train(), test())
    print(
        f"AUC without the history {without:.4f}, with it {with_history:.4f}; the best possible is {later.best_auc:.4f}"
    )
    tables = ", ".join(f"{spec.name} ({spec.dim} columns)" for spec in din.declaration.table_specs())
    print(f"tables: {tables}; the history shares the rows of the items")
    print("Next: two labels in one model, examples/05_mmoe_two_tasks.py")


if __name__ == "__main__":
    main()

"""Learns two labels, click and like, with one MMoE. The heads share experts and have separate gates.

Run it with ``python examples/05_mmoe_two_tasks.py``.
"""

from __future__ import annotations

import torch

import monolith as mt
from monolith.demo.world import World

SPARSE = {"user_id": 1, "item_id": 2, "gender": 3, "category": 4}


def main() -> None:
    clicks = World(users=500, items=200, seed=3).clicks(50_000)
    train, test = clicks.rows(0, 42_000), clicks.rows(42_000)
    print(f"of {len(clicks):,} impressions {clicks.click.mean():.1%} were clicked and {clicks.like.mean():.1%} liked")

    model = mt.models.MMoE(sparse=SPARSE, dense=["price"], heads=["click", "like"], dim=8, experts=3)
    est = mt.Estimator(model, mt.RunConfig(dense_learning_rate=0.003))
    seen = est.train(train.dataset(labels=2).batch(512))
    print(f"while training: click AUC {seen['click/auc']:.4f}, like AUC {seen['like/auc']:.4f}")

    found = est.evaluate(test.dataset(labels=2).batch(4096))
    best = {"click": test.best_auc, "like": test.auc(test.like_probability, "like")}
    for head in model.heads:
        print(f"{head:<6} AUC {found[f'{head}/auc']:.4f} of at most {best[head]:.4f}")

    batch = next(iter(test.dataset(labels=2).batch(1_000)))
    inputs = []
    watch = model.experts.register_forward_pre_hook(lambda layer, args: inputs.append(args[0]))
    model(batch)
    watch.remove()
    with torch.no_grad():
        gates = model.experts.gates(inputs[0]).mean(dim=0)
    for head, shares in zip(model.heads, gates.tolist(), strict=True):
        print(f"{head:<6} listens to the experts in the shares " + ", ".join(f"{share:.2f}" for share in shares))
    print("Next: five layers and three heads in a custom model, examples/06_stock_prediction.py")


if __name__ == "__main__":
    main()

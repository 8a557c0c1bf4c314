"""Defines a custom layer and model, pairs of features with a learned weight each, then checks, trains and compares it.

Run it with ``python examples/08_custom_layer.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

import monolith as mt
from monolith.demo.world import World

FIELDS = {"user_id": 1, "item_id": 2, "gender": 3, "category": 4}


class WeightedPairs(mt.layers.Layer):
    """out = Σ_{i<j} r_ij x_i · x_j, a weight r per pair of fields. Shapes: x (B, n, k), r (n, n), out (B, 1).

    A parameter is declared by name and takes its shape from the first input.
    """

    def __init__(self, initializer: str = "ones", regularizer: str | None = None) -> None:
        super().__init__()
        self.declare("pair_weight", initializer, regularizer)

    def measure(self, x: Tensor) -> None:
        self.shape("pair_weight", x.shape[1], x.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        products = torch.triu(self.pair_weight * (x @ x.transpose(1, 2)), diagonal=1)
        return products.sum(dim=(1, 2)).unsqueeze(1)


class FieldWeightedFM(mt.Model):
    """logit = Σ biases + the weighted pairs + a tower, with features declared once, here."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        for name, slot in FIELDS.items():
            self.embedding_feature(name, slot=slot)
        self.dense_feature("price")
        self.bias = self.embedding_slice(list(FIELDS), "bias", 1, optimizer=mt.Ftrl(0.05), out="add_n")
        self.vec = self.embedding_slice(list(FIELDS), "vec", dim, optimizer=mt.Adagrad(0.1), out="stack")
        self.pairs = WeightedPairs()
        self.tower = mt.layers.MLP([32, 1])

    def forward(self, batch: mt.Batch) -> mt.Output:
        vec = self.vec(batch)
        deep = self.tower(torch.cat([vec.flatten(1), batch.dense["price"].log()], dim=1))
        logit = self.bias(batch) + self.pairs(vec) + deep
        return mt.Output(logits=logit.squeeze(1), label=batch.label[:, 0])


def main() -> None:
    layer = WeightedPairs("glorot_uniform").double()
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    layer(x)
    print("gradients of the layer against differences:", torch.autograd.gradcheck(layer, x))

    clicks = World(users=500, items=200, seed=5).clicks(50_000)
    train, test = clicks.rows(0, 45_000), clicks.rows(45_000)
    est = mt.Estimator(FieldWeightedFM, mt.RunConfig(dense_learning_rate=0.003))
    est.train(train.dataset().batch(512))
    found = est.evaluate(test.dataset().batch(4096))
    print(f"AUC {found['ctr/auc']:.4f} of at most {test.best_auc:.4f}; calibration {found['ctr/calibration']:.3f}")
    weights, names = est.get_variable_value("pairs.pair_weight"), list(FIELDS)
    pairs = {(a, b): weights[i, j] for i, a in enumerate(names) for j, b in enumerate(names) if i < j}
    for (a, b), weight in sorted(pairs.items(), key=lambda pair: -pair[1]):
        print(f"  {a:<8} with {b:<8} {weight:.2f}")
    print("Next: the available layers, docs/reference/layers.md; or monolith train --task FILE.py:Model --help")


if __name__ == "__main__":
    main()

"""Trains a custom model: SENet, DIN, DIEN, DCN and MMoE with three heads, on generated five-minute bars.

The heads predict the direction of the next bar, the size of its move, and whether holding for six bars covers costs.
Hidden factors move the bars, so the value of the best forecast is known. Run it with
``python examples/06_stock_prediction.py``. The prices are synthetic, and the example is not investment advice.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

import monolith as mt
from monolith.demo.world.bars import Bars, bars
from monolith.demo.world.clicks import auc

LENGTH, HORIZONS, HOLD, COSTS = 12, (1, 5, 15, 30, 60), 6, 0.001


class StockModel(mt.Model):
    def __init__(self, dim: int = 8) -> None:
        super().__init__(labels=3)
        self.embedding_feature("ticker", slot=1)
        self.embedding_feature("bar", slot=2)
        self.embedding_feature("past", shared_with="bar", max_sequence_length=LENGTH)
        self.dense_feature("indicators", 2 * len(HORIZONS))
        self.fields = self.embedding_slice(["ticker", "bar"], "vec", dim, optimizer=mt.Adagrad(0.05), out="stack")
        self.past = self.embedding_slice("past", "vec", dim)
        self.senet = mt.layers.SeNet(2, 2)
        self.din = mt.layers.DIN([16, 1], "sigmoid", decay=True)
        self.dien = mt.layers.DIEN(dim, "AUGRU", activation="tanh")
        self.dcn = mt.layers.DCN(2, "mixed", num_experts=2, low_rank=8)
        self.mmoe = mt.layers.MMoE(3, [32, 16], num_experts=3)
        self.towers = torch.nn.ModuleList(mt.layers.MLP([8, 1]) for _ in range(3))

    def forward(self, batch: mt.Batch) -> list[mt.Output]:
        fields, past = self.fields(batch), self.past(batch)
        bar, mask = fields[:, 1], past.ne(0).any(2).float()
        interests = [self.din(bar, past, mask), self.dien(bar, past, mask)]
        crossed = self.dcn(torch.cat([self.senet(fields), *interests, batch.dense["indicators"]], dim=1))
        up, move, pays = (tower(task).squeeze(1) for tower, task in zip(self.towers, self.mmoe(crossed), strict=True))
        rises, moved, paid = batch.label.unbind(1)
        return [
            mt.Output(head="up", logits=up, label=rises, loss=0.5 * _entropy(up, rises)),
            mt.Output(
                head="move", predictions=move, label=moved, loss=0.3 * (move - moved) ** 2, is_classification=False
            ),
            mt.Output(head="pays", logits=pays, label=paid, loss=0.2 * _entropy(pays, paid)),
        ]


def _entropy(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(logits, label, reduction="none")


def columns(data: Bars, begin: int, end: int) -> dict[str, np.ndarray]:
    """Return the features known at the end of each bar, and the labels of the bars after it."""
    close, volume = np.log(data.close), np.log(data.volume)
    returns = np.diff(close, axis=1, prepend=close[:, :1])
    scale = returns[:, :begin].std()
    token = 1 + np.digitize(returns / scale, np.linspace(-2, 2, 15))
    at = np.arange(begin, end)
    indicators = [(close[:, at] - close[:, at - h]) / (scale * np.sqrt(h)) for h in HORIZONS]
    indicators += [volume[:, at] - volume[:, at[:, None] - np.arange(h + 1)].mean(2) for h in HORIZONS]
    following = returns[:, at + 1]
    held = close[:, at + HOLD] - close[:, at]
    labels = [following > 0, np.abs(following) / scale, held > COSTS]
    return {
        "ticker": np.repeat(np.arange(len(close)), len(at)),
        "bar": token[:, at].ravel(),
        "past": token[:, at[:, None] - np.arange(LENGTH, 0, -1)].reshape(-1, LENGTH),
        "indicators": np.stack(indicators, axis=2).reshape(-1, len(indicators)).astype(np.float32),
        "__LABEL__": np.stack(labels, axis=2).reshape(-1, 3).astype(np.float32),
    }


def main() -> None:
    data = bars(2_000, tickers=16, seed=1)
    split, end = 1_600, 2_000 - HOLD
    train, test = columns(data, 60, split), columns(data, split, end)
    est = mt.Estimator(StockModel, mt.RunConfig(dense_learning_rate=0.003))
    est.train(mt.data.frame(train).shuffle(30_000, seed=0).batch(512))
    found = est.evaluate(mt.data.frame(test).batch(1024))
    best = auc(data.expected_return[:, split:end], test["__LABEL__"][:, 0])
    print(f"next bar up: AUC {found['up/auc']:.4f}; knowing the hidden factors it would be {best:.4f}")
    print(f"size of the move: squared error {found['move/mse']:.3f}; holding pays: AUC {found['pays/auc']:.4f}")
    up = np.concatenate([said["up"] for said in est.predict(mt.data.frame(test).batch(1024))])
    following = np.diff(np.log(data.close), axis=1)[:, split:end].ravel()
    picks = following[up > np.quantile(up, 0.9)]
    print(
        f"the tenth it trusts most gains {1e4 * picks.mean():.1f} basis points a bar, all {1e4 * following.mean():.1f}"
    )
    print("Next: stop a run and resume it, examples/07_resume.py")


if __name__ == "__main__":
    main()

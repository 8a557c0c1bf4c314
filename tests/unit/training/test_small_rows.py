"""``ue_euclidean_norm_threshold`` stops the gradients of features whose rows are small, and of no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import monolith as mt
from monolith.core.errors import ConfigError
from monolith.embedding import Constant, Fp32, MultiTable, Sgd

USERS, ITEMS = [3, 4, 3], [7, 8, 9]


class Two(mt.Model):
    """Users start at 0.1 in each of two dims, items at 1."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.embedding_feature("user_uue", slot=1)
        self.embedding_feature("item", slot=1 if shared else 2, shared_with="user_uue" if shared else None)
        rule: dict[str, Any] = {"optimizer": Sgd(0.5), "compressor": Fp32()}
        self.users = self.embedding_slice("user_uue", "vec", 2, initializer=Constant(0.1), **rule)
        items = Constant(0.1 if shared else 1.0)
        self.items = self.embedding_slice("item", "vec", 2, initializer=items, **rule)

    def forward(self, batch: Any) -> mt.Output:
        logits = self.users(batch).sum(1) + self.items(batch).sum(1)
        return mt.Output(logits=logits, label=batch.label[:, 0])


def train(**settings: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the rows of users and items after two steps; the first step creates them."""
    config = mt.RunConfig(log_step_count_steps=0, save_summary_steps=0, threads=1, **settings)
    estimator = mt.Estimator(Two, config)
    batch = mt.Batch.from_arrays(
        ids={"user_uue": [[each] for each in USERS], "item": [[each] for each in ITEMS]}, label=[1, 0, 1]
    )
    estimator.train([batch, batch])
    store = estimator.store
    assert isinstance(store, MultiTable)
    return store["user_uue"].lookup(sorted(set(USERS))), store["item"].lookup(ITEMS)


def test_only_rows_of_checked_features_below_the_threshold_stay() -> None:
    users, items = train()
    small_users, free_items = train(ue_euclidean_norm_threshold=1.0)  # the norm of two users is 0.2
    np.testing.assert_array_equal(small_users, np.full_like(users, 0.1))
    assert abs(users - 0.1).min() > 0.01
    assert abs(free_items - 1.0).min() > 0.01
    passed, _ = train(ue_euclidean_norm_threshold=0.1)
    assert abs(passed - 0.1).min() > 0.01, "the second step finds rows above the threshold"
    _, checked_items = train(ue_euclidean_norm_threshold=10.0, ue_fc_names=["item"])
    np.testing.assert_array_equal(checked_items, np.ones_like(items))


def test_gradients_that_are_stopped_do_not_count_in_the_norm() -> None:
    _, items = train(ue_euclidean_norm_threshold=10.0, ue_fc_names=["user_uue"], clip_norm=0.5)
    _, all_items = train(clip_norm=0.5)
    assert abs(items - 1.0).sum() > abs(all_items - 1.0).sum(), "the whole bound is left for the items"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"ue_euclidean_norm_threshold": 1.0, "ue_fc_names": ["nobody"]},
            "ue_fc_names has 'nobody', expected features",
        ),
        ({"ue_fc_names": ["item"]}, "ue_euclidean_norm_threshold is None, expected both"),
        ({"ue_euclidean_norm_threshold": -1.0}, "ue_euclidean_norm_threshold is -1.0"),
    ],
)
def test_a_check_that_cannot_work_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        mt.Estimator(Two, mt.RunConfig(**settings))


def test_a_feature_that_shares_rows_with_an_unchecked_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="feature 'item' shares the rows of table 'user_uue'"):
        mt.Estimator(lambda: Two(shared=True), mt.RunConfig(ue_euclidean_norm_threshold=1.0))

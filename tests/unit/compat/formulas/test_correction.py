from __future__ import annotations

import math

import numpy as np
import pytest

from monolith.compat.formulas.correction import clip_logits, correct_logits, logit_bound
from monolith.core.errors import ConfigError


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def test_the_rate_is_taken_off_in_log_space() -> None:
    logits = np.array([-2.0, 0.0, 3.0])
    rates = np.array([1.0, 0.5, 0.1])
    assert correct_logits(logits, rates) == pytest.approx(logits - np.log(rates))
    assert correct_logits(logits, None).tolist() == logits.tolist()


def test_sampling_negatives_is_undone() -> None:
    # Of a population with odds p / (1 - p), keep a share r of the negatives: the corrected logit gives the new odds.
    p, r = 0.02, 0.1
    in_sample = p / (p + (1 - p) * r)
    true_logit = math.log(p / (1 - p))
    assert sigmoid(correct_logits([true_logit], r))[0] == pytest.approx(in_sample)


def test_the_form_for_fast_emit() -> None:
    logits = np.array([-800.0, -1.0, 2.0, 800.0])
    corrected = correct_logits(logits, 0.5, sample_bias=True)
    assert corrected[1:3] == pytest.approx(np.log(sigmoid(logits[1:3])) - math.log(0.5))
    assert corrected[0] == pytest.approx(-800 - math.log(0.5))
    assert corrected[3] == pytest.approx(-math.log(0.5))
    assert correct_logits(logits, None, sample_bias=True)[3] == pytest.approx(0)


def test_precision_is_kept() -> None:
    assert correct_logits(np.zeros(2, np.float32), 0.5).dtype == np.float32
    assert correct_logits([1, 2], 0.5).dtype == np.float64
    assert clip_logits(np.zeros(2, np.float32), 0.1).dtype == np.float32


def test_logits_are_cut_off_at_the_bound() -> None:
    bound = logit_bound(0.01)
    assert bound == pytest.approx(math.log(99))
    assert clip_logits([-100.0, 0.5, 100.0], 0.01) == pytest.approx([-bound, 0.5, bound])
    assert clip_logits([100.0], 0.99) == pytest.approx([bound])


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="sample_rate has"):
        correct_logits([0.0, 0.0], [1.0, rate])
    with pytest.raises(ConfigError, match="smallest_probability is"):
        clip_logits([0.0], rate)

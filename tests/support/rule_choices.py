"""Optimizers with settings that reach every branch of their rules."""

from __future__ import annotations

import monolith as mt
from monolith.embedding.optimizers import Optimizer

__all__ = ["CHOICES"]

CHOICES: list[Optimizer] = [
    mt.Sgd(0.5),
    mt.Adagrad(0.1),
    mt.Adagrad(0.1, weight_decay_factor=0.01, initial_accumulator_value=0.0),
    mt.Adadelta(0.3, weight_decay_factor=0.02),
    mt.Adam(0.05),
    mt.Adam(0.05, use_nesterov=True, weight_decay_factor=0.1),
    mt.Amsgrad(0.05),
    mt.Amsgrad(0.05, use_nesterov=True),
    mt.Momentum(0.1),
    mt.Momentum(0.1, use_nesterov=True, weight_decay_factor=0.1),
    mt.MovingAverage(0.8),
    mt.RmsProp(0.1, weight_decay_factor=0.1),
    mt.RmsPropV2(0.1),
    mt.Ftrl(0.1, l1_regularization_strength=0.3, l2_regularization_strength=0.1, beta=0.5),
    mt.Ftrl(0.0),
    mt.GroupFtrl(0.1, l1_regularization_strength=0.5, l2_regularization_strength=0.1),
    mt.GroupFtrl(0.0),
    mt.GroupAdagrad(0.1, l2_regularization_strength=2.0, weight_decay_factor=0.01),
    mt.GroupAdagrad(0.1, initial_accumulator_value=0.0),
    mt.DynamicWdAdagrad(0.1, weight_decay_factor=0.2, dynamic_wd_temperature=3.0),
    mt.DynamicWdAdagrad(0.1, weight_decay_factor=0.2, decouple_weight_decay=False, flip_direction=False),
    mt.DynamicWdAdagrad(0.1, weight_decay_factor=0.2, enable_dynamic_wd=False),
    mt.BatchSoftmax(0.3),
    mt.DelayCompensated(mt.Adagrad(0.1), lambda_=0.5),
]

"""Losses: heads, in-batch softmax and AUC, learning to rank. Functions of tensors."""

from __future__ import annotations

from monolith.layers.losses.batch_softmax import batch_softmax_loss
from monolith.layers.losses.delayed_feedback import DelayedFeedback, delayed_feedback_loss
from monolith.layers.losses.heads import sigmoid_loss_and_pred, softmax_loss_and_pred
from monolith.layers.losses.inbatch_auc import inbatch_auc_loss
from monolith.layers.losses.lambda_weights import (
    DCGLambdaWeight,
    IdentityLambdaWeight,
    LambdaWeight,
    ListMLELambdaWeight,
    PrecisionLambdaWeight,
    ndcg_lambda_weight,
    p_list_mle_lambda_weight,
    reciprocal_rank_lambda_weight,
)
from monolith.layers.losses.list_grouping import group_by_list
from monolith.layers.losses.ranking import (
    RankingLossKey,
    RankingReduction,
    approx_ndcg_loss,
    list_mle_loss,
    make_loss_fn,
    mean_squared_loss,
    pairwise_hinge_loss,
    pairwise_logistic_loss,
    pairwise_soft_zero_one_loss,
    sigmoid_cross_entropy_loss,
    softmax_loss,
)

__all__ = [
    # heads
    "sigmoid_loss_and_pred",
    "softmax_loss_and_pred",
    # delayed feedback
    "DelayedFeedback",
    "delayed_feedback_loss",
    # in-batch
    "batch_softmax_loss",
    "inbatch_auc_loss",
    # learning to rank
    "RankingLossKey",
    "RankingReduction",
    "make_loss_fn",
    "pairwise_hinge_loss",
    "pairwise_logistic_loss",
    "pairwise_soft_zero_one_loss",
    "softmax_loss",
    "sigmoid_cross_entropy_loss",
    "mean_squared_loss",
    "list_mle_loss",
    "approx_ndcg_loss",
    "group_by_list",
    # lambda weights
    "LambdaWeight",
    "DCGLambdaWeight",
    "IdentityLambdaWeight",
    "ListMLELambdaWeight",
    "PrecisionLambdaWeight",
    "ndcg_lambda_weight",
    "p_list_mle_lambda_weight",
    "reciprocal_rank_lambda_weight",
]

"""Layers, losses and dense optimizers: plain torch modules and functions, without tables or clusters.

Names by family: ``monolith.layers.MLP``. Activations, initializers, regularizers, losses, clipping and optimizers are
also modules: ``monolith.layers.activations.get("prelu")``, ``monolith.layers.losses.softmax_loss``.
"""

from __future__ import annotations

from monolith.layers import activations, clipping, initializers, losses, optimizers, regularizers
from monolith.layers.base_layer import BaseLayer
from monolith.layers.bias import AddBias
from monolith.layers.clipping import GradClipType
from monolith.layers.co_action import CAN
from monolith.layers.compressed_interaction import CIN
from monolith.layers.cross import DCN, DCNType
from monolith.layers.dense import Dense, RowPartitioner
from monolith.layers.dien import DIEN
from monolith.layers.din import DIN
from monolith.layers.dmr import DMR_U2I
from monolith.layers.embedding_search import MixedEmbedOpComb
from monolith.layers.feature_insight import feature_insight
from monolith.layers.feature_selection import IRazor, SeNet, iRazor
from monolith.layers.fid_counter import fid_counter
from monolith.layers.grad_norm import GradNorm
from monolith.layers.interaction import FFM, FM, AllInt, AutoInt, CDot, GroupInt, ffm
from monolith.layers.layer import Layer, layer_losses
from monolith.layers.lhuc import LHUCTower
from monolith.layers.logit_correction import LogitCorrection
from monolith.layers.losses import (
    batch_softmax_loss,
    inbatch_auc_loss,
    make_loss_fn,
    sigmoid_loss_and_pred,
    softmax_loss_and_pred,
)
from monolith.layers.merging import MergeType, extend_as_list, merge_tensor_list
from monolith.layers.mlp import MLP, MLPOptions
from monolith.layers.mmoe import MMoE
from monolith.layers.normalization import BatchNorm, LayerNorm
from monolith.layers.optimizers import Adamom, DenseRmsProp, split_by_optimizer
from monolith.layers.ple import PLE
from monolith.layers.pooling import AvgPooling, MaxPooling, SumPooling
from monolith.layers.recurrent import (
    AGRUCell,
    dynamic_rnn_with_attention,
    rnn_with_attention,
    static_rnn_with_attention,
)
from monolith.layers.shampoo import Shampoo
from monolith.layers.snr import SNR
from monolith.layers.subset_sampling import continuous_topk, gumbel_keys, sample_subset

__all__ = [
    # modules
    "activations",
    "clipping",
    "initializers",
    "losses",
    "optimizers",
    "regularizers",
    # the base, and its losses
    "BaseLayer",
    "Layer",
    "layer_losses",
    # towers
    "AddBias",
    "Dense",
    "LHUCTower",
    "MLP",
    "MLPOptions",
    "RowPartitioner",
    # norms and pooling
    "AvgPooling",
    "BatchNorm",
    "GradNorm",
    "LayerNorm",
    "MaxPooling",
    "SumPooling",
    # interactions
    "AllInt",
    "AutoInt",
    "CAN",
    "CDot",
    "CIN",
    "DCN",
    "DCNType",
    "FFM",
    "FM",
    "GroupInt",
    "ffm",
    # feature selection
    "IRazor",
    "MixedEmbedOpComb",
    "SeNet",
    "iRazor",
    # sequences
    "AGRUCell",
    "DIEN",
    "DIN",
    "DMR_U2I",
    "dynamic_rnn_with_attention",
    "rnn_with_attention",
    "static_rnn_with_attention",
    # several tasks
    "MMoE",
    "PLE",
    "SNR",
    # heads and losses
    "LogitCorrection",
    "batch_softmax_loss",
    "inbatch_auc_loss",
    "make_loss_fn",
    "sigmoid_loss_and_pred",
    "softmax_loss_and_pred",
    # smaller functions
    "MergeType",
    "continuous_topk",
    "extend_as_list",
    "feature_insight",
    "fid_counter",
    "gumbel_keys",
    "merge_tensor_list",
    "sample_subset",
    # training
    "Adamom",
    "DenseRmsProp",
    "GradClipType",
    "Shampoo",
    "split_by_optimizer",
]

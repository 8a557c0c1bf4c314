"""Transforms of rows: filters, labels, sampling, features and negatives.

A transform is a frozen dataclass; ``build`` makes the native operation that a dataset runs. Functions on arrays are in
``ragged``.
"""

from monolith.data.transforms.base import BuildContext, RowTransform, Transform
from monolith.data.transforms.data_source import FilterBySource, SetDataSource
from monolith.data.transforms.features import FeatureCombine, StringToFid, SwitchSlot
from monolith.data.transforms.filters import FilterByAction, FilterByFids, FilterByLabel
from monolith.data.transforms.item_pool import ItemPool, PooledItem, pools_of, restore_pools, save_pools
from monolith.data.transforms.labels import (
    INVALID_LABEL,
    AddLabel,
    FillMultiRankOutput,
    LabelNormalization,
    LabelUpperBound,
    MultiLabelGen,
    ScatterLabel,
    TaskLabel,
    UseFieldAsLabel,
)
from monolith.data.transforms.logic import Compose, LogicalOr
from monolith.data.transforms.negatives import InBatchNegatives, NegativeGen
from monolith.data.transforms.sampling import ActionWeight, InstanceReweight, NegativeSample, SpecialStrategy
from monolith.data.transforms.text import parse_transform_config
from monolith.data.transforms.values import AddAction, FilterByFeatureValue, FilterByValue

__all__ = [
    # base classes
    "BuildContext",
    "Transform",
    "RowTransform",
    "Compose",
    "LogicalOr",
    "parse_transform_config",
    # filters
    "FilterByFids",
    "FilterByAction",
    "FilterByLabel",
    "FilterByValue",
    "FilterByFeatureValue",
    "FilterBySource",
    "SpecialStrategy",
    # labels
    "INVALID_LABEL",
    "AddAction",
    "AddLabel",
    "TaskLabel",
    "ScatterLabel",
    "MultiLabelGen",
    "LabelUpperBound",
    "LabelNormalization",
    "UseFieldAsLabel",
    "FillMultiRankOutput",
    # sampling and negatives
    "NegativeSample",
    "InstanceReweight",
    "ActionWeight",
    "NegativeGen",
    "InBatchNegatives",
    "ItemPool",
    "PooledItem",
    "pools_of",
    "save_pools",
    "restore_pools",
    # features
    "SwitchSlot",
    "FeatureCombine",
    "StringToFid",
    "SetDataSource",
]

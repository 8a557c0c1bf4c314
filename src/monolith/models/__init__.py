"""Ready-made models: built from :mod:`monolith.layers`, declared like user models, and known to the CLI by name.

``mt.models.DeepFM(sparse=["user_id", "item_id"], dense=["price"])`` makes one; :func:`build` makes one by name and
:func:`from_schema` from the schema of the data.
"""

from __future__ import annotations

from monolith.models.catalog import MODELS, build, from_schema
from monolith.models.dcnv2 import DCNv2
from monolith.models.deepfm import DeepFM
from monolith.models.dien import DIEN
from monolith.models.din import DIN
from monolith.models.dlrm import DLRM
from monolith.models.fields import TableOptions
from monolith.models.mmoe import MMoE
from monolith.models.two_tower import TwoTower

__all__ = [
    # by name
    "MODELS",
    "build",
    "from_schema",
    # the models
    "DCNv2",
    "DIEN",
    "DIN",
    "DLRM",
    "DeepFM",
    "MMoE",
    "TwoTower",
    # how their rows are kept
    "TableOptions",
]

"""Tables as modules of torch, for any training loop: ``EmbeddingBag`` and its kind over collisionless tables.

Rows are not parameters: ``backward`` updates them by the optimizer of their table, or ``TableOptimizer`` does at its
``step``. ``save`` and ``load`` write and read the rows; a ``state_dict`` refers to them.
"""

from monolith.nn.collections import EmbeddingBagCollection, EmbeddingCollection, Feature
from monolith.nn.embedding import Embedding, EmbeddingBag
from monolith.nn.gpu import GpuStore
from monolith.nn.module import RowsNotSavedWarning, TableModule
from monolith.nn.optimizer import TableOptimizer
from monolith.nn.saving import load, save

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "EmbeddingCollection",
    "Feature",
    "GpuStore",
    "RowsNotSavedWarning",
    "TableModule",
    "TableOptimizer",
    "load",
    "save",
]

"""``EmbeddingBagCollection`` and ``EmbeddingCollection``: many features over shared tables, one call per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.embedding import TableSpec
from monolith.embedding.initializers import Initializer
from monolith.embedding.optimizers import Optimizer
from monolith.nn.embedding import make_spec
from monolith.nn.jagged import Ragged, keyed_tensor, read_ragged
from monolith.nn.module import TableModule
from monolith.nn.table_set import InputColumn

__all__ = ["EmbeddingBagCollection", "EmbeddingCollection", "Feature"]


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of a collection. Features with the same ``table`` share rows, so their other fields are equal."""

    name: str
    dim: int
    _: KW_ONLY
    table: str | None = None
    """Name of the table; None = the feature's name."""
    mode: Literal["sum", "mean"] = "sum"
    """How a bag becomes one row; an ``EmbeddingCollection`` does not pool."""
    optimizer: Optimizer | None = None
    """Update rule; None = ``Adagrad()``."""
    initializer: Initializer | None = None
    """First values of a row; None = uniform in plus or minus ``dim ** -0.5``."""
    expire_days: int | None = None
    """Days after its last update that a row leaves; None = never."""
    max_bytes: int | None = None
    """Budget of the table; None = unbounded."""
    padding: int | None = None
    """Id that counts nowhere and has no row."""

    def __post_init__(self) -> None:
        if self.mode not in ("sum", "mean"):
            raise ConfigError(f"mode of feature {self.name!r} is {self.mode!r}, expected 'sum' or 'mean'; choose one")

    def spec(self) -> TableSpec:
        """Return the spec of the feature's table."""
        return make_spec(
            self.table or self.name,
            self.dim,
            self.optimizer,
            self.initializer,
            expire_days=self.expire_days,
            max_bytes=self.max_bytes,
        )


class _Collection(TableModule):
    """A module with several features.

    Args:
        features: The features, with different names.
        device: Device of the rows.
        group: Processes over which the rows are sharded; every call is then collective. None keeps all rows here.
        host_bytes: Host memory per table for rows that have no room on a GPU; each feature needs ``max_bytes``.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        *,
        device: str | torch.device = "cpu",
        group: ProcessGroup | None = None,
        host_bytes: int | None = None,
    ) -> None:
        features = tuple(features)
        if not features:
            raise ConfigError("features is empty, expected at least one mt.nn.Feature")
        names = [each.name for each in features]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"features has {repeated[0]!r} twice; names must differ")
        specs: dict[str, TableSpec] = {}
        for each in features:
            spec = each.spec()
            if specs.setdefault(spec.name, spec) != spec:
                raise ConfigError(
                    f"feature {each.name!r} shares table {spec.name!r} with other settings; give equal dim, optimizer, "
                    "initializer, expire_days and max_bytes"
                )
        columns = [InputColumn(each.name, each.table or each.name, each.mode, each.padding) for each in features]
        super().__init__(list(specs.values()), columns, device=device, group=group, host_bytes=host_bytes)
        self.features = features
        self.names = tuple(names)

    @override
    def extra_repr(self) -> str:
        return ", ".join(f"{each.name}: {each.dim}" for each in self.features)


class EmbeddingBagCollection(_Collection):
    """Pools the ids of many features in one call.

    >>> import monolith as mt, torch
    >>> many = mt.nn.EmbeddingBagCollection([mt.nn.Feature("user", 2), mt.nn.Feature("item", 4)])
    >>> bags = {"user": (torch.tensor([7, 8]), torch.tensor([0, 1, 2])),
    ...         "item": (torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3]))}
    >>> {name: tuple(rows.shape) for name, rows in many(bags).items()}
    {'user': (2, 2), 'item': (2, 4)}
    """

    def forward(self, features: Ragged | Any) -> Any:
        """Return per feature one row per bag: a dict, or a ``KeyedTensor`` for a ``KeyedJaggedTensor``."""
        values, offsets = read_ragged(features, self.names)
        return keyed_tensor(features, self.names, self._read_bags(values, offsets))


class EmbeddingCollection(_Collection):
    """Returns one row per id of many features in one call; ``mode`` of a feature does not count."""

    def forward(self, features: Ragged | Any) -> dict[str, Tensor]:
        """Return per feature one row per id, (N, D), in the order of its values."""
        values, _ = read_ragged(features, self.names)
        return dict(zip(self.names, self._read_rows(values), strict=True))

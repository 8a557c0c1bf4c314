"""``Embedding`` and ``EmbeddingBag``: the modules of torch over a table that takes any 64-bit id."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.embedding import Adagrad, RandomUniform, SliceSpec, Table, TableSpec
from monolith.embedding.initializers import Initializer
from monolith.embedding.optimizers import Optimizer
from monolith.embedding.specs import NEVER_EXPIRES_DAYS
from monolith.nn.host import check_offsets
from monolith.nn.module import TableModule
from monolith.nn.table_set import InputColumn

__all__ = ["Embedding", "EmbeddingBag", "check_ids", "make_spec"]


def make_spec(
    name: str,
    dim: int,
    optimizer: Optimizer | None,
    initializer: Initializer | None,
    *,
    expire_days: int | None = None,
    max_bytes: int | None = None,
    seed: int = 0,
) -> TableSpec:
    """Return the spec of a table whose absent rows read as their first values, as the rows of torch do."""
    piece = SliceSpec(
        dim, optimizer=optimizer or Adagrad(), initializer=initializer or RandomUniform(-(dim**-0.5), dim**-0.5)
    )
    days = expire_days or NEVER_EXPIRES_DAYS
    return TableSpec(name, [piece], on_miss="initial", seed=seed, expire_days=days, max_bytes=max_bytes)


class _OneTable(TableModule):
    """A module with one table, from a spec or from its parts."""

    def __init__(
        self,
        embedding_dim: int | None,
        spec: TableSpec | None,
        optimizer: Optimizer | None,
        initializer: Initializer | None,
        *,
        name: str,
        mode: Literal["sum", "mean"],
        padding_idx: int | None,
        device: str | torch.device,
        host_bytes: int | None,
    ) -> None:
        if spec is None:
            if embedding_dim is None:
                raise ConfigError("embedding_dim is None, expected the width of a row; or give spec")
            spec = make_spec(name, embedding_dim, optimizer, initializer)
        elif optimizer is not None or initializer is not None or embedding_dim not in (None, spec.dim):
            raise ConfigError("spec is given beside embedding_dim, optimizer or initializer; the spec holds them all")
        if len(spec.slices) != 1:
            raise ConfigError(f"spec has {len(spec.slices)} slices, expected 1; use mt.Model for several")
        columns = [InputColumn("input", spec.name, mode, padding_idx)]
        super().__init__([spec], columns, device=device, host_bytes=host_bytes)
        self.embedding_dim = spec.dim
        self.padding_idx = padding_idx

    @property
    def table(self) -> Table:
        """The table, for direct use."""
        return self.store[next(iter(self.store.specs))]

    @override
    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.embedding_dim}{padding}"


class Embedding(_OneTable):
    """``torch.nn.Embedding`` over a collisionless table: any int64 id has its own row.

    A new id reads as its first values, which depend on the id and the seed only. In training, ``backward`` updates the
    rows by the table's optimizer, and inserts those of new ids. ``eval()`` and ``torch.no_grad()`` change nothing.

    >>> import monolith as mt, torch
    >>> module = mt.nn.Embedding(2, optimizer=mt.Sgd(0.5), initializer=mt.Zeros())
    >>> module(torch.tensor([[7, -1]])).sum().backward()
    >>> module(torch.tensor([7, 8])).tolist()
    [[-0.5, -0.5], [0.0, 0.0]]

    Args:
        embedding_dim: Width of a row.
        optimizer: Update rule; None = ``Adagrad()``.
        initializer: First values of a row; None = uniform in plus or minus ``embedding_dim ** -0.5``.
        padding_idx: Id that reads as zeros and has no row.
        spec: The whole table instead of the parts: expiry, admission, budget.
        name: Name of the table; the tables of one export have different names.
        device: Device of the rows.
        host_bytes: Host memory for rows that have no room on a GPU, beside ``max_bytes`` of the spec.
    """

    def __init__(
        self,
        embedding_dim: int | None = None,
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        padding_idx: int | None = None,
        spec: TableSpec | None = None,
        name: str = "table",
        device: str | torch.device = "cpu",
        host_bytes: int | None = None,
    ) -> None:
        super().__init__(
            embedding_dim,
            spec,
            optimizer,
            initializer,
            name=name,
            mode="sum",
            padding_idx=padding_idx,
            device=device,
            host_bytes=host_bytes,
        )

    def forward(self, input: Tensor) -> Tensor:  # the name in torch.nn.Embedding
        """Return one row per id, in the shape of the input with one dimension more."""
        check_ids("input", input)
        (rows,) = self._read_rows([input.reshape(-1)])
        return rows.reshape(*input.shape, self.embedding_dim).to(input.device)


class EmbeddingBag(_OneTable):
    """``torch.nn.EmbeddingBag`` over a collisionless table; see ``Embedding`` for updates.

    >>> import monolith as mt, torch
    >>> bag = mt.nn.EmbeddingBag(2, optimizer=mt.Sgd(1.0), initializer=mt.Ones(), mode="sum")
    >>> out = bag(torch.tensor([3, 4, 4]), torch.tensor([0, 1]))
    >>> out.tolist()
    [[1.0, 1.0], [2.0, 2.0]]
    >>> out.sum().backward()
    >>> bag(torch.tensor([[3], [4]])).tolist()
    [[0.0, 0.0], [-1.0, -1.0]]

    Args:
        embedding_dim: Width of a row.
        optimizer: Update rule; None = ``Adagrad()``.
        initializer: First values of a row; None = uniform in plus or minus ``embedding_dim ** -0.5``.
        mode: How a bag becomes one row.
        include_last_offset: Whether ``offsets`` ends with the number of ids.
        padding_idx: Id that counts in no bag and has no row.
        spec: The whole table instead of the parts: expiry, admission, budget.
        name: Name of the table; the tables of one export have different names.
        device: Device of the rows.
        host_bytes: Host memory for rows that have no room on a GPU, beside ``max_bytes`` of the spec.
    """

    def __init__(
        self,
        embedding_dim: int | None = None,
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        mode: Literal["sum", "mean", "max"] = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        spec: TableSpec | None = None,
        name: str = "table",
        device: str | torch.device = "cpu",
        host_bytes: int | None = None,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ConfigError(f"mode is {mode!r}, expected 'sum', 'mean' or 'max'; choose one")
        super().__init__(
            embedding_dim,
            spec,
            optimizer,
            initializer,
            name=name,
            mode="sum" if mode == "max" else mode,
            padding_idx=padding_idx,
            device=device,
            host_bytes=host_bytes,
        )
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self,
        input: Tensor,  # the name in torch.nn.EmbeddingBag
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Return one row per bag, (B, D).

        Args:
            input: (N,) ids with ``offsets``, or (B, L) ids: B bags of L ids.
            offsets: (B,) where each bag begins, or (B + 1,) with ``include_last_offset``.
            per_sample_weights: A weight per id, in the shape of ``input``; mode "sum" only.
        """
        check_ids("input", input)
        ids, bounds = _flatten(input, offsets, self.include_last_offset)
        if per_sample_weights is None and self.mode != "max":
            (rows,) = self._read_bags([ids], [bounds])
            return rows.to(input.device)
        if per_sample_weights is not None and (self.mode != "sum" or per_sample_weights.shape != input.shape):
            raise ConfigError(
                f"per_sample_weights has shape {tuple(per_sample_weights.shape)} with mode {self.mode!r}, expected "
                f"{tuple(input.shape)}, the shape of input, with mode 'sum'"
            )
        return self._pool(ids, bounds, per_sample_weights).to(input.device)

    def _pool(self, ids: Tensor, bounds: Tensor, weights: Tensor | None) -> Tensor:
        """Pool by torch, from one row per id: the way to weights, their gradient, and the largest values."""
        if bounds.device.type == "cpu" and not torch.compiler.is_compiling():
            check_offsets("input", bounds.numpy(), len(ids))  # torch pools other ids where offsets fall
        (rows,) = self._read_rows([ids])
        rows = rows.to(ids.device)
        places = torch.arange(len(ids), device=ids.device)
        padding = None
        if self.padding_idx is not None:
            padding = len(ids)
            places = torch.where(ids == self.padding_idx, padding, places)
            rows = torch.cat([rows, rows.new_zeros(1, self.embedding_dim)])
        if weights is not None:
            weights = weights.reshape(-1)
            rows = rows.to(weights.dtype)
        elif not len(ids):
            rows = torch.cat([rows, rows.new_zeros(1, self.embedding_dim)])  # torch refuses an empty weight
        return torch.nn.functional.embedding_bag(
            places,
            rows,
            bounds,
            mode=self.mode,
            per_sample_weights=weights,
            include_last_offset=True,
            padding_idx=padding,
        )


def check_ids(what: str, ids: object) -> None:
    """Raise ``ConfigError`` unless ``ids`` is a tensor of whole numbers."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
        kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise ConfigError(f"{what} is of {kind}, expected a tensor of int64 ids; convert it with .long()")


def _flatten(ids: Tensor, offsets: Tensor | None, include_last: bool) -> tuple[Tensor, Tensor]:
    """Return flat ids, and the bounds of their bags with the last one."""
    if ids.dim() == 2:
        if offsets is not None:
            raise ConfigError(f"offsets is given with input of shape {tuple(ids.shape)}; a matrix has a bag per row")
        count, length = ids.shape
        return ids.reshape(-1), torch.arange(count + 1, device=ids.device) * length
    if ids.dim() != 1 or offsets is None or offsets.dim() != 1:
        found = None if offsets is None else tuple(offsets.shape)
        raise DimensionMismatch(
            f"input has shape {tuple(ids.shape)} and offsets {found}, expected (N,) with (B,), or (B, L) alone"
        )
    check_ids("offsets", offsets)
    if include_last:
        return ids, offsets.long()
    return ids, torch.cat([offsets.long(), offsets.new_full((1,), ids.shape[0], dtype=torch.int64)])

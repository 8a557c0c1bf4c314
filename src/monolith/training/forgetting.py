"""Remove the rows of ids that a model must forget, and remove them again after a restore.

``find_rows`` turns values of features into rows, ``erase`` removes rows from any store, and ``erase_forgotten`` repeats
the receipts that a restored checkpoint predates. ``BlockedIds`` reads which ids stay forgotten. The hook ``ForgetHook``
handles requests during a run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.artifacts import read_manifest
from monolith.artifacts.forget_receipts import ForgetLedger, ForgottenRow, Receipt, ids_by_table
from monolith.core.clock import Clock
from monolith.core.errors import ArtifactError, ConfigError
from monolith.core.fid import as_signed
from monolith.embedding import EmbeddingStore, MultiTable
from monolith.features.declaration import Declaration
from monolith.features.value_ids import id_of_text
from monolith.training.checkpoints.choice import CHECKPOINTS

__all__ = ["MAX_VALUES", "REFRESH_S", "BlockedIds", "erase", "erase_forgotten", "find_rows", "forgotten_since"]

logger = logging.getLogger(__name__)

MAX_VALUES = 100_000
"""Values of one request; a receipt names each of them."""
REFRESH_S = 1.0
"""Interval at which workers look for new blocks."""
_SETTLED_S = 2.0
"""Age of a change of a folder above which its time stamp tells it from later changes."""


@runtime_checkable
class _Deletes(Protocol):
    def delete(self, ids: Mapping[str, ArrayLike]) -> Mapping[str, NDArray[np.bool_]]: ...


def find_rows(
    declaration: Declaration, values: Sequence[str], features: Sequence[str], tables: Sequence[str]
) -> tuple[ForgottenRow, ...]:
    """Return the rows of all values, in all features and tables.

    Args:
        declaration: The inputs of the model.
        values: Values as text; their ids follow from the declared type of each feature. In a table they are ids.
        features: Names of features.
        tables: Names of tables.

    Raises:
        ConfigError: A name does not exist, a value does not have the type, or the request names nothing.
    """
    if not values or len(values) > MAX_VALUES:
        raise ConfigError(f"values is {len(values)} long, expected 1 to {MAX_VALUES}; split the request")
    if not features and not tables:
        raise ConfigError("features and tables are empty, expected at least one name; give --feature or --table")
    rows = [_row_of_feature(declaration, name, value) for name in features for value in values]
    rows += [_row_of_table(declaration, name, value) for name in tables for value in values]
    return tuple({(row.table, row.id, row.feature): row for row in rows}.values())


def _row_of_feature(declaration: Declaration, name: str, value: str) -> ForgottenRow:
    feature = declaration.features.get(name)
    if feature is None:
        known = ", ".join(declaration.features)
        raise ConfigError(f"feature is {name!r}, expected one of {known}")
    return ForgottenRow(table=feature.table, id=id_of_text(feature, value), feature=name, value=value)


def _row_of_table(declaration: Declaration, name: str, value: str) -> ForgottenRow:
    if name not in declaration.tables:
        raise ConfigError(f"table is {name!r}, expected one of {', '.join(declaration.tables)}")
    try:
        return ForgottenRow(table=name, id=as_signed(int(value, 0)), value=value)
    except ValueError as error:
        raise ConfigError(f"id in table {name!r} is {value!r}, expected an integer of 64 bits") from error


def erase(store: EmbeddingStore, ids: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.bool_]]:
    """Remove rows by table; return for each id whether it had a row.

    Ranks call it together: each removes the rows that it owns.

    Raises:
        ConfigError: The store cannot remove rows.
    """
    local = getattr(store, "tables", None)
    target: Any = local if isinstance(local, MultiTable) else store
    if not isinstance(target, _Deletes):
        raise ConfigError(f"store is {type(store).__name__}, which cannot remove single rows; clear its tables")
    known = {table: each for table, each in ids.items() if table in store.specs}
    return dict(target.delete(known))


def forgotten_since(model_dir: str | Path, checkpoint: Path) -> list[Receipt]:
    """Return the receipts whose rows a checkpoint may still hold.

    These are the receipts of the model folder of the checkpoint, and of ``model_dir`` if that is another folder.
    """
    home = checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint.parent
    try:
        number = read_manifest(checkpoint).number
    except ArtifactError:
        number = 0  # a snapshot of tables has no manifest of a checkpoint
    receipts = ForgetLedger(home).newer_than(number)
    if model_dir and Path(model_dir).resolve() != home.resolve():
        receipts += ForgetLedger(model_dir).newer_than(0)
    return receipts


def erase_forgotten(model_dir: str | Path, store: EmbeddingStore, checkpoint: Path) -> int:
    """Remove the rows of forgotten ids that a restored checkpoint has brought back; return their number.

    Args:
        model_dir: Folder of the run; empty = without receipts.
        store: The restored rows.
        checkpoint: Folder of the checkpoint.
    """
    receipts = forgotten_since(model_dir, checkpoint)
    if not receipts:
        return 0
    existed = erase(store, ids_by_table(row for receipt in receipts for row in receipt.rows))
    rows = sum(int(each.sum()) for each in existed.values())
    numbers = ",".join(str(receipt.number) for receipt in receipts)
    logger.info("forgotten rows removed again checkpoint=%s receipts=%s rows=%d", checkpoint.name, numbers, rows)
    return rows


class BlockedIds:
    """Returns the blocked ids of a model folder; a new block takes effect within ``REFRESH_S``. For one thread.

    Args:
        model_dir: The folder.
        clock: Measures the interval.
    """

    def __init__(self, model_dir: str | Path, clock: Clock) -> None:
        self._ledger = ForgetLedger(model_dir)
        self._clock = clock
        self._due_s = -math.inf
        self._changed_s: float | None = None
        self._ids: Mapping[str, NDArray[np.int64]] = {}

    def __call__(self) -> Mapping[str, NDArray[np.int64]]:
        """Return the ids by table whose updates are dropped."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._due_s:
            self._due_s = now_s + REFRESH_S
            self._refresh()
        return self._ids

    def _refresh(self) -> None:
        try:
            changed_s = self._ledger.folder.stat().st_mtime
        except FileNotFoundError:
            self._ids, self._changed_s = {}, None
            return
        if changed_s == self._changed_s:
            return
        is_settled = abs(self._clock.now_s() - changed_s) > _SETTLED_S
        self._ids, self._changed_s = self._ledger.blocked(), changed_s if is_settled else None

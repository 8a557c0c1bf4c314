"""Receipts of forgotten ids: ``<model_dir>/forgotten/receipt-000001.json``, one sealed file per request.

``Receipt`` records which rows were removed, in which cut and in which checkpoint the removal is, and which older files
still hold them. ``ForgetLedger`` reads and writes the receipts of one model folder.

A receipt is written before the rows are removed, and completed when a checkpoint without them is on disk. A run that
restores an earlier checkpoint removes the rows again: ``ForgetLedger.newer_than`` returns the receipts to repeat.
Not thread safe: one run writes the ledger of its folder.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.durable_files import make_folder, replace_file, seal, unseal
from monolith.core.errors import ManifestInvalid

__all__ = ["FOLDER", "ForgetLedger", "ForgottenRow", "Receipt", "Remainder", "ids_by_table"]

FOLDER = "forgotten"
"""Folder of the receipts in a model folder."""

_NAME = re.compile(r"receipt-(\d{6,})\.json")
_FORMAT, _VERSION = "monolith.forget", 1

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenRow:
    """One removed row."""

    table: str
    id: int
    feature: str | None = None
    """Feature of the request; None for an id given by table."""
    value: str
    """The value as requested."""
    had_row: bool = False
    """Whether the table had a row of the id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """A place that still holds the rows, and the rule that removes it."""

    kind: str
    """checkpoint, segment, export or event log."""
    path: str
    removed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Outcome of one request to forget ids."""

    number: int = 0
    """Place in the ledger, from 1; set by ``ForgetLedger.begin``."""
    requested_at_s: float
    completed_at_s: float | None = None
    """Unix seconds at which the last of cut and checkpoint was on disk; None until then."""
    step: int = 0
    """Steps finished when the rows were removed."""
    is_blocked: bool = False
    """Whether later updates of the ids are dropped too."""
    rows: tuple[ForgottenRow, ...]
    published: str | None = None
    """Folder to which the removal was published; None without one."""
    cut: int | None = None
    """Number of the first published cut without the rows."""
    checkpoint: str | None = None
    """First checkpoint without the rows."""
    checkpoint_number: int | None = None
    """Number in the manifest of that checkpoint."""
    remaining: tuple[Remainder, ...] = ()
    """Older files that still hold the rows, as of ``completed_at_s``."""

    @property
    def is_complete(self) -> bool:
        """Whether a checkpoint without the rows is on disk."""
        return self.completed_at_s is not None

    @property
    def ids(self) -> dict[str, Ids]:
        """The ids by table, unique and ascending."""
        return ids_by_table(self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the receipt as JSON values."""
        values = dataclasses.asdict(self)
        return {
            "format": _FORMAT,
            "version": _VERSION,
            **{name: list(value) if isinstance(value, tuple) else value for name, value in values.items()},
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Receipt:
        """Return the receipt of JSON values.

        Raises:
            ManifestInvalid: The values have another format or version.
        """
        if body.get("format") != _FORMAT or body.get("version") != _VERSION:
            raise ManifestInvalid(
                f"format is {body.get('format')!r} version {body.get('version')!r}, expected {_FORMAT!r} version "
                f"{_VERSION}; use the release that wrote the receipt"
            )
        try:
            values = {field.name: body[field.name] for field in dataclasses.fields(cls)}
            values["rows"] = tuple(ForgottenRow(**row) for row in values["rows"])
            values["remaining"] = tuple(Remainder(**place) for place in values["remaining"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ManifestInvalid(f"receipt lacks or has a field too many: {error}") from error


def ids_by_table(rows: Iterable[ForgottenRow]) -> dict[str, Ids]:
    """Return the ids of rows by table, unique and ascending."""
    tables: dict[str, set[int]] = {}
    for row in rows:
        tables.setdefault(row.table, set()).add(row.id)
    return {table: np.array(sorted(ids), np.int64) for table, ids in sorted(tables.items())}


class ForgetLedger:
    """The receipts of one model folder.

    Args:
        model_dir: The model folder; the first receipt creates the subfolder.
    """

    def __init__(self, model_dir: str | PathLike[str]) -> None:
        self.folder = Path(model_dir) / FOLDER

    def all(self) -> list[Receipt]:
        """Return the receipts, oldest first.

        Raises:
            ManifestInvalid: A receipt is corrupt. It is not skipped: a skipped one would bring its rows back.
        """
        paths = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        return [_read(path) for path in paths if _NAME.fullmatch(path.name)]

    def begin(self, receipt: Receipt) -> Receipt:
        """Write a receipt under the next number; return it with the number."""
        make_folder(self.folder)
        last = max((each.number for each in self.all()), default=0)
        numbered = dataclasses.replace(receipt, number=last + 1)
        self.write(numbered)
        return numbered

    def write(self, receipt: Receipt) -> None:
        """Replace the file of a receipt atomically."""
        replace_file(self.path_of(receipt), seal(receipt.to_json()))

    def path_of(self, receipt: Receipt) -> Path:
        """Return the file of a receipt."""
        return self.folder / f"receipt-{receipt.number:06d}.json"

    def newer_than(self, checkpoint_number: int) -> list[Receipt]:
        """Return the receipts whose rows a checkpoint may still hold.

        Args:
            checkpoint_number: Number in the manifest of the checkpoint.
        """
        return [
            each
            for each in self.all()
            if each.checkpoint_number is None or not each.is_complete or each.checkpoint_number > checkpoint_number
        ]

    def blocked(self) -> dict[str, Ids]:
        """Return the ids by table whose updates are dropped."""
        return ids_by_table(row for each in self.all() if each.is_blocked for row in each.rows)


def _read(path: Path) -> Receipt:
    try:
        return Receipt.from_json(unseal(path.read_bytes()))
    except (ManifestInvalid, ValueError) as error:
        raise ManifestInvalid(f"'{path}' is corrupt: {error}; restore it from a copy, or repeat the request") from error

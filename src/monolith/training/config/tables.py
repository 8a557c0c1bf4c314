"""The memory of the tables in the process that trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from monolith.embedding.specs import WhenFull
from monolith.training.config._checks import check_choice, check_whole

__all__ = ["TableMemoryConfig"]


@dataclass(frozen=True, kw_only=True)
class TableMemoryConfig:
    """Limits of the tables in this process."""

    table_memory_limit_mb: int | None = None
    """Memory in MiB that all tables of this process may take; None = only the ``max_bytes`` of each table."""
    when_tables_full: WhenFull | None = None
    """Reaction of full tables: refuse ends the training, evict_oldest drops old rows; None = by table."""

    def __post_init__(self) -> None:
        check_whole(self, "table_memory_limit_mb", at_least=1)
        check_choice(self, "when_tables_full", get_args(WhenFull))

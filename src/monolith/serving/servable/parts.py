"""Protocols of the remote parts of a model: rows and the dense part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from monolith.artifacts.program_session import ProgramSession
from monolith.artifacts.torch_session import TorchSession
from monolith.embedding.store import Ids, Rows
from monolith.serving.servable.cut_history import CutKey

__all__ = ["Arrays", "DenseRunner", "OwnProgram", "PartialRows", "EntryRows", "Records"]

Arrays: TypeAlias = dict[str, NDArray[Any]]
Records: TypeAlias = Sequence[bytes | bytearray | memoryview]
"""Serialized records of one kind."""


class EntryRows(Protocol):
    """Source of an entry's rows. Thread safe."""

    def pull(self, ids: Mapping[str, Ids], cut: CutKey | None = None) -> Mapping[str, Rows]:
        """Return one row per id and table; the ids of a table are unique.

        Args:
            ids: Ids by table.
            cut: Key of the cut; None takes the newest rows of each part.

        Raises:
            OtherCut: A part holds other cuts only.
        """
        ...

    def tries(self) -> Iterator[None]:
        """Yield once per attempt, with pauses, until the timeout of a batch."""
        ...

    @property
    def allows_degraded(self) -> bool:
        """Whether a degraded result is preferred to an error."""
        ...


class PartialRows(dict[str, Rows]):
    """Rows with zeros in place of missing ones.

    Args:
        rows: Table to rows.
        missing: Names of the unavailable parts.
    """

    def __init__(self, rows: Mapping[str, Rows], missing: Sequence[str]) -> None:
        super().__init__(rows)
        self.missing = tuple(missing)


class DenseRunner(Protocol):
    """Runs the dense part on another server."""

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str], cut: CutKey | None = None) -> Arrays:
        """Compute the named outputs with the weights of a cut; None takes the newest.

        Raises:
            OtherCut: The server holds other cuts only.
        """
        ...


OwnProgram = ProgramSession | TorchSession
"""Dense part in the export's folder. A session has fixed weights."""

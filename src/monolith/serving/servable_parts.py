"""What a model asks others for when it is not all in one folder: rows, and the dense part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from monolith.artifacts.program_session import ProgramSession
from monolith.artifacts.torch_session import TorchSession
from monolith.embedding.store import Ids, Rows
from monolith.serving.cut_history import CutKey

__all__ = ["Arrays", "DenseRunner", "OwnProgram", "PartialRows", "RowSource"]

Arrays: TypeAlias = dict[str, NDArray[Any]]


class RowSource(Protocol):
    """Where an entry's rows come from when they are not in its folder."""

    def pull(self, ids: Mapping[str, Ids], cut: CutKey | None = None) -> Mapping[str, Rows]:
        """Return one row per id of every table named; the ids of a table are unique.

        Args:
            ids: The ids, by table.
            cut: Whose rows; None: the newest of each part.

        Raises:
            OtherCut: Somebody has rows of other cuts only.
        """
        ...

    def tries(self) -> Iterator[None]:
        """Yield again and again, with pauses, for as long as a batch may wait for its rows."""
        ...

    @property
    def allows_degraded(self) -> bool:
        """Whether a marked answer is better than none."""
        ...


class PartialRows(dict[str, Rows]):
    """Rows of which some could not be had, and are zeros.

    Args:
        rows: Table to rows.
        missing: Who did not give theirs.
    """

    def __init__(self, rows: Mapping[str, Rows], missing: Sequence[str]) -> None:
        super().__init__(rows)
        self.missing = tuple(missing)


class DenseRunner(Protocol):
    """What computes the dense part when it is not in the folder."""

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str], cut: CutKey | None = None) -> Arrays:
        """Compute the named outputs, with the weights of a cut; None: the newest.

        Raises:
            OtherCut: It has weights of other cuts only.
        """
        ...


OwnProgram = ProgramSession | TorchSession
"""A dense part that is in the folder; its weights are those it was opened with."""

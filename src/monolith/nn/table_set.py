"""``TableSet``: the tables behind a module, and the reads and updates of one step.

A step has one ``Plan`` per read: the distinct ids of each table, and where they occur. The plan of a forward pass
serves its backward pass too. ``host`` and ``gpu`` implement the plans.

Modules are used from one training thread at a time; the tables themselves may be read by other threads.
"""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.embedding import Table, TableSpec, torch_threads

__all__ = [
    "NO_PEERS",
    "DistinctGradients",
    "GradientSink",
    "InputColumn",
    "Peers",
    "Plan",
    "TableSet",
    "table_set",
]

_KEPT_PLANS = 4
"""Plans kept between forward and backward: one per forward pass that a training step makes before its backward."""

_numbers = itertools.count(1)
_sets: weakref.WeakValueDictionary[int, TableSet] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class InputColumn:
    """One input of a module: a feature, its table, and how its ids become rows."""

    name: str
    table: str
    mode: Literal["sum", "mean"] = "sum"
    padding: int | None = None
    """Id that has no row and counts nowhere."""


@dataclass(frozen=True, slots=True, eq=False)
class DistinctGradients:
    """Gradients of distinct ids of one table."""

    ids: Tensor
    """(U,) int64."""
    grads: Tensor
    """(U, D) float32."""
    counts: Tensor
    """(U,) occurrences behind each gradient."""


class GradientSink(Protocol):
    """Receives the gradients of a backward pass instead of the tables."""

    def add(self, gradients: Mapping[str, DistinctGradients]) -> None:
        """Add gradients, by table."""
        ...


class Plan(Protocol):
    """One read of a module."""

    def read(self, *, before_update: bool) -> list[Tensor]:
        """Return the output of every column; ``before_update`` prepares an update of the same rows."""
        ...

    def sum_gradients(self, grads: Sequence[Tensor]) -> Mapping[str, DistinctGradients]:
        """Return the gradients of the rows, from those of the outputs."""
        ...

    def update(self, grads: Sequence[Tensor], *, time_s: int, step: int) -> None:
        """Take one optimizer step per distinct id, with the gradients of the outputs."""
        ...


class Peers:
    """The processes that share the rows of a module: here, this process alone."""

    size = 1
    """Number of the processes."""
    is_chief = True
    """Whether this process writes the files that the processes share."""

    @property
    def is_sharded(self) -> bool:
        """Whether other processes hold a part of the rows."""
        return False

    def broadcast(self, text: str) -> str:
        """Return the text of the chief."""
        return text

    def all_agree(self, is_fine: bool) -> bool:
        """Return whether the flag is true in all processes."""
        return is_fine

    def check_one_process(self) -> None:
        """Raise ``ConfigError`` if other processes hold a part of the rows."""
        if self.is_sharded:
            raise ConfigError(
                f"rows are sharded over {self.size} ranks, expected all rows in one process; call mt.nn.save and "
                "mt.nn.load into a module without group"
            )


NO_PEERS = Peers()


class TableSet(ABC):
    """The tables of a module: reads rows, and applies their gradients or hands them to a sink.

    Custom operators refer to a set by ``number``, because their arguments are numbers and tensors.

    Args:
        specs: The tables.
        columns: The inputs of the module.
        device: Device of the rows and of all tensors.
    """

    def __init__(self, specs: Sequence[TableSpec], columns: Sequence[InputColumn], device: torch.device) -> None:
        self.specs = {spec.name: spec for spec in sorted(specs, key=lambda spec: spec.name)}
        self.columns = tuple(columns)
        self.device = device
        self.number = next(_numbers)
        self.anchor = torch.zeros(1, device=device, requires_grad=True)
        """Makes outputs require a gradient, so that backward reaches the tables. It is not a parameter.

        It has an element: a compiler computes no sum of empty gradients, and would drop both updates of two calls."""
        self.step = 0
        """Updates so far; schedules of the tables read it."""
        self.time_s = 0
        """Event time that updates record with their rows, for expiry."""
        self.sink: GradientSink | None = None
        self.peers: Peers = NO_PEERS
        """The processes that share the rows."""
        self._plans: dict[tuple[int, ...], tuple[Sequence[Tensor], Plan]] = {}
        _sets[self.number] = self

    def dim(self, column: int) -> int:
        """Return the width of a column's rows."""
        return self.specs[self.columns[column].table].dim

    # --- one place per device ---

    @abstractmethod
    def plan_bags(self, inputs: Sequence[Tensor]) -> Plan:
        """Plan one pooled row per bag. Inputs: the values of all columns, then their offsets."""

    @abstractmethod
    def plan_rows(self, inputs: Sequence[Tensor]) -> Plan:
        """Plan one row per id. Inputs: the ids of all columns."""

    @abstractmethod
    def apply(self, gradients: Mapping[str, DistinctGradients], rates: Mapping[str, float]) -> None:
        """Take one optimizer step per id, with the given rates."""

    @abstractmethod
    def row_counts(self) -> dict[str, int]:
        """Return the number of rows of every table."""

    @abstractmethod
    def host_tables(self) -> Mapping[str, Table]:
        """Return the tables in host memory, by name: themselves, or copies of those on a GPU."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write all rows to a new folder, as a snapshot of tables."""

    @abstractmethod
    def read(self, folder: Path) -> None:
        """Replace all rows by a snapshot; a damaged one changes nothing and raises."""

    # --- one step ---

    def read_bags(self, values: Sequence[Tensor], offsets: Sequence[Tensor], *, keep_plan: bool) -> list[Tensor]:
        """Return per column the pooled rows of its bags, (B, D)."""
        return self._read(self.plan_bags, [*values, *offsets], keep_plan=keep_plan)

    def update_bags(self, values: Sequence[Tensor], offsets: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Update the rows of all columns by the gradients of ``read_bags``."""
        self._update(self.plan_bags, [*values, *offsets], grads)

    def read_rows(self, ids: Sequence[Tensor], *, keep_plan: bool) -> list[Tensor]:
        """Return per column one row per id, (N, D)."""
        return self._read(self.plan_rows, ids, keep_plan=keep_plan)

    def update_rows(self, ids: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Update the rows of all columns by the gradients of ``read_rows``."""
        self._update(self.plan_rows, ids, grads)

    def take_gradients(self, plan: Plan, grads: Sequence[Tensor]) -> None:
        """Update the rows of a plan by the gradients of its outputs, or hand these to the sink."""
        if self.sink is not None:
            self.sink.add(plan.sum_gradients(grads))
        else:
            plan.update(grads, time_s=self.time_s, step=self.step)
            self.step += 1

    def push(self, gradients: Mapping[str, DistinctGradients], rates: Mapping[str, float]) -> None:
        """Take one optimizer step for the given rows, and count it."""
        self.apply(gradients, rates)
        self.step += 1

    def _read(
        self, make_plan: Callable[[Sequence[Tensor]], Plan], inputs: Sequence[Tensor], *, keep_plan: bool
    ) -> list[Tensor]:
        with torch_threads(torch.get_num_threads()):
            plan = make_plan(inputs)
            if keep_plan:
                while len(self._plans) >= _KEPT_PLANS:
                    del self._plans[next(iter(self._plans))]
                self._plans[_key_of(inputs)] = (inputs, plan)  # the inputs stay alive, so their addresses stay theirs
            return plan.read(before_update=keep_plan)

    def _update(
        self, make_plan: Callable[[Sequence[Tensor]], Plan], inputs: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> None:
        _, plan = self._plans.pop(_key_of(inputs), (None, None))
        with torch_threads(torch.get_num_threads()):
            self.take_gradients(make_plan(inputs) if plan is None else plan, grads)


def table_set(number: int) -> TableSet:
    """Return the set with a number.

    Raises:
        ConfigError: The module of that set was deleted.
    """
    found = _sets.get(number)
    if found is None:
        raise ConfigError("the module of these tables was deleted before its backward pass; keep a reference to it")
    return found


def _key_of(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    # Views of one tensor may begin at the same address and have equal sizes.
    return tuple(
        number
        for each in tensors
        for number in (each.data_ptr(), each._version, each.itemsize, *each.shape, *each.stride())
    )

"""Checks the calls of many clients to a store: no acknowledged push is lost, and no push is applied twice.

Every client adds whole numbers in a separate column (``numbers_table``: SGD with rate 1, rows that begin at 0), one
call after the other. So a cell of a row is the sum of one client's pushes that took effect. The times of the calls
determine which pushes a killed server may lose, and which sums a concurrent lookup may read. All times come from one
clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from monolith.embedding import Sgd, SliceSpec, TableSpec
from monolith.embedding.shard_map import shard_of

__all__ = ["Cells", "History", "Kill", "Lookup", "NotedPush", "Violation", "numbers_table"]

Cells: TypeAlias = Mapping[int, Sequence[int]]
"""Key to one number per client."""

_Vector: TypeAlias = NDArray[np.int64]
_MOST_SUBSETS = 12
_MOST_STEPS = 300_000
"""Steps of one search for lost pushes: some seconds."""


def numbers_table(clients: int) -> TableSpec:
    """Return the table of such a history: ``numbers``, with one column per client."""
    return TableSpec("numbers", [SliceSpec(clients, optimizer=Sgd(1.0))])


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedPush:
    """One client adds amounts to keys."""

    client: int
    amounts: Mapping[int, int]
    """Key to a number above 0."""
    start: float
    end: float | None
    """When it was acknowledged; None = never, so it may have taken effect at any later time, or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A client reads keys."""

    cells: Cells
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A server loses its memory and restarts with its durable state."""

    shard: int
    start: float
    """Time before the kill."""
    end: float
    """Time between its end and its restart."""
    durable_until: float
    """Updates acknowledged before this time are durable: the kill less the interval of the log, or the request of the
    last snapshot."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A contradiction in a history."""

    kind: Literal["lost", "doubled", "impossible", "stale", "early", "backwards"]
    """One of:

    - lost: an acknowledged push is missing in the final rows.
    - doubled: the final rows hold more than all pushes.
    - impossible: the final sum matches no set of pushes.
    - stale: a lookup is older than a push that was acknowledged before it.
    - early: a lookup is newer than every push that was requested before it.
    - backwards: a lookup is older than an earlier lookup.
    """
    text: str


@dataclass(slots=True)
class History:
    """All calls and kills. Several threads may append to the lists; call ``violations`` afterwards."""

    clients: int
    shards: int
    pushes: list[NotedPush] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    def violations(self, final: Cells) -> list[Violation]:
        """Return the violations, given the rows of the store after all calls; empty if all is well.

        Args:
            final: Every key that was pushed, with its row.
        """
        found: list[Violation] = []
        for client in range(self.clients):
            calls = sorted((push for push in self.pushes if push.client == client), key=lambda push: push.start)
            for shard in range(self.shards):
                kills = sorted((kill for kill in self.kills if kill.shard == shard), key=lambda kill: kill.start)
                stream = _Stream(client, shard, self.shards, calls, kills, final)
                found += stream.violations()
                found += stream.violations_of(self.lookups)
        return found


class _Stream:
    """Calls of one client to one server, in sequence, so a kill loses a run of calls without gaps."""

    def __init__(
        self, client: int, shard: int, shards: int, calls: Sequence[NotedPush], kills: Sequence[Kill], final: Cells
    ) -> None:
        self._client = client
        self._kills = kills
        names = sorted(final)
        places = shard_of(np.array(names, np.int64), shards) if names else ()
        self._keys = [key for key, place in zip(names, places, strict=True) if place == shard]
        columns = {key: column for column, key in enumerate(self._keys)}
        self._acknowledged: list[_Step] = []
        self._doubtful: list[_Step] = []
        for call in calls:
            amounts = np.zeros(len(self._keys), np.int64)
            for key in call.amounts.keys() & columns.keys():
                amounts[columns[key]] = call.amounts[key]
            if amounts.any():
                (self._doubtful if call.end is None else self._acknowledged).append(_Step(call, amounts))
        self._value = np.array([final[key][client] for key in self._keys], np.int64)
        # Steps that kills lost according to the last state, to the candidates: the state does not identify them.
        self._lost: dict[int, list[Kill]] = {}

    # --- the last state ---

    def violations(self) -> Iterator[Violation]:
        everything = _total([*self._acknowledged, *self._doubtful], len(self._keys))
        missing = everything - self._value
        try:
            chosen = _explain(missing, [self._runs(kill) for kill in self._kills], [s.amounts for s in self._doubtful])
        except _Undecided:
            # Too many unacknowledged pushes: check the bounds of each key, and let kills take all that they may.
            yield from self._violations_of_bounds(missing)
            self._note_lost(range(len(self._acknowledged)))
            return
        if chosen is None:
            yield from self._unexplained(missing)
            return
        for run in chosen:
            self._note_lost(range(run.first, run.last + 1) if run.first >= 0 else range(0))

    def _note_lost(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            step = self._acknowledged[number]
            if kills := [kill for kill in self._kills if _may_take(kill, step)]:
                self._lost[number] = kills

    def _runs(self, kill: Kill) -> list[_Run]:
        """Return the pushes that a kill may have lost: all since some moment that are not durable."""
        last = sum(step.call.start < kill.end for step in self._acknowledged) - 1
        runs = [_NOTHING]
        while last >= 0:
            amounts = np.zeros(len(self._keys), np.int64)
            for first in range(last, -1, -1):
                step = self._acknowledged[first]
                if step.end < kill.durable_until:
                    break
                amounts = amounts + step.amounts
                runs.append(_Run(first, last, amounts))
            if self._acknowledged[last].end < kill.start:
                break
            last -= 1  # pending during the kill: it may have taken effect afterwards, with earlier steps lost
        return runs

    def _unexplained(self, missing: _Vector) -> Iterator[Violation]:
        is_explained = False
        for violation in self._violations_of_bounds(missing):
            yield violation
            is_explained = True
        if not is_explained:
            sums = dict(zip(self._keys, self._value.tolist(), strict=True))
            yield Violation("impossible", f"client {self._client}: no possible pushes add up to {sums}")

    def _violations_of_bounds(self, missing: _Vector) -> Iterator[Violation]:
        """Find keys that lack more than kills and doubtful pushes explain, or have more than all pushes."""
        most = _total(
            [step for step in self._acknowledged if any(_may_take(kill, step) for kill in self._kills)]
            + self._doubtful,
            len(self._keys),
        )
        for key, lacks, value, may_lack in zip(self._keys, missing, self._value, most, strict=True):
            where = f"key {key}, client {self._client}: the sum is {value}"
            if lacks < 0:
                yield Violation("doubled", f"{where}, which is {-lacks} more than was ever pushed")
            elif lacks > may_lack:
                yield Violation("lost", f"{where}, of which {lacks} are missing and at most {may_lack} may be")

    # --- lookups ---

    def violations_of(self, lookups: Sequence[Lookup]) -> Iterator[Violation]:
        seen: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
        for lookup in sorted(lookups, key=lambda lookup: lookup.start):
            for column, key in enumerate(self._keys):
                if key not in lookup.cells:
                    continue
                value = lookup.cells[key][self._client]
                yield from self._violations_of_cell(lookup, key, column, value)
                yield from self._backwards(lookup, key, value, seen[key])
                seen[key].append((lookup.start, lookup.end, value))

    def _violations_of_cell(self, lookup: Lookup, key: int, column: int, value: int) -> Iterator[Violation]:
        surely, perhaps = 0, []
        for number, step in enumerate(self._acknowledged):
            amount = int(step.amounts[column])
            kills = self._lost.get(number, ())
            if not amount or step.call.start >= lookup.end or (kills and kills[-1].end <= lookup.start):
                continue
            if step.end <= lookup.start and (not kills or lookup.end <= kills[0].start):
                surely += amount
            else:
                perhaps.append(amount)
        perhaps += [int(s.amounts[column]) for s in self._doubtful if s.call.start < lookup.end and s.amounts[column]]
        where = f"key {key}, client {self._client}: a lookup from {lookup.start:g} to {lookup.end:g} gave {value}"
        if value < surely:
            yield Violation("stale", f"{where}, and {surely} was acknowledged before")
        elif value > surely + sum(perhaps):
            yield Violation("early", f"{where}, and no more than {surely + sum(perhaps)} can have been there")
        elif len(perhaps) <= _MOST_SUBSETS and value - surely not in _subset_sums(perhaps):
            yield Violation("impossible", f"{where}, which is {surely} and some of {perhaps} for no choice of them")

    def _backwards(
        self, lookup: Lookup, key: int, value: int, seen: Sequence[tuple[float, float, int]]
    ) -> Iterator[Violation]:
        """Find lookups below an earlier lookup, without a kill between them."""
        for start, end, earlier in seen:
            between = any(kill.start < lookup.end and kill.end > start for kill in self._kills)
            if end < lookup.start and earlier > value and not between:
                yield Violation(
                    "backwards",
                    f"key {key}, client {self._client}: a lookup at {lookup.start:g} gave {value}, and one that ended "
                    f"at {end:g} had given {earlier}",
                )
                return


@dataclass(frozen=True, slots=True)
class _Step:
    call: NotedPush
    amounts: _Vector

    @property
    def end(self) -> float:
        return float("inf") if self.call.end is None else self.call.end


@dataclass(frozen=True, slots=True)
class _Run:
    """Acknowledged steps from ``first`` to ``last``, and their sum; -1 for no step."""

    first: int
    last: int
    amounts: _Vector | int


_NOTHING = _Run(-1, -1, 0)


def _may_take(kill: Kill, step: _Step) -> bool:
    return step.call.start < kill.end and step.end >= kill.durable_until


def _total(steps: Sequence[_Step], keys: int) -> _Vector:
    return sum((step.amounts for step in steps), np.zeros(keys, np.int64))


class _Undecided(Exception):
    """The search for lost pushes took too many steps."""


def _explain(missing: _Vector, kills: Sequence[Sequence[_Run]], doubtful: Sequence[_Vector]) -> list[_Run] | None:
    """Choose one run per kill, so that the rest of the missing sum is a sum of some doubtful pushes.

    Returns:
        The runs; None if no choice explains the sum.

    Raises:
        _Undecided: The search took too many steps.
    """
    subsets = _Subsets(doubtful, len(missing))
    most = [subsets.total]
    for runs in reversed(kills):
        largest = np.zeros_like(missing)
        for run in runs:
            largest = np.maximum(largest, run.amounts)
        most.append(most[-1] + largest)
    most.reverse()

    def choose(number: int, left: _Vector, since: int) -> list[_Run] | None:
        subsets.count_step()
        if (left < 0).any() or (left > most[number]).any():
            return None
        if number == len(kills):
            return [] if subsets.has_sum(left) else None
        for run in kills[number]:
            if run.first >= 0 and run.first <= since:
                continue  # a lost push cannot be lost again
            rest = choose(number + 1, left - run.amounts, max(since, run.last))
            if rest is not None:
                return [run, *rest]
        return None

    return choose(0, missing, -1)


class _Subsets:
    """Decides whether some of the vectors add up to a sum.

    Every vector belongs to one layer: the first column, in a fixed order, where it is not 0. The search takes one layer
    after the other. In a layer it tries only subsets with the right sum in the layer's column, of which there are few.
    The possible sums of all suffixes of the layer are known, so the search finds these subsets without a detour.

    Args:
        vectors: Vectors of numbers from 0.
        columns: Length of each vector.
    """

    def __init__(self, vectors: Sequence[_Vector], columns: int) -> None:
        self._steps = 0
        self.total: _Vector = sum(vectors, np.zeros(columns, np.int64))
        """Sum of all vectors."""
        waiting = [vector for vector in vectors if vector.any()]
        self._layers: list[_Layer] = []
        while waiting:
            counts = np.count_nonzero(np.array(waiting), axis=0)
            column = min(np.flatnonzero(counts).tolist(), key=lambda column: int(counts[column]))
            layer = [vector for vector in waiting if vector[column]]
            waiting = [vector for vector in waiting if not vector[column]]
            self._layers.append(_Layer(column, layer, sum(waiting, np.zeros(columns, np.int64))))

    def count_step(self) -> None:
        """Count a step of a search; raise ``_Undecided`` after too many steps."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise _Undecided

    def has_sum(self, left: _Vector) -> bool:
        """Return whether some of the vectors add up to ``left``."""
        return self._has_sum(0, left)

    def _has_sum(self, number: int, left: _Vector) -> bool:
        if number == len(self._layers):
            return not left.any()
        layer = self._layers[number]
        return any(
            self._has_sum(number + 1, rest)
            for rest in self._rests(layer, 0, left)
            if rest[layer.column] == 0 and (rest <= layer.later).all()
        )

    def _rests(self, layer: _Layer, at: int, left: _Vector) -> Iterator[_Vector]:
        """Iterate over the differences of ``left`` and subsets of the layer that have the right sum in its column."""
        self.count_step()
        if (left < 0).any() or not layer.sums[at] >> int(left[layer.column]) & 1:
            return
        if at == len(layer.vectors):
            yield left
            return
        yield from self._rests(layer, at + 1, left)
        yield from self._rests(layer, at + 1, left - layer.vectors[at])


class _Layer:
    """Vectors that are not 0 in one column, among those that no earlier layer has."""

    def __init__(self, column: int, vectors: Sequence[_Vector], later: _Vector) -> None:
        self.column = column
        self.vectors = vectors
        self.later = later
        """Sum of the vectors of later layers."""
        sums = [1]
        for vector in reversed(vectors):
            sums.append(sums[-1] | sums[-1] << int(vector[column]))
        self.sums = sums[::-1]
        """Possible sums in the column from each place on, as bits."""


def _subset_sums(amounts: Sequence[int]) -> set[int]:
    sums = {0}
    for amount in amounts:
        sums |= {one + amount for one in sums}
    return sums

"""Choose the sub-graphs of a layout that a container serves.

Main type: ``LayoutFilters``. A filter is ``<pattern>;<condition>``. The pattern is a regular expression in which
``{name}`` matches a number; it is matched at the start of the sub-graph name, not to its end. The condition is an
expression over the bound names. ``${shard_id}`` and ``${shard_num}`` are replaced first.

Invariants: without filters every sub-graph is taken. A condition that cannot be computed rejects its sub-graph.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from monolith.agent.expressions import Condition
from monolith.core.errors import ConfigError

__all__ = ["LayoutFilters", "normalise_pattern"]

logger = logging.getLogger(__name__)

_MAX_DIGITS = 18
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def normalise_pattern(pattern: str) -> str:
    r"""Return a pattern as a regular expression.

    >>> normalise_pattern("a{x}b{y}"), normalise_pattern("{i")
    ('a(?P<x>\\d+)b(?P<y>\\d+)', '{i')
    """
    return _PLACEHOLDER.sub(r"(?P<\1>\\d+)", pattern)


@dataclass(frozen=True, slots=True)
class _Filter:
    text: str
    expression: re.Pattern[str]
    condition: Condition

    def accepts(self, sub_graph: str) -> bool:
        match = self.expression.match(sub_graph)
        if match is None:
            return False
        values = {name: value for name, value in match.groupdict().items() if value is not None}
        for name, value in values.items():
            if not (value.isdigit() and len(value) <= _MAX_DIGITS):
                raise ConfigError(
                    f"{name} is {value!r:.80}, expected a number of at most {_MAX_DIGITS} digits; rename it"
                )
        return self.condition.holds({name: int(value) for name, value in values.items()})


class LayoutFilters:
    """The filters of one container.

    Args:
        filters: Texts of the file, in order.
        shard_id: Own shard; None counts as 0.
        shard_count: Number of shards.

    Raises:
        ConfigError: A filter is invalid.
    """

    def __init__(self, filters: Sequence[str], *, shard_id: int | None = None, shard_count: int = 1) -> None:
        shard = {"${shard_id}": str(max(shard_id or 0, 0)), "${shard_num}": str(max(shard_count, 1))}
        self._filters = tuple(_parse(text, shard) for text in filters)
        self._failed: set[tuple[str, str]] = set()

    @property
    def texts(self) -> list[str]:
        """Each filter as ``<regular expression>;<condition>``."""
        return [each.text for each in self._filters]

    def accepts(self, sub_graph: str) -> bool:
        """Return True if one filter takes the sub-graph, or if there is no filter."""
        return not self._filters or any(self._try(each, sub_graph) for each in self._filters)

    def select(self, sub_graphs: Iterable[str]) -> list[str]:
        """Return the sub-graphs that are taken, in their order."""
        return [name for name in sub_graphs if self.accepts(name)]

    def _try(self, each: _Filter, sub_graph: str) -> bool:
        try:
            return each.accepts(sub_graph)
        except ConfigError as error:
            if (each.text, sub_graph) not in self._failed:
                self._failed.add((each.text, sub_graph))
                logger.warning(
                    "sub-graph rejected, filter not computable sub_graph=%s filter=%r error=%s",
                    sub_graph,
                    each.text,
                    str(error).splitlines()[0],
                )
            return False


def _parse(text: str, shard: dict[str, str]) -> _Filter:
    filled = text
    for variable, value in shard.items():
        filled = filled.replace(variable, value)
    pattern, _, condition = filled.partition(";")
    pattern = normalise_pattern(pattern.strip())
    condition = condition.strip() or "True"
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"layout_filters is {text!r}, whose pattern is invalid ({error}); write <pattern>;<condition>"
        ) from error
    try:
        parsed = Condition(condition, list(expression.groupindex))
    except ConfigError as error:
        raise ConfigError(f"layout_filters is {text!r}: {error}") from error
    return _Filter(text=f"{pattern};{condition}", expression=expression, condition=parsed)

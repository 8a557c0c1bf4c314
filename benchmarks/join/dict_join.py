"""The peer: the same join in plain Python dicts, with protobuf's own parser and serializer."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from monolith.stream.line_id import ACTION, MESSAGES

__all__ = ["DictJoin"]


class DictJoin:
    """Joins in-order impressions with actions of one task. No late policy, duplicates, sampling or durability."""

    def __init__(self, window_ms: int, out_of_order_ms: int) -> None:
        self._window_ms = window_ms
        self._out_of_order_ms = out_of_order_ms
        self._open: dict[tuple[bytes, int], tuple[int, Any, set[int]]] = {}
        self._held: dict[tuple[bytes, int], set[int]] = {}
        self._order: deque[tuple[int, tuple[bytes, int]]] = deque()
        self._largest_ms = 0

    def join(self, values: Sequence[bytes]) -> list[bytes]:
        """Return the examples of the windows that a batch closes."""
        for value in values:
            example: Any = MESSAGES.Example.FromString(value)
            line_id = example.line_id
            identity, time_ms = (line_id.request_key, line_id.item_id), line_id.event_time_ms
            if time_ms > self._largest_ms:
                self._largest_ms = time_ms
            if line_id.event_kind == ACTION:
                if (entry := self._open.get(identity)) is None:
                    self._held.setdefault(identity, set()).update(line_id.actions)
                elif time_ms < entry[0] + self._window_ms:
                    entry[2].update(line_id.actions)
            elif identity not in self._open:
                self._open[identity] = (time_ms, example, self._held.pop(identity, set()))
                self._order.append((time_ms + self._window_ms, identity))
        return self._close(self._largest_ms - self._out_of_order_ms)

    def _close(self, watermark_ms: int) -> list[bytes]:
        rows = []
        while self._order and self._order[0][0] <= watermark_ms:
            _, example, codes = self._open.pop(self._order.popleft()[1])
            example.label.append(float(1 in codes))
            line_id = example.line_id
            line_id.actions.extend(sorted(codes))
            line_id.sample_rate = 1.0
            line_id.emission = 0
            rows.append(example.SerializeToString())
        return rows

"""Head results of one rank as bytes for rank 0, which joins those of all ranks like one batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from monolith.training.run import HeadResult

__all__ = ["join_heads", "read_heads", "write_heads"]


def write_heads(heads: Mapping[str, HeadResult]) -> bytes:
    """Return the heads that have a label as bytes; metrics ignore the others."""
    labelled = {name: head for name, head in heads.items() if head.label is not None}
    header = {name: [len(head.predictions), head.is_classification] for name, head in labelled.items()}
    parts = [_columns(head).tobytes() for head in labelled.values()]
    return json.dumps(header).encode() + b"\n" + b"".join(parts)


def read_heads(content: bytes) -> dict[str, HeadResult]:
    """Return the heads that ``write_heads`` wrote."""
    header, _, rest = content.partition(b"\n")
    columns = np.frombuffer(rest, np.float32)
    heads, begin = {}, 0
    for name, (rows, is_classification) in json.loads(header).items():
        predictions, label, mask, weight = columns[begin : begin + 4 * rows].reshape(4, rows)
        begin += 4 * rows
        heads[name] = HeadResult(
            name=name,
            predictions=predictions,
            label=label,
            mask=mask > 0,
            weight=weight,
            is_classification=is_classification,
        )
    return heads


def join_heads(ranks: Sequence[Mapping[str, HeadResult]]) -> dict[str, HeadResult]:
    """Concatenate the results of all ranks, in rank order; a rank without a batch has none."""
    names = dict.fromkeys(name for heads in ranks for name in heads)
    return {name: _join([heads[name] for heads in ranks if name in heads]) for name in names}


def _join(parts: Sequence[HeadResult]) -> HeadResult:
    columns: dict[str, Any] = {
        field: np.concatenate([getattr(part, field) for part in parts])
        for field in ("predictions", "label", "mask", "weight")
    }
    return HeadResult(name=parts[0].name, is_classification=parts[0].is_classification, **columns)


def _columns(head: HeadResult) -> np.ndarray[Any, np.dtype[np.float32]]:
    ones = np.ones(len(head.predictions), np.float32)
    mask = ones if head.mask is None else head.mask
    weight = ones if head.weight is None else head.weight
    return np.stack([np.asarray(each, np.float32) for each in (head.predictions, head.label, mask, weight)])

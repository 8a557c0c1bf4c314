"""What a case found, and the one JSON line it prints. The bars are the benchmark's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np

from measure.timing import Seconds

__all__ = ["Bars", "PeerMissing", "Result", "compare", "skipped", "write"]

Bars = Mapping[str, tuple[float, float]]
"""(must reach, aim) by case. Cases that are not in it have no bar."""


class PeerMissing(Exception):
    """The peer cannot be had on this machine; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one case found. ``ratio`` is ours over peer."""

    case: str
    ours: float | None = None
    peer: float | None = None
    ratio: float | None = None
    unit: str = ""
    rounds: int = 0
    skipped: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of the line."""


def compare(case: str, ours: Seconds, peer: Seconds, work: float, unit: str = "M ids/s", **extra: Any) -> Result:
    """Make a result of the seconds that ``work`` took both sides in each round; the ratio is the rounds' median."""
    return Result(
        case=case,
        ours=work / float(np.median(ours)),
        peer=work / float(np.median(peer)),
        ratio=float(np.median(peer / ours)),
        unit=unit,
        rounds=len(ours),
        extra={"ratio_low": float(np.min(peer / ours)), "ratio_high": float(np.max(peer / ours)), **extra},
    )


def skipped(case: str, why: object) -> Result:
    """Make the result of a case whose peer is missing."""
    return Result(case=case, skipped=str(why))


def write(
    result: Result,
    out: TextIO,
    *,
    bench: str,
    bars: Bars,
    env: Mapping[str, Any],
    lower_is_better: frozenset[str] = frozenset(),
) -> None:
    """Print the line of a result."""
    must, aim = bars.get(result.case, (None, None))
    lower = result.case in lower_is_better
    line: dict[str, Any] = {
        "bench": bench,
        "case": result.case,
        "ours": _rounded(result.ours),
        "peer": _rounded(result.peer),
        "ratio": _rounded(result.ratio),
        "unit": result.unit,
        "better": "lower" if lower else "higher",
        "must": must,
        "aim": aim,
        "ok": _passes(result.ratio, must, lower),
        "rounds": result.rounds,
        **{name: _rounded(value) for name, value in result.extra.items()},
        "env": env,
    }
    if result.skipped is not None:
        line["skipped"] = result.skipped
    print(json.dumps(line), file=out, flush=True)


def _passes(ratio: float | None, must: float | None, lower: bool) -> bool | None:
    if must is None:
        return True
    if ratio is None:
        return None
    return ratio <= must if lower else ratio >= must


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value

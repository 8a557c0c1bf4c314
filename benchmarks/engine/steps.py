"""Cases against a peer's table: the full training step, and the pooled lookup alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from engine.peers import FbgemmTable, OurTable, PeerMissing, TorchTable, check_agreement
from engine.results import Result, compare, progress, skipped
from engine.workload import Sizes, Workload
from measure.timing import interleave

__all__ = ["fbgemm_cases", "torch_cases"]

Peer = FbgemmTable | TorchTable


def fbgemm_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Measure against FBGEMM."""
    return _cases(cases, sizes, FbgemmTable)


def torch_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Measure against torch alone."""
    return _cases(cases, sizes, TorchTable)


def _cases(cases: Sequence[str], sizes: Sizes, make_peer: Callable[[Workload], Peer]) -> Iterator[Result]:
    workload = Workload(sizes)
    try:
        peer = make_peer(workload)
    except PeerMissing as error:
        for case in cases:
            yield skipped(case, error)
        return
    ours = OurTable(workload)
    progress(f"filling {sizes.rows:,} rows of ours and of {peer.name}")
    for rows, values in workload.first_values():
        ours.fill(rows, values)
        peer.fill(rows, values)
    batches = {kind: workload.batches(kind) for kind in ("zipf", "uniform") if any(kind in case for case in cases)}
    for contestant in (ours, peer):
        contestant.use(next(iter(batches.values())))
    check_agreement(ours, peer)

    def measure(case: str, rounds: int) -> Result:
        action, kind, _ = case.split("_")
        for contestant in (ours, peer):
            contestant.use(batches[kind])
        turns = [getattr(contestant, action) for contestant in (ours, peer)]
        seconds = interleave(turns, rounds=rounds, steps=sizes.steps)
        return compare(case, seconds[0], seconds[1], sizes.ids_per_step / 1e6, peer_name=peer.name)

    results = []
    for case in cases:
        progress(case)
        results.append(measure(case, sizes.rounds))
    if sizes.huge_page_rounds and peer.use_huge_pages():
        progress(f"{peer.name} with its memory turned into huge pages")
        results = [_add_huge_pages(result, measure(result.case, sizes.huge_page_rounds)) for result in results]
    yield from results


def _add_huge_pages(default: Result, huge: Result) -> Result:
    """Return the result that the bar is compared with, and the other measurement in extra fields.

    A lookup is compared with the peer in huge pages, which our rows have too. A step is compared with the peer in its
    default form.
    """
    if default.case.startswith("lookup_"):
        extra = {"peer_with_small_pages": default.peer, "ratio_with_small_pages": default.ratio}
        return replace(huge, extra={**huge.extra, **extra})
    extra = {"peer_with_huge_pages": huge.peer, "ratio_with_huge_pages": huge.ratio}
    return replace(default, extra={**default.extra, **extra})

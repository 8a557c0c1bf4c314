"""Cases of requests per second and of waits: our server beside a peer, turn by turn, under the same load."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from measure.results import PeerMissing, Result, skipped
from monolith.serving import Client
from serving.exporting import Exported, scratch_folder
from serving.results import progress
from serving.servers import (
    SETTINGS,
    WITH_OUR_PARSER,
    Generator,
    Load,
    Ours,
    Peer,
    Setting,
    Target,
    check_installed,
    first_request,
)
from serving.workload import MODEL, Sizes, Workload

__all__ = ["traffic_cases"]

_OWN_PARSER = "_own_parser"
TOLERANCE = 1e-3
"""Between scores: our export holds vectors in half precision."""


def traffic_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Export once, and measure beside one peer after the other."""
    peers = []
    for name in SETTINGS:
        wanted = [case for case in cases if case.removesuffix(_OWN_PARSER).endswith(f"_{name}")]
        try:
            check_installed(name)
            peers += [(name, wanted)] if wanted else []
        except PeerMissing as why:
            yield from (skipped(case, why) for case in wanted)
    if not peers:
        return
    with scratch_folder() as folder, Generator() as generator:
        progress(f"exporting {sizes.ids:,} rows")
        exported = Exported(Workload(sizes), folder)
        exported.export(1)
        exported.save_for_torch()
        for name, wanted in peers:
            yield from _beside(name, wanted, sizes, exported, generator)


def _beside(
    name: str, cases: Sequence[str], sizes: Sizes, exported: Exported, generator: Generator
) -> Iterator[Result]:
    """Yield the lines beside a peer, first as users have it, then with our parser inside."""
    lines: dict[str, Result] = {}
    with Ours(exported.versions, exported.requests, sizes.threads) as ours:
        ours.await_version(1)
        for settings, suffix in ((SETTINGS[name], ""), (WITH_OUR_PARSER[name], _OWN_PARSER)):
            ours.pause()
            setting = _best_setting(name, settings, sizes, exported, generator)
            ours.go_on()
            with Peer(name, setting, exported.weights, exported.requests) as peer:
                _check_agreement(ours, peer, exported)
                match = Match(ours, peer, sizes, generator)
                progress(f"rps_{name}, {setting}")
                found = [(full := match.full_load()).result(f"rps_{name}")]
                if f"p99_{name}" in cases or f"p99_{name}{suffix}" in cases:
                    progress(f"p99_{name}, {setting}")
                    found.append(match.half_load(full.peer_per_s / 2))
            for result in found:
                lines[result.case + suffix] = dataclasses.replace(result, case=result.case + suffix)
    yield from (result for case, result in lines.items() if case in cases)


def _best_setting(
    name: str, settings: Sequence[Setting], sizes: Sizes, exported: Exported, generator: Generator
) -> Setting:
    """Return what serves most requests per second here; a quick run takes what did so on two cores."""
    if not sizes.trial_s:
        return settings[0]
    found = {}
    for setting in settings:
        progress(f"trying {name}: {setting}")
        with Peer(name, setting, exported.weights, exported.requests) as peer:
            load = generator.offer(peer.target, clients=sizes.clients, seconds=sizes.trial_s, settle_s=sizes.settle_s)
        found[setting] = load.per_s
    return max(found, key=lambda setting: found[setting])


def _check_agreement(ours: Ours, peer: Peer, exported: Exported) -> None:
    """Refuse to time servers that do not compute the same."""
    record = first_request(exported.requests["example_batch"])
    theirs = peer.ask(first_request(peer.target.requests))
    for address in (ours.address, f"http://{ours.rest_address}"):
        with Client(address) as client:
            scores = client.score(record, "example_batch", model=MODEL)["ctr"]
        apart = float(np.abs(scores - theirs).max())
        if not apart <= TOLERANCE:
            raise RuntimeError(f"{peer.name} and our server at {address} disagree: scores are {apart} apart")


class FullLoad:
    """What clients that ask on and on got, in requests per second by round."""

    def __init__(self, peer: Peer, found: NDArray[np.float64], p99s_ms: NDArray[np.float64]) -> None:
        self._peer = peer
        self._grpc, self._rest, self._theirs = found
        self._p99s_ms = np.median(p99s_ms, axis=1)
        self.peer_per_s = float(np.median(self._theirs))

    def result(self, case: str) -> Result:
        """Return the line: the ratio is that of the faster of our two interfaces, and both are told."""
        by_grpc, by_rest = np.median(self._grpc / self._theirs), np.median(self._rest / self._theirs)
        ours = self._grpc if by_grpc >= by_rest else self._rest
        ratios = ours / self._theirs
        extra: dict[str, Any] = {
            "peer_name": f"{self._peer.name} + torch: {self._peer.setting}",
            "ratio_low": float(ratios.min()),
            "ratio_high": float(ratios.max()),
            "interface": "grpc" if by_grpc >= by_rest else "rest",
            "grpc": float(np.median(self._grpc)),
            "rest": float(np.median(self._rest)),
            "ratio_grpc": float(by_grpc),
            "ratio_rest": float(by_rest),
            **{f"{who}_p99_ms": float(ms) for who, ms in zip(("grpc", "rest", "peer"), self._p99s_ms, strict=True)},
        }
        return Result(
            case=case,
            ours=float(np.median(ours)),
            peer=self.peer_per_s,
            ratio=float(np.median(ratios)),
            unit="requests/s",
            rounds=len(ours),
            extra=extra,
        )


class Match:
    """Our server by gRPC, the same by REST, and a peer, in turns; who has not the turn is held."""

    def __init__(self, ours: Ours, peer: Peer, sizes: Sizes, generator: Generator) -> None:
        self._peer = peer
        self._targets = ((ours, ours.grpc), (ours, ours.rest), (peer, peer.target))
        self._sizes = sizes
        self._generator = generator

    def full_load(self) -> FullLoad:
        """Let every client ask again as soon as it is answered."""
        loads = self._rounds(self._sizes.turn_s, None)
        per_s = np.array([[load.per_s for load in row] for row in loads])
        return FullLoad(self._peer, per_s, np.array([[load.p99_ms() for load in row] for row in loads]))

    def half_load(self, rate: float) -> Result:
        """Send requests at a rate, half of what the peer can do; a wait counts from when its request was due."""
        loads = self._rounds(self._sizes.p99_turn_s, rate)
        grpc, rest, theirs = np.array([[load.p99_ms() for load in row] for row in loads])
        is_grpc = np.median(grpc / theirs) <= np.median(rest / theirs)
        ours = grpc if is_grpc else rest
        medians = [float(np.median(np.concatenate([load.waits_ms for load in row]))) for row in loads]
        extra: dict[str, Any] = {
            "peer_name": f"{self._peer.name} + torch: {self._peer.setting}",
            "ratio_low": float((ours / theirs).min()),
            "ratio_high": float((ours / theirs).max()),
            "interface": "grpc" if is_grpc else "rest",
            "requests_per_s": rate,
            "grpc": float(np.median(grpc)),
            "rest": float(np.median(rest)),
            "ratio_grpc": float(np.median(grpc / theirs)),
            "ratio_rest": float(np.median(rest / theirs)),
            **{f"{who}_median_ms": ms for who, ms in zip(("grpc", "rest", "peer"), medians, strict=True)},
        }
        return Result(
            case=f"p99_{self._peer.name}",
            ours=float(np.median(ours)),
            peer=float(np.median(theirs)),
            ratio=float(np.median(ours / theirs)),
            unit="ms",
            rounds=len(ours),
            extra=extra,
        )

    def _rounds(self, seconds: float, rate: float | None) -> list[list[Load]]:
        loads: list[list[Load]] = [[] for _ in self._targets]
        for number in range(self._sizes.rounds):
            places = range(len(self._targets)) if number % 2 == 0 else reversed(range(len(self._targets)))
            for place in places:
                loads[place].append(self._offer(*self._targets[place], seconds, rate))
        return loads

    def _offer(self, server: Ours | Peer, target: Target, seconds: float, rate: float | None) -> Load:
        sizes = self._sizes
        others = {each for each, _ in self._targets if each is not server}
        for other in others:
            other.pause()
        try:
            return self._generator.offer(
                target, clients=sizes.clients, seconds=seconds, settle_s=sizes.settle_s, rate=rate
            )
        finally:
            for other in others:
                other.go_on()

"""Timing on a GPU: CUDA events around the replays of a graph, so that launches of the host cost nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from measure.results import Result, skipped
from measure.timing import Seconds

__all__ = ["capture", "no_gpu", "seconds_of", "time_graph"]


def no_gpu(cases: list[str]) -> list[Result]:
    """Return the results of cases on a machine without a GPU."""
    return [skipped(case, "torch finds no GPU") for case in cases]


def seconds_of(action: Callable[[], object]) -> float:
    """Return the seconds of the GPU between the begin and the end of an action."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    action()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def capture(action: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return a graph of an action."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    return graph


def time_graph(graph: torch.cuda.CUDAGraph, calls: int, rounds: int) -> Seconds:
    """Return the seconds of a call in each round, for a graph of several calls."""
    graph.replay()
    torch.cuda.synchronize()
    return np.array([seconds_of(graph.replay) / calls for _ in range(rounds)])

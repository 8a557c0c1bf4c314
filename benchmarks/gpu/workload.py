"""The sizes of the GPU benchmark."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Sizes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a run is."""

    find_slots: int
    """Slots of the index in the cases of HierarchicalKV."""
    step_rows_16: int
    step_rows_64: int
    grown_rows: int
    """Rows that a growing table reaches from 1 million."""
    deepfm_rows: int
    deepfm_batch: int
    cpu_rows: int
    rounds: int
    ids: int = 1 << 20
    """Ids of a call or step."""
    bag: int = 16
    calls: int = 20
    """Calls in one CUDA graph, over distinct batches."""
    quick: bool = False


FULL = Sizes(
    find_slots=128 << 20,
    step_rows_16=50_000_000,
    step_rows_64=20_000_000,
    grown_rows=500_000_000,
    deepfm_rows=30_000_000,
    deepfm_batch=65_536,
    cpu_rows=10_000_000,
    rounds=11,
)
QUICK = Sizes(
    find_slots=16 << 20,
    step_rows_16=4_000_000,
    step_rows_64=2_000_000,
    grown_rows=20_000_000,
    deepfm_rows=2_000_000,
    deepfm_batch=16_384,
    cpu_rows=1_000_000,
    rounds=5,
    calls=8,
    quick=True,
)

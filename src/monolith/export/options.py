"""What can be chosen about an export. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from monolith.core.errors import ConfigError

__all__ = ["ExportOptions", "check_format"]

_FORMATS = ("monolith", "onnx")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """How a model is exported.

    >>> ExportOptions(quantize_bits=4)
    Traceback (most recent call last):
    monolith.core.errors.ConfigError: quantize_bits is 4; give 8 or 16, or None for full precision
    """

    layout: Literal["standalone", "distributed"] = "standalone"
    """``standalone``: everything in one folder. ``distributed``: ``entry``, ``ps_<i>`` and, on request, ``dense_0``."""
    shards: int = 1
    """Parts that the tables are split into; above 1 only in a distributed export."""
    has_remote_dense: bool = False
    """Distributed: put the dense part into ``dense_0`` instead of ``entry``."""
    is_dense_only: bool = False
    """Distributed: write ``entry`` and ``dense_0`` only; the tables stay those of an earlier version."""
    quantize_bits: int | None = None
    """8 or 16: store the matrices of the dense part with fewer bits; None = full precision."""
    full_precision: bool = False
    """Store table slices declared as half precision with 4 bytes a number: scores are those of training."""
    skip_zero_rows: bool = False
    """Leave out rows that are all zero."""
    program: Literal["onnx", "torch"] = "onnx"
    """What servers run. ``torch``: a ``torch.export`` package, for what ONNX cannot express; they need torch then."""
    with_torch_program: bool = False
    """Also write the dense part as a ``torch.export`` package beside the ONNX program."""
    tolerance: float = 1e-4
    """Largest difference from torch that the dense program may have on sample batches."""

    def __post_init__(self) -> None:
        if self.layout not in ("standalone", "distributed"):
            raise ConfigError(f"layout is {self.layout!r}; give 'standalone' or 'distributed'")
        if self.quantize_bits not in (None, 8, 16):
            raise ConfigError(f"quantize_bits is {self.quantize_bits!r}; give 8 or 16, or None for full precision")
        if self.program not in ("onnx", "torch"):
            raise ConfigError(f"program is {self.program!r}; give 'onnx' or 'torch'")
        if self.program == "torch" and self.quantize_bits is not None:
            raise ConfigError(f"quantize_bits is {self.quantize_bits}: a torch program has no fewer bits; leave it out")
        shards: Any = self.shards
        if type(shards) is not int or not 1 <= shards <= 9999:
            raise ConfigError(f"shards is {shards!r}; give a whole number from 1 to 9999")
        if self.layout == "standalone" and (shards > 1 or self.has_remote_dense or self.is_dense_only):
            raise ConfigError(
                f"shards is {shards}, has_remote_dense is {self.has_remote_dense}, is_dense_only is "
                f"{self.is_dense_only}: these are for layout='distributed'"
            )
        if not (math.isfinite(self.tolerance) and self.tolerance > 0):
            raise ConfigError(f"tolerance is {self.tolerance!r}; give a number above 0")

    @property
    def has_torch_program(self) -> bool:
        """Whether a ``torch.export`` package is written."""
        return self.with_torch_program or self.program == "torch"


def check_format(name: str) -> None:
    """Refuse formats that are not written.

    Raises:
        ConfigError: With the reason and what to use instead.
    """
    if name == "torchscript":
        raise ConfigError(
            "format 'torchscript' is not written: PyTorch has deprecated it, and a server would need torch to read it. "
            "Use 'monolith', 'onnx', or 'monolith' with a torch.export package (--program torch)"
        )
    if name not in _FORMATS:
        raise ConfigError(f"format is {name!r}; give one of {', '.join(_FORMATS)}")

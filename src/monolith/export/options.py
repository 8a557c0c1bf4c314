"""Options of an export. Plain values, checked at construction; needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from monolith.core.errors import ConfigError

__all__ = ["ExportOptions", "check_format"]

_FORMATS = ("monolith", "onnx")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """Layout, precision and program of an export.

    >>> ExportOptions(quantize_bits=4)
    Traceback (most recent call last):
    monolith.core.errors.ConfigError: quantize_bits is 4, expected 8, 16 or None for full precision
    """

    layout: Literal["standalone", "distributed"] = "standalone"
    """``standalone``: everything in one folder. ``distributed``: ``entry``, ``ps_<i>`` and, on request, ``dense_0``."""
    shards: int = 1
    """Number of table shards; above 1 only in a distributed export."""
    has_remote_dense: bool = False
    """Distributed: put the dense part into ``dense_0`` instead of ``entry``."""
    is_dense_only: bool = False
    """Distributed: write only ``entry`` and ``dense_0``; the tables of an earlier version stay in use."""
    shares_tables: bool = False
    """Refer to the tables of the checkpoint instead of copying them; servers convert them while they load."""
    quantize_bits: int | None = None
    """8 or 16: bits of the stored matrices of the dense part; None means full precision."""
    full_precision: bool = False
    """Store half-precision table slices as float32, so that scores equal those of training."""
    skip_zero_rows: bool = False
    """Omit rows that are all zero."""
    program: Literal["onnx", "torch"] = "onnx"
    """Program that servers run. ``torch``: a ``torch.export`` package for operators outside ONNX; needs torch."""
    with_torch_program: bool = False
    """Also write a ``torch.export`` package beside the ONNX program."""
    tolerance: float = 1e-4
    """Largest allowed difference from torch on sample batches."""

    def __post_init__(self) -> None:
        if self.layout not in ("standalone", "distributed"):
            raise ConfigError(f"layout is {self.layout!r}, expected 'standalone' or 'distributed'")
        if self.quantize_bits not in (None, 8, 16):
            raise ConfigError(f"quantize_bits is {self.quantize_bits!r}, expected 8, 16 or None for full precision")
        if self.program not in ("onnx", "torch"):
            raise ConfigError(f"program is {self.program!r}, expected 'onnx' or 'torch'")
        if self.program == "torch" and self.quantize_bits is not None:
            raise ConfigError(f"quantize_bits is {self.quantize_bits!r}, expected None for a torch program")
        shards: Any = self.shards
        if type(shards) is not int or not 1 <= shards <= 9999:
            raise ConfigError(f"shards is {shards!r}, expected an integer from 1 to 9999")
        if self.layout == "standalone" and (shards > 1 or self.has_remote_dense or self.is_dense_only):
            raise ConfigError(
                f"shards is {shards}, has_remote_dense is {self.has_remote_dense}, is_dense_only is "
                f"{self.is_dense_only}, expected their defaults; use layout='distributed'"
            )
        if self.shares_tables and self.is_dense_only:
            raise ConfigError("shares_tables and is_dense_only are True, expected one of them: both write no rows")
        if not (math.isfinite(self.tolerance) and self.tolerance > 0):
            raise ConfigError(f"tolerance is {self.tolerance!r}, expected a number above 0")

    @property
    def has_torch_program(self) -> bool:
        """Whether the export has a ``torch.export`` package."""
        return self.with_torch_program or self.program == "torch"


def check_format(name: str) -> None:
    """Check the name of an export format.

    Raises:
        ConfigError: The format is unknown or unsupported.
    """
    if name == "torchscript":
        raise ConfigError(
            "format is 'torchscript', which PyTorch has deprecated and which needs torch on servers; use 'monolith', "
            "'onnx', or 'monolith' with a torch.export package (--program torch)"
        )
    if name not in _FORMATS:
        raise ConfigError(f"format is {name!r}, expected one of {', '.join(_FORMATS)}")

from __future__ import annotations

import dataclasses

import pytest

from monolith.core.errors import ConfigError
from monolith.export import ExportOptions


def test_an_export_without_options_is_whole() -> None:
    """Each of these options leaves something out, so none is a default."""
    options = dataclasses.asdict(ExportOptions())
    partial = ("is_dense_only", "shares_tables", "quantize_bits", "skip_zero_rows")
    assert not any(options[name] for name in partial)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan"), float("inf")])
def test_a_tolerance_that_compares_nothing_is_refused(tolerance: float) -> None:
    with pytest.raises(ConfigError, match="tolerance"):
        ExportOptions(tolerance=tolerance)

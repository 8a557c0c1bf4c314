"""``link_package``: lets another interpreter of the same Python version import this Monolith."""

from __future__ import annotations

import os
from pathlib import Path

import monolith
from monolith import _native

__all__ = ["link_package"]


def link_package(folder: Path) -> dict[str, str]:
    """Link package and extension into a new folder; return an environment whose ``PYTHONPATH`` is the folder."""
    package = folder / "monolith"
    package.mkdir(parents=True)
    assert monolith.__file__ is not None
    source, extension = Path(monolith.__file__).parent, Path(_native.__file__)
    for path in [*(each for each in source.iterdir() if each.suffix != ".so"), extension]:
        (package / path.name).symlink_to(path)
    return {**os.environ, "PYTHONPATH": str(folder)}

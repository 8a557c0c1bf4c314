"""Tables for the golden vectors: the native one, and the fake that is held to the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from monolith.embedding import Table
from monolith.embedding.specs import TableSpec
from monolith.testing import ReferenceTable


@pytest.fixture(params=["native", "reference"])
def make(request: pytest.FixtureRequest) -> Callable[[TableSpec], Any]:
    if request.param == "reference":
        return ReferenceTable
    return Table

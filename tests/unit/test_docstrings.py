"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import monolith

MODULES = sorted(module.name for module in pkgutil.walk_packages(monolith.__path__, "monolith."))


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("_native")])
def test_examples_hold(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip(), f"{name} has no docstring"
    assert doctest.testmod(module).failed == 0

"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import monolith

# PyFlink does not fit into this environment; `make test-flink` imports its module.
# The last folder of the path has the modules of the original, which warn when they are imported.
FOLDERS = [path for path in monolith.__path__ if not path.endswith("old_names")]
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(FOLDERS, "monolith.")
    if not module.name.startswith("monolith.compat.old_names.") and module.name != "monolith.stream.flink"
)


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("_native")])
def test_examples_hold(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip(), f"{name} has no docstring"
    if ">>> " in Path(str(module.__file__)).read_text():  # the search for examples visits every object of a module
        assert doctest.testmod(module).failed == 0

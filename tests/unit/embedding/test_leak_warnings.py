"""The end of the interpreter: the native module reports leaked objects under sanitizers only."""

from __future__ import annotations

import os
import subprocess
import sys

_LEAK = """
import ctypes
from monolith import _native
leaked = _native.FramingProbe.__new__(_native.FramingProbe)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(leaked))
"""


def test_an_object_that_outlives_the_interpreter_is_reported_under_sanitizers_only() -> None:
    done = subprocess.run([sys.executable, "-c", _LEAK], capture_output=True, text=True, timeout=60)
    assert ("nanobind: leaked" in done.stderr) == ("MONOLITH_SANITIZED" in os.environ)

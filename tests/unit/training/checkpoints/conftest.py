"""Lets the tests beside this file import the small run in ``checkpoint_runs``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

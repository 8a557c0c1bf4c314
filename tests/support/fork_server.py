"""Processes that start with everything imported: a fork server that has imported ``training_child`` and exports."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
from multiprocessing.context import ForkServerContext
from pathlib import Path

__all__ = ["fork_context"]

_FOLDER = str(Path(__file__).parent)


def fork_context() -> ForkServerContext:
    """Return the context whose processes have imported ``training_child``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["training_child", "preloaded_exports"])
    before = os.environ.get("PYTHONPATH")
    # The server takes its path from the environment alone.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_FOLDER, before]))
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context

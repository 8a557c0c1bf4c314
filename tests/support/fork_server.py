"""Processes that start with everything imported: a fork server that has imported ``training_child`` and exports."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import subprocess
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest import mock

__all__ = ["fork_context"]

_PATH = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
_started: list[subprocess.Popen[bytes]] = []


def fork_context() -> ForkServerContext:
    """Return the context whose processes have imported ``training_child``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["training_child", "preloaded_exports"])
    with mock.patch.object(multiprocessing.util, "spawnv_passfds", _start):
        multiprocessing.forkserver.ensure_running()
    return context


def _start(_: bytes, arguments: Sequence[str | bytes], descriptors: Sequence[int]) -> int:
    """Start a helper of ``multiprocessing`` by ``subprocess``, which tests replace to fork it."""
    *words, code = arguments
    _started.append(subprocess.Popen([*words, f"{_PATH}{code}"], pass_fds=descriptors))
    return _started[-1].pid

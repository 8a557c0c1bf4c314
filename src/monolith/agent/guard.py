"""Run a foreign server that ends with its agent: ``python -m monolith.agent.guard PROGRAM ARGUMENT...``.

A ``tensorflow_model_server`` does not watch the lifeline, so this process does: when the agent dies, the server gets
SIGTERM and, after a grace time, SIGKILL. The kernel kills the server if this process is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from monolith.core.lifeline import VARIABLE, end_with_starter

__all__ = ["guarded", "main"]

_SET_PARENT_DEATH_SIGNAL = 1


def guarded(command: Sequence[str]) -> list[str]:
    """Return the command that runs ``command`` under a guard."""
    return [sys.executable, "-m", "monolith.agent.guard", *command]


def main(arguments: Sequence[str]) -> int:
    """Run the server until it ends; return its exit status."""
    library = ctypes.CDLL(None)

    def die_with_guard() -> None:
        library.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)

    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    # No other thread runs yet, so a function between fork and exec is safe.
    server = subprocess.Popen(arguments, env=environment, preexec_fn=die_with_guard)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: server.send_signal(received))
    end_with_starter(os.environ, ask=server.terminate, end=lambda: os._exit(1))
    status = server.wait()
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

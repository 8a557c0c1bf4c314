"""The interpreter that ``preloaded_popen`` forks: it has imported torch and this project, so a start is cheap.

Run as a program with the number of a listening socket, and with the arguments of a pytest run whose test modules it
imports too. Each connection carries one request: JSON that describes the process, and its file descriptors. The answer
is the process id. The requesting process becomes the parent: the process is forked through an intermediate, whose end
makes it an orphan that the system gives to the requester, its subreaper.

A process that runs tests is forked together with a second server: programs must descend from their requester. So is a
program that starts programs, such as a launcher.

The server has one thread and never creates a channel, a pool or a table, so that its forks start clean. It ends when
its standard input does, however the requester ends.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from preloaded_popen import PROGRAM, RUN_TESTS, TORCHRUN, PreloadedPopen, fork_server, name_process

if TYPE_CHECKING:
    import pytest

__all__: list[str] = []

_MOST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 64
_STARTERS = {"demo", "launch"}
"""Commands of ``monolith`` that start slow programs. An agent starts quick ones, and tests look at its children."""
_PRELOADED = (
    "numpy",
    "torch",
    "torch._dynamo",  # the first optimizer of a process imports it
    "torch.distributed",
    "grpc",
    "pyarrow.parquet",
    "monolith.agent.controller",
    "monolith.cli.agent_run",
    "monolith.cli.evaluate",
    "monolith.cli.join",
    "monolith.cli.ps",
    "monolith.cli.serve",
    "monolith.cli.train",
    "monolith.data.readers",
    "monolith.models",
    "monolith.ps.server",
    "monolith.ps.store",
    "monolith.serving.remote.loading",
    "monolith.serving.server",
    "monolith.training.cluster.roles.process",
    "monolith.training.cluster.roles.rank",
    "monolith.training.cluster.roles.server",
    "monolith.training.cluster.roles.worker",
    "monolith.training.estimator",
    "monolith.training.hooks",
    "monolith.training.runner",
    "preloaded_exports",
)


def serve(listener: socket.socket) -> dict[str, Any]:
    """Answer requests until standard input ends; return only in a forked process, with its request."""
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            os._exit(0)
        connection, _ = listener.accept()
        with connection:
            text, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, _MOST_DESCRIPTORS)
            request: dict[str, Any] = json.loads(text)
            pid = _fork_twice()
            if pid == 0:
                connection.close()
                listener.close()
                request["received"] = descriptors
                return request
            for descriptor in descriptors:
                os.close(descriptor)
            with contextlib.suppress(OSError):  # the requester has ended
                connection.sendall(str(pid).encode())


def _fork_twice() -> int:
    """Return the id of the new process, or 0 in the new process once the requester is its parent."""
    from_child, to_parent = os.pipe()
    intermediate = os.fork()
    if intermediate == 0:
        between = os.getpid()
        pid = os.fork()
        if pid:
            os.write(to_parent, str(pid).encode())
            os._exit(0)
        os.close(from_child)
        os.close(to_parent)
        while os.getppid() == between:
            time.sleep(0.0005)
        return 0
    os.close(to_parent)
    text = os.read(from_child, 32)
    os.close(from_child)
    os.waitpid(intermediate, 0)
    return int(text)


def become(request: dict[str, Any]) -> None:
    """Take the descriptors, folder, environment and arguments of a request."""
    _place_descriptors(request["received"], request["targets"])
    name_process("python")
    if request["new_session"]:
        os.setsid()
    else:
        with contextlib.suppress(OSError):
            os.setpgid(0, request["group"])
    if request["folder"] is not None:
        os.chdir(request["folder"])
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if os.environ.get("OMP_NUM_THREADS", threads) != threads:  # read when the library was loaded
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    if request["unbuffered"] or os.environ.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(write_through=True)
    for action in request["warnings"]:
        warnings.simplefilter(action)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.modules["numpy"].random.seed()
    sys.argv = [request["script"] or "-c", *request["arguments"]]


def _place_descriptors(received: list[int], targets: list[int]) -> None:
    """Move descriptors to the numbers that they have in the requester; a child inherits them as after ``exec``."""
    above = max([*received, *targets]) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, target in zip(moved, targets, strict=True):
        os.dup2(descriptor, target, inheritable=True)
        os.close(descriptor)


def run(request: dict[str, Any]) -> None:
    """Run the program of a request as ``__main__``."""
    sys.path.insert(0, request["path"])
    if request["script"] is not None:
        runpy.run_path(request["script"], run_name="__main__")
        return
    if request["module"] is not None:
        sys.modules.pop(request["module"], None)  # a module that is there already is a warning of runpy
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(request["code"], vars(sys.modules["__main__"]))


def end(status: object) -> NoReturn:
    """End as an interpreter does with the argument of ``sys.exit``, but let the system free the objects.

    An interpreter visits each of them, and so copies the memory that it shares with its server, for half a second.
    """
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # absent, broken or closed
            stream.flush()
    os._exit((status or 0) & 0xFF)


class ModuleImports:
    """A plugin of pytest that imports test modules and makes no test of them."""

    def pytest_pycollect_makeitem(self) -> list[pytest.Item]:
        """Leave out all tests: each process that runs tests makes its own."""
        return []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Forget a module that failed or was skipped: a process that runs tests imports it again, and reports it."""
        if not report.passed:
            path = str(Path(report.nodeid).absolute())
            for name in [name for name, module in sys.modules.items() if getattr(module, "__file__", None) == path]:
                del sys.modules[name]


def import_tests(arguments: Sequence[str]) -> None:
    """Import the test modules that a run of pytest with these arguments collects."""
    importlib.import_module("pytest").main(
        [*arguments, "--collect-only", "--capture=no", "-p", "no:cacheprovider"], plugins=[ModuleImports()]
    )


def _starts_programs(request: dict[str, Any]) -> bool:
    if request["code"] == PROGRAM:
        return not _STARTERS.isdisjoint(request["arguments"])
    return bool(request["code"] == RUN_TESTS or request["module"] == TORCHRUN)


def play(listener: socket.socket) -> NoReturn:
    """Answer requests; in a forked process, run its program. An exception of the program ends the process as usual."""
    request = serve(listener)
    become(request)
    if _starts_programs(request):
        if (own := fork_server()) is not None:
            for descriptor in request["targets"][3:]:
                os.close(descriptor)
            play(own)
        if request["code"] != RUN_TESTS:  # tests decide when
            subprocess.Popen = PreloadedPopen  # type: ignore[misc]
    try:
        run(request)
    except SystemExit as error:
        end(error.code)
    end(None)


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    if tests := sys.argv[2:]:
        import_tests(tests)
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):  # the process that needs the module imports it, or fails
            importlib.import_module(name)
    del sys.path[0]  # the folder of this file
    gc.collect()
    gc.freeze()
    play(listener)


if __name__ == "__main__":
    main()

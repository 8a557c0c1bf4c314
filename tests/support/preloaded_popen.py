"""``subprocess.Popen`` whose ``monolith`` processes are forked from an interpreter that has imported everything.

Importing torch and this project takes seconds of processor time in every process that a test starts. A forked process
is a process like any other: its parent is the test, which signals, kills and waits for it. Other programs, and
processes whose environment changes how an interpreter starts, are executed as usual.
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from preloaded_server import PROGRAM

__all__ = ["PreloadedPopen", "start_preloading", "why_not_preloaded"]

_SUPPORT = Path(__file__).resolve().parent
_SCRIPTS = re.compile(
    rf"{re.escape(str(_SUPPORT.parents[1]))}/"
    r"(examples/\d\d_\w+|tests/integration/test_(dataplane_processes|delta_crash)"
    r"|tests/support/(checkpoint_crash_child|crash_child|log_appender|module_rank_child))\.py"
)
"""Scripts that are run in a forked process."""

_AT_START = re.compile(
    "LD_|PYTHON(?!FAULTHANDLER|UNBUFFERED)|OMP_(?!NUM_THREADS)|OPENBLAS_|MALLOC_|GLIBC_|GRPC_|TORCH|LC_|LANG"
)
"""Variables that an interpreter or a library reads when it starts."""

_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
_TIMEOUT_S = 500.0
"""Less than the timeout of a test. On a busy machine, the first process waits long for the imports."""
_SET_CHILD_SUBREAPER = 36

_PLAIN = {
    "close_fds": True, "executable": None, "gid": None, "gids": None, "preexec_fn": None, "process_group": -1,
    "shell": False, "uid": None, "umask": -1,
}  # fmt: skip
"""Arguments that a forked process supports with these values only."""


def why_not_preloaded() -> str | None:
    """Return why processes are executed instead of forked; None if they are forked."""
    if sys.platform != "linux":
        return "subreapers need Linux"
    if os.environ.get("MONOLITH_TEST_PRELOAD") == "0":
        return "MONOLITH_TEST_PRELOAD is 0"
    if "LD_PRELOAD" in os.environ:
        return "a preloaded library, such as a sanitizer, may not outlive a fork"
    return None


def start_preloading() -> None:
    """Start the interpreter before the first process needs it; the imports run beside the tests."""
    _server()


class PreloadedPopen(subprocess.Popen[Any]):
    """A process; ``python -m monolith``, the same with ``-c``, and the examples are forked."""

    _names = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]

    def _execute_child(self, *values: Any) -> None:
        given = dict(zip(self._names, values, strict=True))
        is_plain = all(given[name] == value for name, value in _PLAIN.items())
        program = _parse(given["args"]) if is_plain else None
        environment = dict(os.environ if given["env"] is None else given["env"])
        folder = given["cwd"]
        if program is None or not _is_plain(environment) or not (folder is None or os.path.isdir(folder)):
            super()._execute_child(*values)  # type: ignore[misc]
            return
        pipes = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [number if pipe == -1 else pipe for number, pipe in enumerate(pipes)]
        more = list(given["pass_fds"])
        request = {
            **program,
            "targets": [0, 1, 2, *more],
            "folder": os.fsdecode(os.getcwd() if folder is None else folder),
            "environment": {os.fsdecode(key): os.fsdecode(value) for key, value in environment.items()},
            "new_session": given["start_new_session"],
            "group": os.getpgid(0),
        }
        self.pid = _server().start(request, [*streams, *more])
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in names))  # type: ignore[attr-defined]


def _parse(command: Any) -> dict[str, Any] | None:
    """Return the program of a command that can be forked; None of another."""
    if isinstance(command, str | bytes | os.PathLike):
        return None
    words = [os.fsdecode(word) for word in command]
    if words[:1] != [sys.executable]:
        return None
    is_unbuffered, actions, place = False, [], 1
    while place < len(words) and words[place] in ("-u", "-W"):
        if words[place] == "-u":
            is_unbuffered = True
        else:
            place += 1
            actions.append(words[place])
        place += 1
    rest = words[place:]
    fixed = {"unbuffered": is_unbuffered, "warnings": actions}
    if rest[:2] in (["-c", PROGRAM], ["-m", "monolith"]):
        return {**fixed, "script": None, "is_code": rest[0] == "-c", "arguments": rest[2:]}
    if rest and _SCRIPTS.fullmatch(rest[0]):
        return {**fixed, "script": rest[0], "is_code": False, "arguments": rest[1:]}
    return None


def _is_plain(environment: Mapping[str, str]) -> bool:
    """Return True if a process with this environment starts as the server did."""
    first = _server().environment
    changed = {key for key in {*environment, *first} if environment.get(key) != first.get(key)}
    if any(_AT_START.match(key) for key in changed):
        return False
    return [resource.getrlimit(limit) for limit in _LIMITS] == _server().limits


class _Server:
    """The process that is forked. It starts with the first request, and ends with this process."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.limits = [resource.getrlimit(limit) for limit in _LIMITS]
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._library = ctypes.CDLL(None)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(f"\0monolith-test-{os.getpid()}-{id(self)}")
        listener.listen()
        self._address = listener.getsockname()
        with listener:
            self._process = subprocess.Popen(
                [sys.executable, str(_SUPPORT / "preloaded_server.py"), str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
            )
        atexit.register(self.close)

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Start a process; return its id."""
        with self._lock, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(self._address)
            self._library.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
                answer = connection.recv(32)
            finally:
                self._library.prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, f"the preloaded interpreter ended with {self._process.poll()}"
        return int(answer)

    def close(self) -> None:
        """End the server."""
        if os.getpid() == self.owner and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(_TIMEOUT_S)


_one: list[_Server] = []
_making = threading.Lock()


def _server() -> _Server:
    with _making:
        if not _one or _one[0].owner != os.getpid():
            _one[:] = [_Server()]
        return _one[0]

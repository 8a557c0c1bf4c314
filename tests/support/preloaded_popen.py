"""``subprocess.Popen`` whose ``monolith`` processes are forked from an interpreter that has imported everything.

Importing torch and this project takes seconds of processor time in every process that a test starts. A forked process
is a process like any other: its parent is the test, which signals, kills and waits for it. Other programs, and
processes whose environment changes how an interpreter starts, are executed as usual. The processes of pytest-xdist are
forked too: one interpreter imports the test modules for all of them.
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
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "PROGRAM",
    "RUN_TESTS",
    "SERVER_NAME",
    "TORCHRUN",
    "PreloadedPopen",
    "fork_server",
    "name_process",
    "start_preloading",
    "why_not_preloaded",
]

PROGRAM = "from monolith.cli.main import main; main()"
"""The code of ``python -c`` that is the command ``monolith``."""
RUN_TESTS = "import sys;exec(eval(sys.stdin.readline()))"
"""The code of a process of pytest-xdist."""
_FORK_SERVER = "from multiprocessing.forkserver import main; main("
"""The code of a fork server of ``multiprocessing`` contains this."""
SERVER_NAME = "fork-server"
"""The name of a process that forks the programs of its parent; a test that counts processes leaves it out."""
TORCHRUN = "torch.distributed.run"
"""The module that ``monolith launch torchrun`` runs. It starts processes of ``monolith``."""

_SUPPORT = Path(__file__).resolve().parent
_SCRIPTS = re.compile(
    rf"{re.escape(str(_SUPPORT.parents[1]))}/"
    r"(examples/\d\d_\w+|tests/integration/test_(dataplane_processes|delta_crash)"
    r"|tests/support/(checkpoint_crash_child|crash_child|log_appender|module_rank_child))\.py"
)
"""Scripts that are run in a forked process."""

_AT_START = re.compile(
    "LD_|PYTHON(?!FAULTHANDLER|PATH|UNBUFFERED)|OMP_(?!NUM_THREADS)|OPENBLAS_|MALLOC_|GLIBC_|GRPC_"
    "|TORCH(?!ELASTIC_|_NCCL_|INDUCTOR_CACHE_DIR)|LC_|LANG"
)
"""Variables that an interpreter or a library reads when it starts. torch sets its cache folder at the first export."""

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
    if os.environ.get("CUDA_VISIBLE_DEVICES") != "" and Path("/dev/nvidiactl").exists():
        return "CUDA cannot be used after a fork"
    return None


def start_preloading(tests: Sequence[str] = ()) -> None:
    """Start the interpreter before the first process needs it.

    Args:
        tests: Arguments of a pytest run, whose test modules are imported too.
    """
    with _making:
        if not _is_here():
            _one[:] = [_execute_server(tests)]


def fork_server() -> socket.socket | None:
    """Fork this process, so that the copy starts its programs. Return the listener in the copy, and None here.

    This process must have one thread.
    """
    listener = _listen()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.dup2(reading, 0)
        os.close(reading)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)
        os.setpgid(0, 0)  # signals to the group of the program are not for its server
        name_process(SERVER_NAME)
        return listener
    os.close(reading)
    _one[:] = [_Server(listener.getsockname(), writing, lambda: os.waitpid(pid, 0)[1])]
    listener.close()
    return None


def name_process(name: str) -> None:
    """Set the name of this process that the system shows."""
    Path("/proc/self/comm").write_text(name)


class PreloadedPopen(subprocess.Popen[Any]):
    """A process; ``python -m monolith``, the same with ``-c``, the examples and processes that fork are forked."""

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
        folder = os.fsdecode(os.getcwd() if folder is None else folder)
        request = {
            **program,
            "path": folder if program["path"] is None else program["path"],
            "targets": [0, 1, 2, *more],
            "folder": folder,
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
    fixed = {
        "unbuffered": is_unbuffered, "warnings": actions, "script": None, "module": None, "code": None, "path": None,
    }  # fmt: skip
    if rest[:2] == ["-m", "monolith"]:
        return {**fixed, "code": PROGRAM, "arguments": rest[2:]}
    if rest[:2] == ["-m", TORCHRUN]:
        return {**fixed, "module": rest[1], "arguments": rest[2:]}
    if rest[:1] == ["-c"] and (rest[1] in (PROGRAM, RUN_TESTS) or _FORK_SERVER in rest[1]):
        return {**fixed, "code": rest[1], "path": "", "arguments": rest[2:]}
    if rest and _SCRIPTS.fullmatch(rest[0]):
        return {**fixed, "script": rest[0], "path": os.path.dirname(rest[0]), "arguments": rest[1:]}
    return None


def _is_plain(environment: Mapping[str, str]) -> bool:
    """Return True if a process with this environment starts as the server did."""
    first = _server().environment
    changed = {key for key in {*environment, *first} if environment.get(key) != first.get(key)}
    if any(_AT_START.match(key) for key in changed):
        return False
    return [resource.getrlimit(limit) for limit in _LIMITS] == _server().limits


def _listen() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0monolith-test-{os.getpid()}-{listener.fileno()}-{time.monotonic_ns()}")
    listener.listen()
    return listener


class _Server:
    """The process that is forked, a child of this process. It ends with this process.

    Args:
        address: The address on which it listens.
        life: The write end of its standard input.
        wait: Waits for its end and returns its status.
    """

    def __init__(self, address: Any, life: int, wait: Callable[[], int]) -> None:
        self.environment = dict(os.environ)
        self.limits = [resource.getrlimit(limit) for limit in _LIMITS]
        self.owner = os.getpid()
        self._address = address
        self._life = life
        self._wait = wait
        self._lock = threading.Lock()
        self._library = ctypes.CDLL(None)
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
        assert answer, "the preloaded interpreter ended"
        return int(answer)

    def close(self) -> None:
        """End the server."""
        if os.getpid() == self.owner:
            os.close(self._life)
            self._wait()


def _execute_server(tests: Sequence[str]) -> _Server:
    with _listen() as listener:
        address = listener.getsockname()
        process = subprocess.Popen(
            [sys.executable, str(_SUPPORT / "preloaded_server.py"), str(listener.fileno()), *tests],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
    assert process.stdin is not None
    with process.stdin:
        return _Server(address, os.dup(process.stdin.fileno()), lambda: process.wait(_TIMEOUT_S))


_one: list[_Server] = []
_making = threading.Lock()


def _is_here() -> bool:
    return bool(_one) and _one[0].owner == os.getpid()


def _server() -> _Server:
    start_preloading()
    return _one[0]

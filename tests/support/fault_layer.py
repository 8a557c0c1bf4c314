"""Processes whose file operations are recorded and broken: the Python side of ``cpp/testing/fault_layer.c``.

``build_fault_layer`` compiles the library at the first use. ``FaultHost`` is a process that runs under it: it imports
the scenarios once, and forks a child for every run. Run as a program, this file is that process.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from file_record import Record, read_records

__all__ = ["FaultHost", "FaultRun", "build_fault_layer", "why_no_fault_layer"]

_SOURCE = Path(__file__).parents[2] / "cpp" / "testing" / "fault_layer.c"
_BUILD = Path(__file__).parents[2] / "build" / "fault_layer"
_TIMEOUT_S = 120


def why_no_fault_layer() -> str:
    """Return the reason why the library cannot be used here; empty if it can."""
    if sys.platform != "linux":
        return "the fault layer needs Linux"
    if os.environ.get("MONOLITH_SANITIZED"):
        return "sanitizers wrap the same functions as the fault layer"
    if shutil.which(_compiler()) is None:
        return f"the fault layer needs a compiler, {_compiler()} is not installed"
    return ""


def build_fault_layer() -> Path:
    """Return the compiled library; compile it if the source has changed."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    library = _BUILD / f"fault_layer-{digest}.so"
    if not library.exists():
        _BUILD.mkdir(parents=True, exist_ok=True)
        temporary = library.with_suffix(f".{os.getpid()}")
        flags = ["-x", "c", "-std=c17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
        # The functions that the layer wraps must come after it on the search path, also those of C++.
        libraries = ["-fexceptions", "-Wl,--no-as-needed", "-lstdc++", "-ldl"]
        subprocess.run([_compiler(), *flags, str(_SOURCE), "-o", str(temporary), *libraries], check=True, timeout=60)
        temporary.replace(library)
    return library


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


@dataclass(frozen=True)
class FaultRun:
    """Result of a run of a scenario."""

    status: int
    """Exit status of the child; negative for a signal."""
    records: list[Record]
    faults: int
    operations: int
    failures: list[str]
    """``step: error`` of the steps that failed."""
    problems: list[str] = field(default_factory=list)
    """Broken promises that the child saw."""


class FaultHost:
    """A process under the fault layer that runs scenarios, each in a forked child. A context manager."""

    def __init__(self) -> None:
        environment = {**os.environ, "LD_PRELOAD": str(build_fault_layer()), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(
        self, scenario: str, folder: Path, *, steps: int, first: int = 1, rules: str = "", tries: int = 1
    ) -> FaultRun:
        """Run the steps of a scenario, and return the records and the outcome.

        Args:
            scenario: Name in ``SCENARIOS``.
            folder: Folder of the files; the records lie beside it.
            steps: Number of steps.
            first: Number of the first step.
            rules: Rules of the fault layer, in force after the writer is open.
            tries: Times that a step is tried before the child gives up.
        """
        record = folder.with_name(f"{folder.name}.record")
        record.unlink(missing_ok=True)
        job = {
            "scenario": scenario,
            "folder": str(folder),
            "record": str(record),
            "steps": steps,
            "first": first,
            "rules": rules,
            "tries": tries,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        result = json.loads(self._process.stdout.readline())
        return FaultRun(records=read_records(record), **result)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=_TIMEOUT_S)
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# --- the process under the layer ---


def _run_steps(job: dict[str, Any], result: dict[str, Any]) -> None:
    from file_scenarios import CARELESS, SCENARIOS

    layer = ctypes.CDLL(None)
    scenario, folder = (SCENARIOS | CARELESS)[job["scenario"]], Path(job["folder"])
    if layer.fault_layer_begin(os.fsencode(folder), os.fsencode(job["record"])):
        raise OSError(f"cannot write {job['record']}")
    writer = None
    if layer.fault_layer_rules(job["rules"].encode()):
        raise ValueError(f"rules are {job['rules']!r}, expected the form in fault_layer.c")
    done, begun = 0, 0
    for step in range(job["first"], job["first"] + job["steps"]):
        for _ in range(job["tries"]):
            layer.fault_layer_note(b"begin %d" % step)
            begun = step
            try:
                writer = writer or scenario.open(folder)
                writer.advance(step)
            except Exception as error:
                result["failures"].append(f"{step}: {type(error).__name__}: {error}")
                _check_live(scenario, folder, done, begun, result)
                continue
            layer.fault_layer_note(b"done %d" % step)
            done = step
            break
    result["faults"] = layer.fault_layer_count(0)
    result["operations"] = layer.fault_layer_count(1)
    layer.fault_layer_rules(b"")
    if writer is not None:
        writer.close()


def _check_live(scenario: Any, folder: Path, done: int, begun: int, result: dict[str, Any]) -> None:
    """Check that a failed step left the files readable, at an acknowledged step or a later one."""
    layer = ctypes.CDLL(None)
    layer.fault_layer_pause(1)
    try:
        step = scenario.recover(folder)
        if not done <= step <= begun:
            result["problems"].append(f"step {step} is there after a failure, acknowledged {done}, begun {begun}")
    except Exception as error:
        result["problems"].append(f"unreadable after a failure at {begun}: {type(error).__name__}: {error}")
    finally:
        layer.fault_layer_pause(0)


def main() -> None:
    """Fork a child for every line of standard input; answer with its outcome."""
    import file_scenarios  # noqa: F401 - imported once, for all children

    for line in sys.stdin:
        job = json.loads(line)
        with tempfile.TemporaryFile() as answer:
            pid = os.fork()
            if pid == 0:
                signal.alarm(_TIMEOUT_S)
                result: dict[str, Any] = {"faults": 0, "operations": 0, "failures": [], "problems": []}
                status = 1
                with contextlib.suppress(BaseException):
                    try:
                        _run_steps(job, result)
                        status = 0
                    except Exception as error:
                        result["problems"].append(f"{type(error).__name__}: {error}")
                    answer.write(json.dumps(result).encode())
                    answer.flush()
                os._exit(status)
            _, status = os.waitpid(pid, 0)
            answer.seek(0)
            result = json.loads(answer.read() or b'{"faults": 0, "operations": 0, "failures": [], "problems": []}')
        print(json.dumps({"status": os.waitstatus_to_exitcode(status), **result}), flush=True)


if __name__ == "__main__":
    main()

"""The frame of a benchmark program: arguments, one child process per group of cases, JSON lines on standard output.

A benchmark NAME is a package of that name beside this one: ``NAME.workload`` has the sizes ``FULL`` and ``QUICK``,
``NAME.results`` a ``write``, and each group is a function of some other module of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from measure.results import Result

__all__ = ["Benchmark", "Group"]

_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "profile": {"metavar": "FILE", "help": "write a trace of some steps, for chrome://tracing"},
    "threads": {"metavar": "N", "type": int, "help": "threads of every contestant"},
}
"""Options that set the field of this name in the sizes."""


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that share a child process, so that their memory goes back to the machine afterwards."""

    function: str
    """``module.function`` in the benchmark's package; it yields their results."""
    cases: tuple[str, ...]
    is_default: bool = True
    """Whether they run when no case is named."""
    cores: int | None = None
    """How many cores the process, and what it starts, may use; None = all."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark program."""

    name: str
    program: str
    """Its file, which is started again for each group."""
    description: str | None
    groups: Mapping[str, Group]
    environment: Mapping[str, str]
    """Variables that the child processes get."""
    options: Sequence[str] = ()
    """Further options: ``profile`` and ``threads``, which are fields of its sizes."""

    def main(self) -> int:
        """Run what the command line asks for, and return the exit status."""
        known = [case for group in self.groups.values() for case in group.cases]
        parser = argparse.ArgumentParser(description=self.description)
        parser.add_argument("--case", action="append", choices=known, help="only this case; may be given several times")
        parser.add_argument("--quick", action="store_true", help="smaller sizes; done within 60 seconds")
        parser.add_argument("--group", choices=self.groups, help=argparse.SUPPRESS)  # set for the child processes
        for option in self.options:
            parser.add_argument(f"--{option}", **_OPTIONS[option])
        arguments = parser.parse_args()
        default = [case for group in self.groups.values() if group.is_default for case in group.cases]
        wanted = arguments.case or default
        if arguments.group:
            self._run_group(self.groups[arguments.group], wanted, arguments)
            return 0
        broken = [name for name, group in self.groups.items() if not self._run_child(name, group, wanted, arguments)]
        if broken:
            print(f"bench {self.name}: broke in: {', '.join(broken)}", file=sys.stderr)
        return 1 if broken else 0

    def _run_child(self, name: str, group: Group, wanted: Sequence[str], arguments: argparse.Namespace) -> bool:
        """Run the wanted cases of a group in a process of their own; return whether that went well."""
        cases = [case for case in group.cases if case in wanted]
        if not cases:
            return True
        command = [sys.executable, self.program, "--group", name]
        command += [part for case in cases for part in ("--case", case)]
        if arguments.quick:
            command.append("--quick")
        chosen = self._chosen(arguments)
        command += [part for option, value in chosen.items() for part in (f"--{option}", str(value))]
        environment = {**os.environ, **self.environment}
        if "threads" in chosen:
            environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(chosen["threads"]))
        return subprocess.run(command, env=environment, check=False).returncode == 0

    def _chosen(self, arguments: argparse.Namespace) -> dict[str, Any]:
        return {option: value for option in self.options if (value := getattr(arguments, option)) is not None}

    def _run_group(self, group: Group, cases: Sequence[str], arguments: argparse.Namespace) -> None:
        """Measure the cases and print their lines. Whatever a peer prints goes to standard error."""
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # servers are ended on the way out
        with os.fdopen(os.dup(1), "w") as out:
            os.dup2(2, 1)
            if group.cores is not None:
                os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-group.cores :])
            workload = importlib.import_module(f"{self.name}.workload")
            results = importlib.import_module(f"{self.name}.results")
            sizes = workload.QUICK if arguments.quick else workload.FULL
            sizes = dataclasses.replace(sizes, **self._chosen(arguments))
            module, function = group.function.split(".")
            measure: Callable[[Sequence[str], Any], Iterator[Result]] = getattr(
                importlib.import_module(f"{self.name}.{module}"), function
            )
            for result in measure(cases, sizes):
                results.write(result, sizes, out)
